"""Annotators of few-shot tasks, drawn anew for every task, thousands of tasks at once.

The kinds are those of :mod:`datamodules.simulate`; here they are drawn as tensors, without a loop over annotators.
Kumagai et al. (arXiv 2506.10259) draw experts, hammers and spammers. How often each is right was not to be found, so
the accuracies are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from datamodules.names import unknown_name

#: kinds that can be drawn for few-shot tasks, in the order in which shares are laid out
EPISODE_KINDS = ("expert", "hammer", "pair_flipper", "class_spammer", "spammer")

Shares = Mapping[str, float]


def shares_with(expert_share: float, share: float, kind: str = "spammer") -> dict[str, float]:
    """Experts, ``share`` of ``kind``, hammers for the rest.

    Raises:
        ValueError: if a share is negative, or the two sum to more than 1.
    """
    if min(expert_share, share) < 0 or expert_share + share > 1 + 1e-9:
        raise ValueError(
            f"a share of {expert_share:g} experts and {share:g} of kind {kind!r} leaves {1 - expert_share - share:g} "
            "hammers; shares must be 0 or more and sum to at most 1"
        )
    return {"expert": expert_share, "hammer": max(0.0, 1 - expert_share - share), kind: share}


def draw_confusions(
    shares: Shares,
    n_episodes: int,
    n_annotators: int,
    n_classes: int,
    generator: torch.Generator,
    hammer_accuracy: float = 0.75,
    expert_accuracy: float = 1.0,
    flipper_accuracy: float = 0.5,
) -> Tensor:
    """How each annotator of each task answers: ``[T, R, K, K]`` float32, rows the true class, columns the answer.

    Every annotator's kind is drawn on its own. Kinds are laid out on [0, 1) in the order of :data:`EPISODE_KINDS`, so
    with equal seeds an annotator who is a spammer stays one when the share of spammers grows at the hammers' cost.

    Args:
        shares: kind -> share of the annotators; they sum to 1.
        n_episodes: T.
        n_annotators: R.
        n_classes: K, at least 2.
        generator: source of randomness; the result lies on its device.
        hammer_accuracy: probability that a hammer is right; wrong classes are equally likely.
        expert_accuracy: likewise for an expert.
        flipper_accuracy: likewise for a pair flipper, who else takes a class for one certain other.

    Raises:
        ValueError: for an unknown kind (near names are listed), shares that are negative or do not sum to 1, an
            accuracy outside [0, 1], or fewer than two classes.
    """
    accuracies = {"expert": expert_accuracy, "hammer": hammer_accuracy, "pair_flipper": flipper_accuracy}
    _check(shares, accuracies, n_classes)
    device, size = generator.device, (n_episodes, n_annotators)
    eye = torch.eye(n_classes, device=device).expand(*size, n_classes, n_classes)
    flat = torch.full_like(eye, 1 / n_classes)
    others = (1 - eye) / (n_classes - 1)
    limits = torch.tensor([shares.get(kind, 0.0) for kind in EPISODE_KINDS], device=device).cumsum(0)
    # rounding may leave the last limit below 1, and with it the highest draws to a kind that nobody is of
    limits[limits > 1 - 1e-6] = 1.0
    kinds = (torch.rand(size, generator=generator, device=device).unsqueeze(-1) >= limits).sum(-1)
    # drawn whatever the shares, so that the stream of numbers does not depend on them
    order = torch.rand(*size, n_classes, generator=generator, device=device).argsort(-1)
    matrices = {
        "expert": expert_accuracy * eye + (1 - expert_accuracy) * others,
        "hammer": hammer_accuracy * eye + (1 - hammer_accuracy) * others,
        "pair_flipper": flipper_accuracy * eye + (1 - flipper_accuracy) * _partners(order),
        "class_spammer": eye.gather(-2, order[..., :1, None].expand(*size, 1, n_classes)).expand_as(eye),
        "spammer": flat,
    }
    drawn = torch.zeros_like(eye)
    for number, kind in enumerate(EPISODE_KINDS):
        drawn = torch.where((kinds == number)[..., None, None], matrices[kind], drawn)
    return drawn


def annotate_episodes(truth: Tensor, confusions: Tensor, generator: torch.Generator) -> Tensor:
    """Answers ``[T, N, R]`` int64 of every annotator on every item, each drawn on its own.

    Args:
        truth: true classes ``[T, N]`` int64 in ``[0, K)``.
        confusions: ``[T, R, K, K]`` from :func:`draw_confusions`.
        generator: source of randomness, on the device of the two.

    Raises:
        ValueError: if the shapes do not fit, or a true class is out of range.
    """
    n_episodes, n_items = truth.shape
    if confusions.ndim != 4 or len(confusions) != n_episodes or confusions.shape[2] != confusions.shape[3]:
        raise ValueError(
            f"confusions have shape {tuple(confusions.shape)}; for classes {tuple(truth.shape)} they must be "
            f"[{n_episodes}, annotators, K, K]"
        )
    n_annotators, n_classes = confusions.shape[1:3]
    if truth.numel() and not 0 <= int(truth.min()) <= int(truth.max()) < n_classes:
        found = f"{int(truth.min())} to {int(truth.max())}"
        raise ValueError(f"true classes run from {found}; they must lie between 0 and {n_classes - 1}")
    rows = truth[:, None, :, None].expand(-1, n_annotators, -1, n_classes)
    cumulated = confusions.gather(2, rows).double().cumsum(-1)
    cumulated = cumulated / cumulated[..., -1:]  # ends at exactly 1, so that an impossible answer is never drawn
    size = (n_episodes, n_annotators, n_items, 1)
    draw = torch.rand(size, generator=generator, device=generator.device, dtype=torch.float64)
    return (draw >= cumulated).sum(-1).transpose(1, 2)


def _partners(order: Tensor) -> Tensor:
    """For random orders ``[..., K]`` of classes the matrices ``[..., K, K]`` that take each class for its partner.

    Neighbours in the order are partners; with an odd K the last is taken for the first, as in
    :func:`datamodules.simulate.confusions`.
    """
    n_classes = order.shape[-1]
    places = torch.arange(n_classes, device=order.device)
    across = places ^ 1
    across[across == n_classes] = 0
    partner = torch.empty_like(order).scatter_(-1, order, order[..., across])
    return torch.nn.functional.one_hot(partner, n_classes).to(torch.float32)


def _check(shares: Shares, accuracies: Mapping[str, float], n_classes: int) -> None:
    for kind, share in shares.items():
        if kind not in EPISODE_KINDS:
            raise ValueError(unknown_name("kind of annotator", kind, EPISODE_KINDS))
        if share < 0:
            raise ValueError(f"share of {kind} is {share:g}; it must be 0 or more")
    total = sum(shares.values())
    if abs(total - 1) > 1e-6:
        raise ValueError(f"shares of annotators sum to {total:g}; they must sum to 1")
    for kind, accuracy in accuracies.items():
        if not 0 <= accuracy <= 1:
            raise ValueError(f"accuracy of {kind} is {accuracy:g}; it must lie between 0 and 1")
    if n_classes < 2:
        raise ValueError(f"n_classes is {n_classes}; annotators need at least 2 classes to differ")
