"""MaDL's maths: labels through confusions, weights of annotators, and where confusions start (Herde et al. 2023)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Gamma

#: shape and rate of the prior of the kernel's gamma; its mode, where gamma starts, is (shape - 1) / rate = 1
GAMMA_SHAPE, GAMMA_RATE = 1.25, 0.25
GAMMA_START = (GAMMA_SHAPE - 1) / GAMMA_RATE
#: gamma counts as at least this much: the prior's density is not defined at 0
_SMALLEST_GAMMA = 1e-5


def label_log_probabilities(class_logits: Tensor, confusion_logits: Tensor) -> Tensor:
    """Log of ``q^r = sum_c p_c * confusion^r[c]``, with ``p = softmax(class_logits)`` and rows softmaxed.

    Args:
        class_logits: of the true class ``[B, C]``.
        confusion_logits: ``[B, R, C, C]`` (true class, then given label); B may be 1 for confusions that no item
            changes.

    Returns:
        ``[B, R, C]``.
    """
    classes = class_logits.log_softmax(-1)[:, None, :, None]
    return (classes + confusion_logits.log_softmax(-1)).logsumexp(2)


def starting_logits(n_classes: int, eta: float) -> Tensor:
    """Confusion logits ``[C * C]`` under which every class is labelled right with probability ``eta``.

    ``log(eta (C - 1) / (1 - eta))`` on the diagonal, 0 elsewhere (equation 19).
    """
    return (math.log(eta * (n_classes - 1) / (1 - eta)) * torch.eye(n_classes)).flatten()


def annotator_weights(embeddings: Tensor, gamma: Tensor) -> Tensor:
    """Weights ``[R]`` with a mean of 1: annotators who are like many others count less (equations 21 to 23).

    ``w_r`` is proportional to ``1 / sum_s exp(-gamma ||a_r - a_s||^2)``.

    Args:
        embeddings: ``a [R, E]``.
        gamma: of the kernel, a scalar.
    """
    distances = (embeddings.unsqueeze(1) - embeddings.unsqueeze(0)).square().sum(-1)
    inverse = (-gamma.clamp_min(_SMALLEST_GAMMA) * distances).exp().sum(1).reciprocal()
    return inverse / inverse.mean()


def weighted_loss(log_probabilities: Tensor, labels: Tensor, weights: Tensor, gamma: Tensor) -> Tensor:
    """Weighted negative log-likelihood over the number of labels, minus the log-density of gamma's prior.

    Args:
        log_probabilities: ``[B, R, C]``.
        labels: ``[B, R]``, -1 where there is none; at least one label.
        weights: of annotators ``[R]``.
        gamma: a scalar.
    """
    present = labels >= 0
    likelihood = log_probabilities.gather(2, labels.clamp_min(0).unsqueeze(2)).squeeze(2)
    loss = -(likelihood * weights * present).sum() / present.sum()
    prior = Gamma(torch.tensor(GAMMA_SHAPE, device=gamma.device), torch.tensor(GAMMA_RATE, device=gamma.device))
    return loss - prior.log_prob(gamma.clamp_min(_SMALLEST_GAMMA))
