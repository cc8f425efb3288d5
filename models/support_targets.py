"""What learners without annotator models take from an annotated support set: weights of its items' classes."""

from __future__ import annotations

from torch import Tensor

from datamodules.names import unknown_name
from models.aggregation import dawid_skene_episodes, majority_episodes

#: ways to make one soft label of an item's annotations
RULES = ("majority", "majority_hard", "dawid_skene")


def support_targets(
    labels: Tensor, n_classes: int, rule: str, *, dawid_skene_steps: int = 20, smoothing: float = 0.01
) -> Tensor:
    """Weights ``[T, Ns, K]`` (float64) of each item's classes: they sum to 1, or to 0 where nobody labelled the item.

    Args:
        labels: class ids ``[T, Ns, R]``, -1 where missing.
        n_classes: K.
        rule: ``majority`` (vote fractions), ``majority_hard`` (the winners, ties shared) or ``dawid_skene``
            (posteriors).
        dawid_skene_steps: EM steps of Dawid-Skene.
        smoothing: of its confusions; see :func:`models.dawid_skene.dawid_skene_episodes`.

    Raises:
        ValueError: for an unknown ``rule`` (near names are listed).
    """
    if rule not in RULES:
        raise ValueError(unknown_name("rule", rule, RULES))
    if rule == "dawid_skene":
        found = dawid_skene_episodes(labels, n_classes, dawid_skene_steps, smoothing)
    else:
        found = majority_episodes(labels, n_classes, hard=rule == "majority_hard")
    return found * (labels >= 0).any(dim=2, keepdim=True)
