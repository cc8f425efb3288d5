"""Two blobs of points and three annotators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from datamodules.annotations import Annotations
from datamodules.base import CrowdData, CrowdDataModule


class TwoBlobs(CrowdDataModule):
    """Points around (-1, -1) and (1, 1)."""

    name = "two_blobs"
    regimes: ClassVar[Mapping[str, str]] = {
        "right": "three annotators who are right",
        "noisy": "three annotators, each wrong on a fifth of the points",
    }
    provides: ClassVar[frozenset[str]] = frozenset({"annotator_ids"})
    embedded: ClassVar[bool] = True
    standard_augmentation: ClassVar[str] = "none"

    def load(self) -> CrowdData:
        generator = torch.Generator().manual_seed(self.annotation_seed)
        n_items, n_test = 120, 60
        classes = torch.arange(n_items + n_test) % 2
        x = (2.0 * classes - 1).unsqueeze(1) + 0.5 * torch.randn(len(classes), 2, generator=generator)
        items = torch.arange(n_items).repeat_interleave(3)
        wrong = torch.rand(len(items), generator=generator) < (0.2 if self.regime == "noisy" else 0.0)
        annotations = Annotations(
            items=items,
            annotators=torch.arange(3).repeat(n_items),
            labels=torch.where(wrong, 1 - classes[items], classes[items]),
            n_items=n_items,
            n_annotators=3,
            n_classes=2,
        )
        return CrowdData(
            x=x[:n_items],
            annotations=annotations,
            true_labels=classes[:n_items],
            test_x=x[n_items:],
            test_labels=classes[n_items:],
        )
