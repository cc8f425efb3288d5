"""What ``benchmark.perf`` works on: CIFAR-10's images and CIFAR-10N's labels where they are found, else random ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from datamodules.annotations import Annotations
from datamodules.base import CrowdData, CrowdDataModule
from datamodules.cifar10_images import MEAN, STD, load_images
from datamodules.cifar10n import Cifar10N
from datamodules.files import DataNotFound


def cifar_images(count: int) -> Tensor:
    """uint8 images ``[count, 3, 32, 32]``: CIFAR-10's where they are found, else random ones."""
    try:
        return load_images(None)[0].x[:count]
    except DataNotFound:
        return torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def cifar10n_annotations(count: int) -> Annotations:
    """CIFAR-10N's three annotations of each of ``count`` images where they are found, else random ones like them."""
    try:
        noted, _ = Cifar10N("aggre").annotations_for_audit()
        return replace(noted.select(torch.arange(count)), n_items=count) if count < noted.n_items else noted
    except DataNotFound:
        generator = torch.Generator().manual_seed(0)
        items = torch.arange(count).repeat(3)
        workers, labels = (torch.randint(size, items.shape, generator=generator) for size in (747, 10))
        return Annotations(items, workers, labels, count, 747, 10)


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
