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

import torch
from torch import Tensor

from datamodules.names import UnknownName, unknown_name
from datamodules.seeds import derive_seed
from datamodules.votes import VoteLists, check_votes, drawn_classes, shuffled_lists

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


# --- votes one by one -------------------------------------------------------------------------


def vote_lists(votes: Tensor, seed: int, delivery: str = "multipass") -> VoteLists:
    """Every item's votes ``[N, C]`` expanded into a list and shuffled once.

    Memory and time grow with the number of votes, not with items x the longest list.

    Args:
        votes: integers ``[N, C]``, at least one vote an item.
        seed: seed of the run.
        delivery: whose order it is, ``multipass`` or ``deterministic``.
    """
    return shuffled_lists(votes, _generator(votes, seed, f"{delivery} order"))


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
    return drawn_classes(votes, 1, _generator(votes, seed, "sls", epoch)).squeeze(1)


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
