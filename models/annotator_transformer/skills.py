"""Skills of annotators: smoothed agreement with a reference label, and consensus of the most skilled.

Source: the report's section on annotator skill and the released code; see ``card.md``. Names in code and
paper: ``alpha``, ``beta`` (prior), ``correct`` (c_j), ``total`` (t_j).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def smoothed_skill(correct: Tensor, total: Tensor, alpha: float, beta: float) -> Tensor:
    """Posterior mean of an annotator's accuracy under a Beta(alpha, beta) prior.

    ``skill_j = (alpha + c_j) / (alpha + beta + t_j)``

    Args:
        correct: how many of each annotator's labels agree with the reference ``[R]``.
        total: how many labels each annotator gave ``[R]``.
        alpha: pseudo-count of labels that agree.
        beta: pseudo-count of labels that don't.

    Returns:
        Skills ``[R]`` in [0, 1], float32; the prior mean for an annotator without labels.
    """
    return ((alpha + correct.double()) / (alpha + beta + total.double())).float()


def agreement_counts(annotators: Tensor, labels: Tensor, reference: Tensor, n_annotators: int) -> tuple[Tensor, Tensor]:
    """Counts of each annotator's labels that agree with a reference, and of all that can be compared.

    Args:
        annotators: ids of any shape, -1 where padded.
        labels: given labels of the same shape, -1 where missing.
        reference: reference labels of the same shape, -1 where there is none (then not counted).
        n_annotators: R.

    Returns:
        ``correct [R]`` and ``total [R]``, int64.
    """
    comparable = (annotators >= 0) & (labels >= 0) & (reference >= 0)
    correct = torch.bincount(annotators[comparable & (labels == reference)], minlength=n_annotators)
    return correct, torch.bincount(annotators[comparable], minlength=n_annotators)


def most_skilled(skill: Tensor, count: int) -> Tensor:
    """Ids of the ``count`` most skilled annotators, best first; equal skills in order of their ids."""
    order = torch.sort(skill, descending=True, stable=True).indices
    return order[: max(1, min(count, len(order)))]


def vote_counts(log_probabilities: Tensor) -> Tensor:
    """Votes ``[B, C]`` of K annotators, each for the likeliest class in ``log_probabilities [B, K, C]``."""
    n_classes = log_probabilities.shape[-1]
    winners = log_probabilities.argmax(dim=-1)
    votes = torch.zeros(len(winners), n_classes, device=winners.device)
    return votes.scatter_add_(1, winners, torch.ones_like(winners, dtype=votes.dtype))


def vote_consensus(log_probabilities: Tensor) -> Tensor:
    """Consensus of K annotators' predictions by vote, as log-probabilities.

    The released rule is the argmax of the vote counts. Here the mean probability joins as one more vote:
    ``(votes + mean probability) / (K + 1)``. It never overturns a majority (a class with fewer votes would
    need a mean probability larger by 1), it decides ties, and it leaves no class at probability 0.

    Args:
        log_probabilities: predictions ``[B, K, C]``.

    Returns:
        Log-probabilities ``[B, C]``.
    """
    mean = log_probabilities.exp().mean(dim=1)
    share = (vote_counts(log_probabilities) + mean) / (log_probabilities.shape[1] + 1)
    return share.clamp_min(torch.finfo(share.dtype).tiny).log()


def mean_consensus(log_probabilities: Tensor) -> Tensor:
    """Log-probabilities ``[B, C]`` of K annotators' mean probability, from ``[B, K, C]``."""
    return log_probabilities.logsumexp(dim=1) - math.log(log_probabilities.shape[1])
