"""Which label an item is trained on in an epoch, given its votes: pure functions on tensors.

Gheibi and Ghazizadeh, Same Target, Different Basins: Hard vs. Soft Labels for Annotator Distributions
(arXiv 2605.20642). With votes ``c[i]``, their number ``m[i]``, frequencies ``p[i] = c[i] / m[i]`` and
``q = softmax(z)``, hard delivery has the soft loss and the soft gradient in expectation (its Proposition 1):

    E[-log q_y] = H(p, q),    E[q - e_y] = q - p,    Cov[q - e_y] = Diag(p) - p p'

Everything is drawn on the device of the votes by generators of its own, so nothing that runs before or
beside it changes a label. CPU and GPU have streams of their own: bits are repeated on one kind of device.

>>> votes = torch.tensor([[3, 0, 1], [0, 2, 0]])
>>> deliver("soft", votes, epoch=0, seed=0).tolist()
[[0.75, 0.0, 0.25], [0.0, 1.0, 0.0]]
>>> sorted(int(deliver("multipass", votes, epoch, seed=0)[0]) for epoch in range(4))
[0, 0, 0, 2]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from datamodules.names import UnknownName, unknown_name
from datamodules.seeds import derive_seed

#: delivery -> what an item is trained on
DELIVERIES: Mapping[str, str] = {
    "majority": "the class with most votes, the same in every epoch; ties are broken at random by the seed",
    "soft": "the frequencies of the votes",
    "multipass": "one vote after the other, in an order shuffled once, from the start again after the last",
    "deterministic": "multipass in another order: the control that shows whether the order matters",
    "sls": "stochastic label sampling: a class drawn from the frequencies, anew in every epoch",
    "shuffled_sls": "sls with the items' votes dealt to other items: the control that breaks the pairing",
    "stale(E)": "sls whose drawn class is kept for E epochs, e.g. stale(5)",
}

#: bits of a number that holds a vote's item, random key and class, and the most that a key takes of them;
#: two votes of one item with equal keys, whose order is not random, are too rare to matter
_BITS = 62
_MOST_KEY_BITS = 40


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


def deliver(name: str, votes: Tensor, epoch: int, seed: int) -> Tensor:
    """What each item is trained on in one epoch.

    Depends on the arguments alone. Nothing loops over items; the one costly step is the shuffle of all
    votes, which ``multipass`` and ``deterministic`` repeat at each call (a caller with many epochs keeps
    :func:`vote_lists` and asks it for each epoch's entry).

    Args:
        name: one of :data:`DELIVERIES`, with a whole number of epochs for E in ``stale(E)``.
        votes: votes per item and class ``[N, C]``, integers, at least one an item.
        epoch: number of the epoch, from 0.
        seed: seed of the run; each delivery derives its own generators from it.

    Returns:
        Class ids ``[N]`` int64, for ``soft`` probabilities ``[N, C]`` float32, on the votes' device.

    Raises:
        ValueError: for an unknown name, a negative epoch, votes that are not integers, a negative count or an
            item without votes; it names the row.
    """
    kind, kept = parse_delivery(name)
    check_votes(votes)
    if epoch < 0:
        raise ValueError(f"epoch is {epoch}; epochs count from 0")
    return _BY_NAME[kind](votes.long(), epoch // kept, seed)


def parse_delivery(name: str) -> tuple[str, int]:
    """The kind of a delivery and for how many epochs a drawn label is kept.

    Raises:
        UnknownName: for a name that does not exist; it lists near ones.
        ValueError: if E of ``stale(E)`` is not a whole number of at least 1.

    >>> parse_delivery("stale(5)"), parse_delivery("multipass")
    (('sls', 5), ('multipass', 1))
    """
    if name in _BY_NAME:
        return name, 1
    stale = re.fullmatch(r"stale(?:\((.*)\))?", name)
    if stale is None:
        raise UnknownName(unknown_name("delivery", name, DELIVERIES))
    epochs = stale[1] or ""
    if not (epochs.isascii() and epochs.isdecimal() and int(epochs) >= 1):
        raise ValueError(f"delivery {name!r}: say for how many epochs a label is kept, at least 1, e.g. 'stale(5)'")
    return "sls", int(epochs)


def check_votes(votes: Tensor) -> None:
    """ValueError unless ``votes`` are ``[N, C]`` integers, none negative, at least one an item."""
    if votes.ndim != 2:
        raise ValueError(f"votes have shape {tuple(votes.shape)}; [items, classes] is needed")
    if votes.is_floating_point() or votes.is_complex() or votes.dtype == torch.bool:
        raise ValueError(_not_integers(votes))
    negative = (votes < 0).any(dim=1)
    if bool(negative.any()):
        row = int(negative.nonzero()[0])
        raise ValueError(f"votes of row {row} are {votes[row].tolist()}: a count is negative; give counts from 0 up")
    without = votes.sum(dim=1) == 0
    if bool(without.any()):
        row, n_without = int(without.nonzero()[0]), int(without.sum())
        raise ValueError(f"row {row} has no votes (in all {n_without} of {len(votes)} rows); leave out such items")


def _not_integers(votes: Tensor) -> str:
    what = f"votes are {str(votes.dtype).removeprefix('torch.')}"
    if votes.is_floating_point():
        broken = (votes != votes.floor()).any(dim=1).nonzero()
        if len(broken):
            row = int(broken[0])
            return f"{what}, and row {row} holds {votes[row].tolist()}; give counts, not frequencies"
    return f"{what}; whole counts are needed from row 0 on: pass votes.long()"


# --- votes one by one -------------------------------------------------------------------------


def vote_lists(votes: Tensor, seed: int, delivery: str = "multipass") -> VoteLists:
    """Every item's votes ``[N, C]`` expanded into a list and shuffled once.

    Memory and time grow with the number of votes, not with items x the longest list.

    Args:
        votes: integers ``[N, C]``, at least one vote an item.
        seed: seed of the run.
        delivery: whose order it is, ``multipass`` or ``deterministic``.
    """
    return _shuffled_lists(votes, _generator(votes, seed, f"{delivery} order"))


def _shuffled_lists(votes: Tensor, generator: torch.Generator) -> VoteLists:
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


def _drawn(votes: Tensor, n_draws: int, generator: torch.Generator) -> Tensor:
    """Class ids ``[N, n_draws]`` of votes drawn with replacement: exactly the frequencies, no rounding."""
    shape = (len(votes), n_draws)
    uniform = torch.rand(shape, generator=generator, device=votes.device, dtype=torch.float64)
    counts = votes.sum(dim=1, keepdim=True)
    # a product that rounds up to the count would be no vote's number
    return _class_of_vote(votes, (uniform * counts).long().minimum(counts - 1))


def _generator(votes: Tensor, seed: int, purpose: str, epoch: int = 0) -> torch.Generator:
    """The generator, on the votes' device, of one purpose in one epoch."""
    derived = derive_seed(purpose=f"label delivery: {purpose}", seed=seed, epoch=epoch)
    return torch.Generator(device=votes.device).manual_seed(derived)


# --- deliveries: (votes [N, C], epoch, seed) -> labels ----------------------------------------


def _majority(votes: Tensor, epoch: int, seed: int) -> Tensor:
    generator = _generator(votes, seed, "majority ties")
    noise = torch.rand(votes.shape, generator=generator, device=votes.device, dtype=torch.float64)
    # noise below one vote decides between equal counts and nothing else
    return (votes + noise).argmax(dim=1)


def _soft(votes: Tensor, epoch: int, seed: int) -> Tensor:
    return (votes.double() / votes.sum(dim=1, keepdim=True)).float()


def _multipass(votes: Tensor, epoch: int, seed: int) -> Tensor:
    return vote_lists(votes, seed).entry(epoch)


def _deterministic(votes: Tensor, epoch: int, seed: int) -> Tensor:
    return vote_lists(votes, seed, "deterministic").entry(epoch)


def _sls(votes: Tensor, epoch: int, seed: int) -> Tensor:
    return _drawn(votes, 1, _generator(votes, seed, "sls", epoch)).squeeze(1)


def _shuffled_sls(votes: Tensor, epoch: int, seed: int) -> Tensor:
    """The labels that ``sls`` draws, dealt to the items by one permutation for all epochs.

    That is sls on permuted frequencies, and it keeps the histogram of sls's labels exactly.
    """
    generator = _generator(votes, seed, "shuffled_sls items")
    dealt = torch.randperm(len(votes), generator=generator, device=votes.device)
    return _sls(votes, epoch, seed)[dealt]


_BY_NAME: Mapping[str, Callable[[Tensor, int, int], Tensor]] = {
    "majority": _majority,
    "soft": _soft,
    "multipass": _multipass,
    "deterministic": _deterministic,
    "sls": _sls,
    "shuffled_sls": _shuffled_sls,
}


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
        ValueError: for votes that :func:`check_votes` refuses, ``k`` below 1, or ``k`` above every item's
            number of votes without replacement, which would be no budget at all.
    """
    check_votes(votes)
    if k < 1:
        raise ValueError(f"k is {k}; a budget is at least 1 vote an item")
    votes = votes.long()
    most = int(votes.sum(dim=1).max()) if len(votes) else k
    if k > most and not replacement:
        raise ValueError(
            f"k is {k}, but no item has more than {most} votes; take k up to {most}, or all votes as they are"
        )
    kept = _with_replacement(votes, k, seed) if replacement else _without_replacement(votes, k, seed)
    # scattered into items x classes
    return torch.bincount(kept, minlength=votes.numel()).view(votes.shape)


def _without_replacement(votes: Tensor, k: int, seed: int) -> Tensor:
    """Cells (item x C + class) of the first ``k`` votes of every item's shuffled list."""
    lists = _shuffled_lists(votes, _generator(votes, seed, "budget"))
    owners = torch.arange(len(votes), device=votes.device).repeat_interleave(lists.counts)
    places = torch.arange(len(owners), device=votes.device) - lists.starts[owners]
    return (owners * votes.shape[1] + lists.classes)[places < k]


def _with_replacement(votes: Tensor, k: int, seed: int) -> Tensor:
    """Cells (item x C + class) of ``k`` votes drawn anew for every item."""
    classes = _drawn(votes, k, _generator(votes, seed, "budget with replacement"))
    rows = torch.arange(len(votes), device=votes.device).unsqueeze(1)
    return (rows * votes.shape[1] + classes).flatten()
