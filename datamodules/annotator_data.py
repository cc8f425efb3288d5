"""Data of which every annotator labels many items: labels may be deleted, tests keep each annotator's own labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from datamodules.annotations import Annotations
from datamodules.base import CrowdData, CrowdDataModule
from datamodules.regimes import regime_share
from datamodules.seeds import derive_seed
from datamodules.split import VAL_SHARE, ItemSplit


class AnnotatorData(CrowdDataModule):
    """Base of data with stable annotators and no true label: the regimes ``full`` and ``drop=P``.

    The test items' labels (``CrowdData.test_annotations``) and those of the validation items are never deleted.

    Args:
        regime: ``full`` or ``drop=P``. One ``annotation_seed`` is one draw, whatever learns from it; what a higher
            share keeps is part of what a lower share keeps.
        val_fraction: share of the items beside the test items that is held out; the default makes 70/15/15.
        shared: arguments of :class:`CrowdDataModule`.
    """

    audit_regime = "full"
    split_seed_chooses: ClassVar[str] = "test and validation"

    def __init__(self, regime: str, *, val_fraction: float = VAL_SHARE, **shared: Any) -> None:
        super().__init__(regime, val_fraction=val_fraction, **shared)

    @classmethod
    def regime_family(cls, regime: str) -> str:
        """One family: the regimes are made of the same labels and the same split, so that columns are paired."""
        return cls.name

    def assembled(self, x: Tensor, labels: Tensor, split: ItemSplit, n_classes: int, **fields: Any) -> CrowdData:
        """The data of a whole table of items under the regime.

        Args:
            x: all items ``[N, ...]``.
            labels: each annotator's labels of all items ``[N, R]``, -1 where there is none.
            split: which items are tested.
            n_classes: C.
            fields: further fields of :class:`CrowdData`.
        """
        noted = Annotations.from_dense(labels[split.learn], n_classes)
        return CrowdData(
            x=x[split.learn],
            annotations=self.thinned(noted, split.val_items),
            true_labels=None,
            test_x=x[split.test],
            test_labels=None,
            test_annotations=Annotations.from_dense(labels[split.test], n_classes),
            val_items=split.val_items,
            **fields,
        )

    def thinned(self, noted: Annotations, val_items: Tensor | None) -> Annotations:
        """Without the share of the training items' labels that the regime deletes."""
        share = regime_share(self.regime)
        if share is None:
            return noted
        train_items, _ = self.split(noted.n_items, val_items)
        trained = torch.zeros(noted.n_items, dtype=torch.bool)
        trained[train_items] = True
        kept = noted.select(trained).drop(share, derive_seed(seed=self.annotation_seed, purpose="deleted labels"))
        others = noted.select(~trained)
        return replace(
            noted,
            items=torch.cat([kept.items, others.items]),
            annotators=torch.cat([kept.annotators, others.annotators]),
            labels=torch.cat([kept.labels, others.labels]),
        )
