"""One dropout network per annotator, and what many passes through them say together."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.annotator_heads.pooling import entropy_share
from models.qumatl.heads import WIDTH


class Ensemble(nn.Module):
    """R networks that share no weight, each with the layers and sizes of QuMATL's projection and classifier.

    Linear(width, 256), features of norm 1, dropout, Linear(256, 256), ReLU, dropout, Linear(256, C).

    Args:
        n_members: R.
        width: numbers in a pooled item.
        n_classes: C.
        dropout: share of the units that a pass leaves out, in both places.
        passes: T, how many thinned networks of each member answer in :meth:`mean_log_probabilities`. They are drawn
            once, at construction, and are the same for all items: an answer neither changes when asked again nor
            depends on the batch.
    """

    masks: Tensor

    def __init__(self, n_members: int, width: int, n_classes: int, *, dropout: float, passes: int) -> None:
        super().__init__()
        self.dropout = dropout
        sizes = (width, WIDTH, WIDTH, n_classes)
        shapes = list(zip(sizes[:-1], sizes[1:], strict=True))
        self.weights = nn.ParameterList([_uniform(n_in, n_members, n_in, n_out) for n_in, n_out in shapes])
        self.biases = nn.ParameterList([_uniform(n_in, n_members, n_out) for n_in, n_out in shapes])
        self.register_buffer("masks", torch.rand(passes, 2, n_members, WIDTH) >= dropout)

    def forward(self, pooled: Tensor) -> Tensor:
        """Logits ``[B, R, C]`` of ``pooled [B, width]``, each unit dropped anew in training and none in evaluation."""
        features = F.dropout(self._features(pooled), self.dropout, self.training)
        hidden = F.dropout(self._layer(1, features).relu(), self.dropout, self.training)
        return self._layer(2, hidden)

    def mean_log_probabilities(self, pooled: Tensor) -> Tensor:
        """Log of the mean over T passes of the members' probabilities ``[B, R, C]`` of ``pooled [B, width]``."""
        features = self._features(pooled)
        total = torch.zeros((), device=features.device)
        # pass by pass: all at once would take T times the memory
        for outer, inner in self.masks.to(features.dtype) / (1 - self.dropout):
            hidden = self._layer(1, features * outer).relu() * inner
            total = total + self._layer(2, hidden).float().softmax(-1)
        tiny = torch.finfo(total.dtype).tiny
        return (total / len(self.masks)).clamp_min(tiny).log()

    def _features(self, pooled: Tensor) -> Tensor:
        """Features of norm 1 ``[B, R, 256]``."""
        return F.normalize(self._layer(0, pooled.unsqueeze(1).expand(-1, self.masks.shape[2], -1)), dim=-1)

    def _layer(self, number: int, x: Tensor) -> Tensor:
        """Each member's own linear layer on its row of ``x [B, R, in]``."""
        return torch.bmm(x.transpose(0, 1), self.weights[number]).transpose(0, 1) + self.biases[number]


def fuse(log_probabilities: Tensor) -> Tensor:
    """Log of the members' mean, each weighted by how certain it is.

    A member's weight is 1 minus its entropy over the largest possible entropy. Where all are entirely uncertain, they
    weigh alike.

    Args:
        log_probabilities: ``[B, R, C]``.

    Returns:
        ``[B, C]``.
    """
    confidence = 1 - entropy_share(log_probabilities.exp())
    # above 0, so that the weights of members that all know nothing still have a sum
    weights = confidence + torch.finfo(confidence.dtype).eps
    shares = weights / weights.sum(1, keepdim=True)
    return (log_probabilities + shares.log().unsqueeze(2)).logsumexp(1)


def _uniform(n_in: int, *shape: int) -> nn.Parameter:
    """What ``nn.Linear`` draws: uniform up to 1 / sqrt(inputs)."""
    limit = 1 / math.sqrt(n_in)
    return nn.Parameter(torch.empty(shape).uniform_(-limit, limit))
