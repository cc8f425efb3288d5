"""Label aggregation without a network: majority vote and Dawid-Skene, on annotations of any size.

Nothing here allocates items x annotators: annotations stay triples, sums are scattered.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from datamodules.annotations import Annotations

#: counts and priors are kept above this before a logarithm is taken (crowd-kit's value)
SMALLEST = 1e-10


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
    if steps < 1 or smoothing < 0:
        raise ValueError(f"steps is {steps} and smoothing {smoothing}; at least 1 and 0 are needed")
    posteriors = majority_vote(annotations)
    annotated = torch.zeros(annotations.n_items, dtype=torch.bool)
    annotated[annotations.items] = True
    likelihoods: list[Tensor] = []
    for _ in range(steps):
        log_prior, log_confusion = _maximise(annotations, posteriors, annotated, smoothing)
        posteriors, likelihood = _expect(annotations, log_prior, log_confusion)
        likelihoods.append(likelihood)
        if _has_settled(likelihoods, tolerance * max(1, len(annotations.items))):
            break
    return DawidSkene(posteriors, log_prior, log_confusion, torch.stack(likelihoods))


def _has_settled(likelihoods: list[Tensor], smallest_rise: float) -> bool:
    if smallest_rise <= 0 or len(likelihoods) < 2:
        return False
    return bool(likelihoods[-1] - likelihoods[-2] < smallest_rise)


def _maximise(
    annotations: Annotations, posteriors: Tensor, annotated: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """M-step: log-prior ``[C]`` and log-confusions ``[R, C, C]`` from posteriors ``[N, C]``."""
    n_classes, n_annotators = annotations.n_classes, annotations.n_annotators
    given = annotations.annotators * n_classes + annotations.labels
    counts = posteriors.new_zeros(n_annotators * n_classes, n_classes)
    counts.index_add_(0, given, posteriors[annotations.items])
    counts = counts.view(n_annotators, n_classes, n_classes).transpose(1, 2) + smoothing
    counts = counts.clamp_min(SMALLEST)
    confusion = counts / counts.sum(dim=2, keepdim=True)
    prior = posteriors[annotated].sum(dim=0) / annotated.sum().clamp_min(1)
    return prior.clamp_min(SMALLEST).log(), confusion.log()


def _expect(annotations: Annotations, log_prior: Tensor, log_confusion: Tensor) -> tuple[Tensor, Tensor]:
    """E-step: posteriors ``[N, C]`` and the log-likelihood of all annotations."""
    joint = log_prior.repeat(annotations.n_items, 1)
    joint.index_add_(0, annotations.items, log_confusion[annotations.annotators, :, annotations.labels])
    evidence = joint.logsumexp(dim=1, keepdim=True)
    return (joint - evidence).exp(), evidence.sum()
