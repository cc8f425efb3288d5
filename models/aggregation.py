"""Label aggregation without a network: majority vote and Dawid-Skene, on annotations of any size.

Nothing here allocates items x annotators: annotations stay triples. Few-shot tasks: :mod:`models.dawid_skene`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from datamodules.annotations import Annotations
from models.dawid_skene import dawid_skene_episodes, fit_tasks, sort_triples

__all__ = [
    "DawidSkene",
    "dawid_skene",
    "dawid_skene_episodes",
    "fit_dawid_skene",
    "majority_episodes",
    "majority_vote",
]


class DawidSkene(NamedTuple):
    """A fitted Dawid-Skene model (float64).

    Attributes:
        posteriors: probabilities ``[N, C]`` of each item's true class.
        log_prior: log-probabilities ``[C]`` of the classes.
        log_confusion: log-probabilities ``[R, C, C]`` (true class, then given label).
        log_likelihood: of all annotations, ``[steps]``, after each step.
    """

    posteriors: Tensor
    log_prior: Tensor
    log_confusion: Tensor
    log_likelihood: Tensor


def majority_vote(annotations: Annotations, seed: int = 0, *, hard: bool = False) -> Tensor:
    """Posteriors ``[N, C]`` (float64) from votes; an item without votes gets equal probabilities.

    Args:
        annotations: the annotations.
        seed: breaks ties at random; matters with ``hard`` only.
        hard: all probability on the class with most votes, instead of the fractions of the votes.
    """
    votes = annotations.votes().double()
    count = votes.sum(dim=1, keepdim=True)
    if hard:
        winner = annotations.majority(seed)
        chosen = torch.zeros_like(votes).scatter_(1, winner.clamp_min(0).unsqueeze(1), 1.0)
    else:
        chosen = votes / count.clamp_min(1)
    return torch.where(count > 0, chosen, torch.full_like(chosen, 1 / annotations.n_classes))


def majority_episodes(labels: Tensor, n_classes: int, *, hard: bool = False) -> Tensor:
    """Posteriors ``[T, N, K]`` (float64) from the votes of few-shot tasks; equal ones for an item without votes.

    Args:
        labels: class ids ``[T, N, R]``, -1 where missing.
        n_classes: K.
        hard: all probability on the class with most votes, shared by those that tie, instead of the fractions of the
            votes. Nothing is drawn, so that the order of items, annotators and classes changes nothing.
    """
    votes = torch.stack([(labels == k).sum(dim=2) for k in range(n_classes)], dim=2).double()
    if hard:
        votes = (votes == votes.amax(dim=2, keepdim=True)).double()
    count = votes.sum(dim=2, keepdim=True)
    return torch.where(count > 0, votes / count.clamp_min(1), 1 / n_classes)


def dawid_skene(
    annotations: Annotations, steps: int = 100, *, smoothing: float = 0.01, tolerance: float = 0.0
) -> Tensor:
    """Posteriors ``[N, C]`` of :func:`fit_dawid_skene`."""
    return fit_dawid_skene(annotations, steps, smoothing=smoothing, tolerance=tolerance).posteriors


def fit_dawid_skene(
    annotations: Annotations, steps: int = 100, *, smoothing: float = 0.01, tolerance: float = 0.0
) -> DawidSkene:
    """Dawid and Skene (1979) by expectation maximisation in log space, started from vote fractions.

    Args:
        annotations: the annotations; an item without any ends with the prior as its posterior.
        steps: EM steps (M-step, then E-step).
        smoothing: pseudo-count added to every entry of every confusion matrix. With 0, an annotator who
            never gave some label makes it impossible for every item of theirs.
        tolerance: stops when the log-likelihood per annotation rises by less; 0: all steps are made.

    Raises:
        ValueError: if ``steps`` is below 1 or ``smoothing`` is negative.
    """
    sizes = (1, annotations.n_items, annotations.n_annotators, annotations.n_classes)
    triples = sort_triples(annotations.items, annotations.annotators, annotations.labels, sizes)
    fit = fit_tasks(triples, steps, smoothing, tolerance=tolerance)
    return DawidSkene(*(part.squeeze(0) for part in fit))
