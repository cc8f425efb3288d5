"""PADL's distributions over logits: a common one, and one per annotator around it (Liao et al. 2024; released code)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.annotator_heads.pooling import entropy_share
from models.annotator_module import labelled_cross_entropy
from models.qumatl.heads import WIDTH


class LogitDistributions(NamedTuple):
    """Independent normal distributions of logits.

    Attributes:
        mu: common means ``[B, C]``.
        sigma: common standard deviations ``[B, C]``.
        annotator_mu: ``mu_r``, each annotator's means ``[B, R, C]``.
        annotator_sigma: ``sigma_r``, their standard deviations ``[B, R, C]``.
    """

    mu: Tensor
    sigma: Tensor
    annotator_mu: Tensor
    annotator_sigma: Tensor


class PadlHeads(nn.Module):
    """The released heads with linear layers in the place of 1x1 convolutions.

    ``red`` stands for Linear(256, C), batch norm, ReLU; H is the entropy of softmax(mu) as a share of the largest
    possible, and passes no gradient:

    - ``mu = A h``; ``sigma = |B [(1 + H) red(h), mu]|``
    - ``mu_r = mu + Delta_r``, ``Delta_r = A_r [(1 + H) red_r(h), mu]``
    - ``sigma_r = |B_r [(1 + H) red'_r(h), mu_r]|``

    Args:
        n_annotators: R.
        n_classes: C.
    """

    def __init__(self, n_annotators: int, n_classes: int) -> None:
        super().__init__()
        self.mu = nn.Linear(WIDTH, n_classes)
        self.red_sigma = Reduced(1, n_classes)
        self.sigma = EachLinear(1, 2 * n_classes, n_classes)
        self.red_delta = Reduced(n_annotators, n_classes)
        self.delta = EachLinear(n_annotators, 2 * n_classes, n_classes)
        self.red_annotator_sigma = Reduced(n_annotators, n_classes)
        self.annotator_sigma = EachLinear(n_annotators, 2 * n_classes, n_classes)

    def forward(self, h: Tensor) -> LogitDistributions:
        """Distributions of items with hidden features ``h [B, 256]``."""
        mu = self.mu(h)
        certain = (1 + entropy_share(mu.detach().softmax(-1)))[:, None, None]
        common = mu.unsqueeze(1)
        sigma = self.sigma(_beside(certain * self.red_sigma(h), common)).abs().squeeze(1)
        annotator_mu = common + self.delta(_beside(certain * self.red_delta(h), common))
        annotator_sigma = self.annotator_sigma(_beside(certain * self.red_annotator_sigma(h), annotator_mu)).abs()
        return LogitDistributions(mu, sigma, annotator_mu, annotator_sigma)


class Reduced(nn.Module):
    """``red``: Linear(256, C), batch norm, ReLU for each of R heads at once."""

    def __init__(self, n_heads: int, n_classes: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, n_heads * n_classes), nn.BatchNorm1d(n_heads * n_classes), nn.ReLU()
        )

    def forward(self, h: Tensor) -> Tensor:
        """``[B, R, C]`` of ``h [B, 256]``."""
        reduced: Tensor = self.layers(h)
        return reduced.unflatten(1, (self.n_heads, -1))


class EachLinear(nn.Module):
    """A linear layer of its own for each of R rows."""

    def __init__(self, n_rows: int, n_in: int, n_out: int) -> None:
        super().__init__()
        # what nn.Linear draws
        limit = 1 / math.sqrt(n_in)
        self.weight = nn.Parameter(torch.empty(n_rows, n_in, n_out).uniform_(-limit, limit))
        self.bias = nn.Parameter(torch.empty(n_rows, n_out).uniform_(-limit, limit))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, R, out]`` of ``x [B, R, in]``."""
        return torch.bmm(x.transpose(0, 1), self.weight).transpose(0, 1) + self.bias


def sampled_loss(distributions: LogitDistributions, labels: Tensor) -> Tensor:
    """Cross-entropy of one draw from the common and one from the annotator's distribution per annotator, summed.

    For each of the two: the mean over an annotator's labelled items, summed over annotators. Draws are
    ``mu + sigma * noise``, so that gradients reach both.

    Args:
        distributions: of B items.
        labels: ``[B, R]``, -1 where there is none; at least one label.
    """
    mu, sigma, annotator_mu, annotator_sigma = distributions
    common = mu.unsqueeze(1) + sigma.unsqueeze(1) * torch.randn_like(annotator_mu)
    own = annotator_mu + annotator_sigma * torch.randn_like(annotator_mu)
    return labelled_cross_entropy(common, labels) + labelled_cross_entropy(own, labels)


def _beside(reduced: Tensor, means: Tensor) -> Tensor:
    """``[B, R, 2C]`` of ``reduced [B, R, C]`` and ``means [B, R, C]`` or ``[B, 1, C]``."""
    return torch.cat([reduced, means.expand_as(reduced)], dim=2)
