"""A tiny data set with every awkward case in it, on which methods are checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from datamodules.annotations import Annotations
from datamodules.base import CrowdData, CrowdDataModule, DataInfo
from datamodules.loader import Source

#: annotations an item at most
LABELS_PER_ITEM = 3
#: every such item has no annotation at all
UNLABELLED_EVERY = 7


class TinyCrowd(CrowdDataModule):
    """Items of noise around one pattern a class, and annotations with gaps.

    The last annotator labels nothing, the classes between 1 and the last are never voted for, some
    items have no annotation and the others between one and three.

    Args:
        regime: ``mixed`` as above, or ``missing``: not one annotation.
        data_info: classes (three or more), annotators (two or more) and input shape.
        n_items: training items before the split.
        clean_shift: added to every clean label (modulo the classes): changes the clean labels and
            nothing that a method may read.
        expose_target: puts the clean labels under ``target`` in training and validation batches, where
            no method may look at them.
        arguments: those of :class:`~datamodules.base.CrowdDataModule`.
    """

    name = "tiny-crowd"
    regimes: ClassVar[Mapping[str, str]] = {"mixed": "gaps of every kind", "missing": "not one annotation"}
    provides: ClassVar[frozenset[str]] = frozenset({"annotator_ids", "images", "votes"})
    embedded: ClassVar[bool] = True
    standard_augmentation: ClassVar[str] = "none"

    def __init__(
        self,
        regime: str,
        *,
        data_info: DataInfo,
        n_items: int = 37,
        clean_shift: int = 0,
        expose_target: bool = False,
        **arguments: Any,
    ) -> None:
        super().__init__(regime, **arguments)
        self.data_info = data_info
        self.n_items = n_items
        self.clean_shift = clean_shift
        self.expose_target = expose_target

    def load(self) -> CrowdData:
        """Draws everything from fixed seeds."""
        generator = torch.Generator().manual_seed(self.annotation_seed)
        n_classes = self.data_info.n_classes
        classes = torch.randint(n_classes, (self.n_items + 12,), generator=generator)
        x = self._items(classes, generator)
        shifted = (classes + self.clean_shift) % n_classes
        images = x.dtype == torch.uint8
        return CrowdData(
            x=x[: self.n_items],
            annotations=self._annotations(generator),
            true_labels=shifted[: self.n_items],
            test_x=x[self.n_items :],
            test_labels=shifted[self.n_items :],
            mean=(0.5,) * self.data_info.input_shape[0] if images else None,
            std=(0.25,) * self.data_info.input_shape[0] if images else None,
        )

    def _items(self, classes: Tensor, generator: torch.Generator) -> Tensor:
        shape = self.data_info.input_shape
        patterns = torch.rand((self.data_info.n_classes, *shape), generator=generator)
        x = 0.7 * patterns[classes] + 0.3 * torch.rand((len(classes), *shape), generator=generator)
        return (255 * x).to(torch.uint8) if len(shape) == 3 else x

    def _annotations(self, generator: torch.Generator) -> Annotations:
        n_annotators, n_classes = self.data_info.n_annotators, self.data_info.n_classes
        voted = torch.tensor([0, 1, n_classes - 1])
        triples = []
        for item in range(self.n_items if self.regime == "mixed" else 0):
            if item % UNLABELLED_EVERY == 0:
                continue
            who = torch.randperm(n_annotators - 1, generator=generator)[: 1 + item % LABELS_PER_ITEM]
            what = voted[torch.randint(3, (len(who),), generator=generator)]
            triples += [(item, int(a), int(b)) for a, b in zip(who, what, strict=True)]
        columns = torch.tensor(triples, dtype=torch.int64).reshape(-1, 3)
        return Annotations(
            items=columns[:, 0].contiguous(),
            annotators=columns[:, 1].contiguous(),
            labels=columns[:, 2].contiguous(),
            n_items=self.n_items,
            n_annotators=n_annotators,
            n_classes=n_classes,
        )

    def _train_source(self) -> Source:
        source = super()._train_source()
        if self.expose_target:
            assert self.data.true_labels is not None
            source.tensors["target"] = self.data.true_labels
        return source
