"""Annotations: the one representation of crowd labels.

A table of (item, annotator, label) triples as integer tensors; an annotation that was never made is absent.
Every view is computed from the triples without a loop over them, and none allocates
items x annotators x classes: CIFAR-10H alone (10,000 x 2,571 x 10) would take 2 GB for 511,000 votes.

>>> noted = Annotations([0, 0, 2], [0, 1, 1], [1, 1, 0], n_items=3, n_annotators=2, n_classes=2)
>>> noted.votes().tolist()
[[0, 2], [0, 0], [1, 0]]
>>> noted.majority(seed=0).tolist()
[1, -1, 0]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from datamodules.table import AnnotationError, check_triples, read_table

__all__ = ["AnnotationError", "Annotations"]

#: cells (items x annotators) above which :meth:`Annotations.dense` refuses: 80 MB as int64
DENSE_LIMIT = 10_000_000
#: rounds of swaps in :meth:`Annotations.permute_annotators`; each round offers every annotation a swap
PERMUTE_ROUNDS = 8


@dataclass(frozen=True, eq=False)
class Annotations:
    """Crowd labels as triples, ordered by item and then by annotator (whatever order they came in).

    The order is part of the contract: two tables with the same triples are the same to the last bit. The
    tensors are shared between views; never write to them.

    Attributes:
        items: item ids ``[n]`` int64, in ``[0, n_items)``, ascending.
        annotators: annotator ids ``[n]`` int64, in ``[0, n_annotators)``.
        labels: class ids ``[n]`` int64, in ``[0, n_classes)``.
        n_items: number of items N, those without labels included.
        n_annotators: number of annotators R, those without labels included.
        n_classes: number of classes C, those never voted for included.
        item_ids: the items' ids in the table they were read from, else None.
        annotator_ids: the annotators' ids likewise.
        class_ids: the classes' names or numbers likewise.

    Raises:
        AnnotationError: (a ValueError) for an id or label out of range, a repeated (item, annotator), tensors
            of different lengths; it names the row.
    """

    items: Tensor
    annotators: Tensor
    labels: Tensor
    n_items: int
    n_annotators: int
    n_classes: int
    item_ids: tuple[Any, ...] | None = None
    annotator_ids: tuple[Any, ...] | None = None
    class_ids: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        checked = check_triples(
            self.items, self.annotators, self.labels, self.n_items, self.n_annotators, self.n_classes
        )
        for name, tensor in zip(("items", "annotators", "labels"), checked, strict=True):
            object.__setattr__(self, name, tensor)

    def __len__(self) -> int:
        """Number of annotations."""
        return len(self.labels)

    def __repr__(self) -> str:
        return (
            f"Annotations({len(self)} labels of {self.n_items} items by {self.n_annotators} annotators, "
            f"{self.n_classes} classes)"
        )

    def equals(self, other: Annotations) -> bool:
        """Whether both hold the same triples over the same numbers of items, annotators and classes."""
        sizes = (self.n_items, self.n_annotators, self.n_classes)
        return (
            sizes == (other.n_items, other.n_annotators, other.n_classes)
            and torch.equal(self.items, other.items)
            and torch.equal(self.annotators, other.annotators)
            and torch.equal(self.labels, other.labels)
        )

    # --- in and out ---------------------------------------------------------------------------

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        n_classes: int | None = None,
        classes: Sequence[Any] | None = None,
        items: Sequence[Any] | None = None,
        annotators: Sequence[Any] | None = None,
    ) -> Annotations:
        """Reads a table with the columns ``task``, ``worker`` and ``label``, as crowd-kit has them.

        Ids may be strings or any integers, gaps included; they are numbered in sorted order, or in the order
        of ``items`` and ``annotators`` where those are given (then those without a row are kept).

        Args:
            frame: one row an annotation; further columns are ignored.
            n_classes: number of classes where labels are the integers 0..C-1; default: the largest plus one.
            classes: the classes in order, where labels are names or other numbers; classes without a vote are
                kept. Default for text labels: those that occur, sorted.
            items: every item's id, in order.
            annotators: every annotator's id, in order.

        Raises:
            AnnotationError: for a missing column, a missing value, an unknown class or id, a label out of
                range, or a repeated (task, worker); it names the row.
        """
        return cls(**read_table(frame, n_classes, classes, items, annotators))

    def to_frame(self) -> pd.DataFrame:
        """A table with the columns ``task``, ``worker``, ``label``; original ids where there are any."""

        def original(numbers: Tensor, ids: tuple[Any, ...] | None) -> Any:
            values = numbers.numpy()
            return values.copy() if ids is None else pd.Series(list(ids)).to_numpy()[values]

        return pd.DataFrame(
            {
                "task": original(self.items, self.item_ids),
                "worker": original(self.annotators, self.annotator_ids),
                "label": original(self.labels, self.class_ids),
            }
        )

    @classmethod
    def from_dense(cls, matrix: Tensor, n_classes: int) -> Annotations:
        """Annotations from labels ``[N, R]``, -1 where an annotator did not label an item."""
        items, annotators = (matrix != -1).nonzero(as_tuple=True)
        n_items, n_annotators = matrix.shape
        return cls(items, annotators, matrix[items, annotators], n_items, n_annotators, n_classes)

    @classmethod
    def from_padded(cls, annotators: Tensor, labels: Tensor, n_annotators: int, n_classes: int) -> Annotations:
        """Annotations from annotator ids ``[N, K]`` and their labels ``[N, K]``, both -1 in empty places.

        Raises:
            AnnotationError: if the shapes differ, or one of the two is -1 where the other is not.
        """
        if annotators.shape != labels.shape:
            raise AnnotationError(
                f"annotators have shape {tuple(annotators.shape)}, labels {tuple(labels.shape)}; "
                "give a label with every annotator"
            )
        present = labels != -1
        uneven = (present != (annotators != -1)).nonzero()
        if len(uneven):
            row = int(uneven[0, 0])
            raise AnnotationError(f"row {row}: an annotator without a label, or the reverse; use -1 in both")
        items, _ = present.nonzero(as_tuple=True)
        return cls(items, annotators[present], labels[present], len(labels), n_annotators, n_classes)

    # --- views --------------------------------------------------------------------------------

    def dense(self, max_cells: int = DENSE_LIMIT) -> Tensor:
        """Labels ``[N, R]`` int64, -1 where an annotator did not label an item.

        Raises:
            ValueError: if items x annotators is above ``max_cells``.
        """
        cells = self.n_items * self.n_annotators
        if cells > max_cells:
            raise ValueError(
                f"a dense view of {self.n_items} items x {self.n_annotators} annotators has {cells:,} cells, "
                f"above the limit of {max_cells:,}; use padded() or votes(), or raise max_cells"
            )
        matrix = torch.full((self.n_items, self.n_annotators), -1)
        matrix[self.items, self.annotators] = self.labels
        return matrix

    def padded(self) -> tuple[Tensor, Tensor]:
        """Annotator ids ``[N, K]`` and labels ``[N, K]`` int64, -1 in empty places; computed once.

        K is the largest number of labels of an item, at least 1. An item's annotators are in ascending order.
        """
        return self._padded

    @cached_property
    def _padded(self) -> tuple[Tensor, Tensor]:
        counts = self.labels_per_item()
        width = max(1, int(counts.max())) if self.n_items else 1
        slots = self._rank_within_item()
        annotators = torch.full((self.n_items, width), -1)
        labels = torch.full((self.n_items, width), -1)
        annotators[self.items, slots] = self.annotators
        labels[self.items, slots] = self.labels
        return annotators, labels

    def votes(self) -> Tensor:
        """How many annotators gave each class to each item ``[N, C]`` int64."""
        cell = self.items * self.n_classes + self.labels
        counts = torch.bincount(cell, minlength=self.n_items * self.n_classes)
        return counts.reshape(self.n_items, self.n_classes)

    def labels_per_item(self) -> Tensor:
        """Number of annotations of each item ``[N]`` int64."""
        return torch.bincount(self.items, minlength=self.n_items)

    def labels_per_annotator(self) -> Tensor:
        """Number of annotations by each annotator ``[R]`` int64."""
        return torch.bincount(self.annotators, minlength=self.n_annotators)

    def majority(self, seed: int) -> Tensor:
        """The most frequent label of each item ``[N]`` int64; -1 without a vote.

        Ties are broken at random by ``seed``, each item's on its own.
        """
        votes = self.votes()
        # noise below one vote decides between equal counts and nothing else
        noise = torch.rand(votes.shape, generator=_generator(seed), dtype=torch.float64)
        winner = (votes + noise).argmax(dim=1)
        return torch.where(votes.sum(dim=1) > 0, winner, -1)

    # --- other annotations of the same items --------------------------------------------------

    def select(self, items: Tensor) -> Annotations:
        """Only the annotations of ``items`` (ids, or a boolean mask ``[N]``); numbering and sizes stay."""
        if items.dtype == torch.bool:
            if len(items) != self.n_items:
                raise ValueError(f"a mask of {len(items)} for {self.n_items} items; give one value an item")
            items = items.nonzero().flatten()
        outside = items[(items < 0) | (items >= self.n_items)]
        if len(outside):
            raise ValueError(f"no item {int(outside[0])}; select from items 0 to {self.n_items - 1}")
        wanted = torch.zeros(self.n_items, dtype=torch.bool)
        wanted[items] = True
        return self._keep(wanted[self.items])

    def drop(self, rate: float, seed: int) -> Annotations:
        """Without a share ``rate`` in [0, 1] of all annotations, chosen at random by ``seed``.

        The number dropped is the nearest whole one. With one seed, what a higher rate keeps is part of what a
        lower rate keeps.
        """
        if not 0 <= rate <= 1:
            raise ValueError(f"rate is {rate}; the share of annotations to drop must lie between 0 and 1")
        order = torch.randperm(len(self), generator=_generator(seed))
        kept = torch.ones(len(self), dtype=torch.bool)
        kept[order[: round(rate * len(self))]] = False
        return self._keep(kept)

    def budget(self, k: int, seed: int) -> Annotations:
        """At most ``k`` annotations an item, chosen at random by ``seed``; items with fewer keep all.

        With one seed, what a smaller budget keeps is part of what a larger budget keeps.
        """
        if k < 0:
            raise ValueError(f"k is {k}; a budget is 0 or more annotations an item")
        return self._keep(self._rank_within_item(self._shuffled_within_items(_generator(seed))) < k)

    def permute_annotators(self, seed: int) -> Annotations:
        """A control: the same labels on the same items, every annotator as busy as before, no identity.

        Annotator ids change places among annotations. A plain shuffle would let one annotator label an item
        twice, and redrawing the clashes need not end in a dense table. So it is a chain of exchanges that
        never leaves the valid tables: in each round ids are first shuffled within every item (always valid;
        all that is possible where everyone labels everything), then the annotations are paired at random and
        each pair exchanges ids unless an item would get an annotator twice. Each annotator's number of labels
        stays exactly what it was.
        """
        generator = _generator(seed)
        annotators = self.annotators
        for _ in range(PERMUTE_ROUNDS):
            annotators = annotators[self._shuffled_within_items(generator)]
            annotators = _swap_pairs(self.items, annotators, self.n_annotators, generator)
        return replace(self, annotators=annotators)

    # --- within -------------------------------------------------------------------------------

    def _keep(self, kept: Tensor) -> Annotations:
        return replace(self, items=self.items[kept], annotators=self.annotators[kept], labels=self.labels[kept])

    def _shuffled_within_items(self, generator: torch.Generator) -> Tensor:
        """A permutation ``[n]`` of the annotations that leaves every one at its item."""
        order = torch.randperm(len(self), generator=generator)
        return order[self.items[order].argsort(stable=True)]

    def _rank_within_item(self, order: Tensor | None = None) -> Tensor:
        """Place of each annotation among its item's ``[n]``: as stored, or in ``order`` (item by item)."""
        counts = self.labels_per_item()
        rank = torch.arange(len(self)) - (counts.cumsum(0) - counts)[self.items]
        if order is None:
            return rank
        return torch.empty_like(rank).scatter_(0, order, rank)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _swap_pairs(items: Tensor, annotators: Tensor, n_annotators: int, generator: torch.Generator) -> Tensor:
    """Annotator ids ``[n]`` after a round of exchanges between random pairs; no (item, annotator) repeats."""
    half = len(items) // 2
    left, right = torch.randperm(len(items), generator=generator)[: 2 * half].reshape(2, half)
    receivers, givers = torch.cat([left, right]), torch.cat([right, left])
    wanted = items[receivers] * n_annotators + annotators[givers]
    taken = torch.isin(wanted, items * n_annotators + annotators)
    _, inverse, counts = wanted.unique(return_inverse=True, return_counts=True)
    clash = taken | (counts[inverse] > 1)
    # within one item the exchanged places are each other's: nothing new is taken
    allowed = ~(clash[:half] | clash[half:]) | (items[left] == items[right])
    swapped = annotators.clone()
    swapped[left[allowed]], swapped[right[allowed]] = annotators[right[allowed]], annotators[left[allowed]]
    return swapped
