"""Tables of votes: how many people gave each class to each item, checked, listed, drawn from and cut to a budget.

Everything works on whole tables on the device of the votes. CPU and GPU have streams of their own: bits are
repeated on one kind of device.

>>> votes = torch.tensor([[3, 0, 1], [0, 2, 0]])
>>> budget_votes(votes, 3, seed=0).sum(1).tolist()
[3, 2]
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from datamodules.seeds import derive_seed

#: bits of a number that holds a vote's item, random key and class, and the most that a key takes of them;
#: two votes of one item with equal keys, whose order is not random, are too rare to matter
_BITS = 62
_MOST_KEY_BITS = 40


class VoteError(ValueError):
    """Votes that are none, or a budget that they do not allow; the message says where and what to do."""


class VoteLists(NamedTuple):
    """Every item's votes as a list, item after item.

    Attributes:
        classes: class ids ``[V]`` int64 of all votes, an item's beside each other.
        starts: where each item's list begins, ``[N]`` int64.
        counts: votes of each item, ``[N]`` int64.
    """

    classes: Tensor
    starts: Tensor
    counts: Tensor

    def entry(self, epoch: int) -> Tensor:
        """Class ids ``[N]`` of entry ``epoch mod m`` of each item's list of m votes."""
        return self.classes[self.starts + epoch % self.counts]


def check_votes(votes: Tensor) -> None:
    """VoteError unless ``votes`` are ``[N, C]`` integers, none negative, at least one an item."""
    if votes.ndim != 2:
        raise VoteError(f"votes have shape {tuple(votes.shape)}; [items, classes] is needed")
    if votes.is_floating_point() or votes.is_complex() or votes.dtype == torch.bool:
        raise VoteError(_not_integers(votes))
    negative = (votes < 0).any(dim=1)
    if bool(negative.any()):
        row = int(negative.nonzero()[0])
        raise VoteError(f"votes of row {row} are {votes[row].tolist()}: a count is negative; give counts from 0 up")
    without = votes.sum(dim=1) == 0
    if bool(without.any()):
        row, n_without = int(without.nonzero()[0]), int(without.sum())
        raise VoteError(f"row {row} has no votes (in all {n_without} of {len(votes)} rows); leave out such items")


def _not_integers(votes: Tensor) -> str:
    what = f"votes are {str(votes.dtype).removeprefix('torch.')}"
    if votes.is_floating_point():
        broken = (votes != votes.floor()).any(dim=1).nonzero()
        if len(broken):
            row = int(broken[0])
            return f"{what}, and row {row} holds {votes[row].tolist()}; give counts, not frequencies"
    return f"{what}; whole counts are needed from row 0 on: pass votes.long()"


# --- votes one by one -------------------------------------------------------------------------


def shuffled_lists(votes: Tensor, generator: torch.Generator) -> VoteLists:
    """Lists in random order: one sort of numbers that hold item, random key and class, from high to low bits."""
    n_items, n_classes = votes.shape
    class_bits = max(0, n_classes - 1).bit_length()
    key_bits = min(_MOST_KEY_BITS, _BITS - class_bits - max(0, n_items - 1).bit_length())
    cells = torch.arange(votes.numel(), device=votes.device).repeat_interleave(votes.flatten())
    numbers = torch.randint(1 << key_bits, cells.shape, generator=generator, device=votes.device)
    items = cells // max(1, n_classes)
    classes = cells.sub_(items, alpha=n_classes)
    numbers.add_(items.bitwise_left_shift_(key_bits)).bitwise_left_shift_(class_bits).add_(classes)
    counts = votes.sum(dim=1)
    return VoteLists(_sorted(numbers).bitwise_and_((1 << class_bits) - 1), counts.cumsum(0) - counts, counts)


def _sorted(numbers: Tensor) -> Tensor:
    """``numbers`` ``[V]`` put in order. On the CPU numpy's vectorised sort takes a fraction of torch's time."""
    if numbers.device.type != "cpu":
        return numbers.sort().values
    numbers.numpy().sort()
    return numbers


def _class_of_vote(votes: Tensor, numbers: Tensor) -> Tensor:
    """Class ids ``[N, K]`` of the votes with ``numbers`` ``[N, K]``, where an item's votes are numbered by class."""
    return torch.searchsorted(votes.cumsum(dim=1), numbers, right=True)


def drawn_classes(votes: Tensor, n_draws: int, generator: torch.Generator) -> Tensor:
    """Class ids ``[N, n_draws]`` of votes drawn with replacement: exactly the frequencies, no rounding."""
    shape = (len(votes), n_draws)
    uniform = torch.rand(shape, generator=generator, device=votes.device, dtype=torch.float64)
    counts = votes.sum(dim=1, keepdim=True)
    # a product that rounds up to the count would be no vote's number
    return _class_of_vote(votes, (uniform * counts).long().minimum(counts - 1))


# --- fewer votes ------------------------------------------------------------------------------


def budget_votes(votes: Tensor, k: int, seed: int, replacement: bool = False) -> Tensor:
    """``k`` of each item's votes, drawn at random: the regime ``votes=k``.

    Without replacement an item with fewer votes keeps all, and with one seed what a smaller budget keeps is
    part of what a larger one keeps. One draw per seed, whatever is trained on it, keeps comparisons paired.

    Args:
        votes: integers ``[N, C]``, at least one vote an item.
        k: votes to keep an item, at least 1.
        seed: seed of the draw.
        replacement: every item gets exactly ``k`` votes drawn from its frequencies.

    Returns:
        Votes ``[N, C]`` int64 on the same device.

    Raises:
        VoteError: (a ValueError) for votes that :func:`check_votes` refuses, ``k`` below 1, or ``k`` above every item's
            number of votes without replacement, which would be no budget at all.
    """
    check_votes(votes)
    if k < 1:
        raise VoteError(f"k is {k}; a budget is at least 1 vote an item")
    votes = votes.long()
    most = int(votes.sum(dim=1).max()) if len(votes) else k
    if k > most and not replacement:
        raise VoteError(
            f"k is {k}, but no item has more than {most} votes; take k up to {most}, or all votes as they are"
        )
    kept = _with_replacement(votes, k, seed) if replacement else _without_replacement(votes, k, seed)
    # scattered into items x classes
    return torch.bincount(kept, minlength=votes.numel()).view(votes.shape)


def _without_replacement(votes: Tensor, k: int, seed: int) -> Tensor:
    """Cells (item x C + class) of the first ``k`` votes of every item's shuffled list."""
    lists = shuffled_lists(votes, _generator(votes, seed, "budget"))
    owners = torch.arange(len(votes), device=votes.device).repeat_interleave(lists.counts)
    places = torch.arange(len(owners), device=votes.device) - lists.starts[owners]
    return (owners * votes.shape[1] + lists.classes)[places < k]


def _with_replacement(votes: Tensor, k: int, seed: int) -> Tensor:
    """Cells (item x C + class) of ``k`` votes drawn anew for every item."""
    classes = drawn_classes(votes, k, _generator(votes, seed, "budget with replacement"))
    rows = torch.arange(len(votes), device=votes.device).unsqueeze(1)
    return (rows * votes.shape[1] + classes).flatten()


def _generator(votes: Tensor, seed: int, purpose: str) -> torch.Generator:
    """The generator, on the votes' device, of one purpose."""
    derived = derive_seed(purpose=f"votes: {purpose}", seed=seed)
    return torch.Generator(device=votes.device).manual_seed(derived)
