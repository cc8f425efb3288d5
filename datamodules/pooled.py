"""Data whose votes are pooled: how many people gave each class to each item, and not who they were."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datamodules.annotations import Annotations
from datamodules.base import CrowdDataModule
from datamodules.regimes import regime_number
from datamodules.seeds import derive_seed
from datamodules.votes import VoteError, budget_votes


class PooledVotes(CrowdDataModule):
    """Base of data with votes and no annotator ids: the regimes ``full`` and ``votes=K``.

    The votes of an item are numbered 0, 1, ... as if by annotators, class after class. The numbers tell one vote
    from another and nothing else: "annotator" 0 of two items need not be the same person.

    Args:
        regime: ``full`` or ``votes=K``.
        replacement: draw K votes of each item with replacement, so that each has exactly K; without it, items
            with fewer than K votes keep all, and one seed's fewer votes are part of its more votes.
        val_fraction: share of the training items that are held out, with as many votes as the others.
        shared: arguments of :class:`CrowdDataModule`. One ``annotation_seed`` is one draw, whatever learns from it.

    Raises:
        UnknownName: for an unknown regime.
    """

    provides = frozenset({"images", "votes"})
    audit_regime = "full"

    def __init__(self, regime: str, *, replacement: bool = False, val_fraction: float = 0.05, **shared: Any) -> None:
        super().__init__(regime, val_fraction=val_fraction, **shared)
        self.replacement = replacement

    @classmethod
    def regime_family(cls, regime: str) -> str:
        """One family: the regimes are drawn from the same votes, so that their columns are paired."""
        return cls.name

    def budgeted(self, votes: Tensor) -> Tensor:
        """Votes ``[N, C]`` int64 under the regime, of all votes ``[N, C]``.

        Raises:
            VoteError: if no item has K votes (and they are drawn without replacement); says how many there are.
        """
        k = regime_number(self.regime)
        if k is None:
            return votes
        most = int(votes.sum(dim=1).max())
        if k > most and not self.replacement:
            raise VoteError(
                f"regime {self.regime!r} of data set {self.name!r}: K is {k}, but no item has more than {most} votes; "
                f"take K up to {most}, 'full' for all votes, or replacement=true"
            )
        seed = derive_seed(seed=self.annotation_seed, purpose="votes")
        return budget_votes(votes, k, seed, self.replacement)


def pooled_annotations(votes: Tensor) -> Annotations:
    """Votes ``[N, C]`` as annotations; an item's votes are numbered 0..m-1, class after class."""
    n_items, n_classes = votes.shape
    counts = votes.sum(dim=1)
    cells = torch.arange(votes.numel()).repeat_interleave(votes.flatten())
    items = cells // n_classes
    numbers = torch.arange(len(items)) - (counts.cumsum(0) - counts)[items]
    n_annotators = int(counts.max()) if n_items else 0
    return Annotations(items, numbers, cells % n_classes, n_items, n_annotators, n_classes)
