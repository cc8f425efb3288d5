"""What ``benchmark.perf`` trains on: CIFAR-10's images where they are found, and labels that mean nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datamodules.annotations import Annotations
from datamodules.base import CrowdData, CrowdDataModule
from datamodules.cifar10_images import MEAN, STD, load_images
from datamodules.files import DataNotFound


def cifar_images(count: int) -> Tensor:
    """uint8 images ``[count, 3, 32, 32]``: CIFAR-10's where they are found, else random ones."""
    try:
        return load_images(None)[0].x[:count]
    except DataNotFound:
        return torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


class PerfData(CrowdDataModule):
    """Ten classes and random labels, each item's by ``labels_per_item`` annotators."""

    name = "perf"
    regimes = {"random": "random labels"}

    def __init__(self, images: Tensor, labels_per_item: int = 3, **kwargs: Any) -> None:
        super().__init__("random", **kwargs)
        self.images = images
        self.labels_per_item = labels_per_item

    def load(self) -> CrowdData:
        """The images with labels drawn from a fixed seed."""
        count, each = len(self.images), self.labels_per_item
        labels = torch.randint(10, (count, each), generator=torch.Generator().manual_seed(1))
        items = torch.arange(count).repeat_interleave(each)
        noted = Annotations(items, torch.arange(each).repeat(count), labels.flatten(), count, each, 10)
        return CrowdData(
            x=self.images,
            annotations=noted,
            true_labels=None,
            test_x=self.images[:1],
            test_labels=None,
            mean=MEAN,
            std=STD,
            aggregated=labels[:, 0],
        )
