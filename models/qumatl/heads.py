"""Parts of QuMATL behind the queries: projection, one classifier a query; and the majority label."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: width of the projection and of the classifiers' hidden layer
WIDTH = 256


class Projection(nn.Module):
    """Linear, then features of norm 1, then dropout.

    Args:
        hidden_size: width of a query.
        video: the video model's: LayerNorm and dropout .3 follow the linear layer, whose start is Kaiming's.
    """

    def __init__(self, hidden_size: int, *, video: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, WIDTH)
        self.norm: nn.Module = nn.Identity()
        if video:
            nn.init.kaiming_normal_(self.linear.weight, nonlinearity="relu")
            nn.init.zeros_(self.linear.bias)
            self.norm = nn.Sequential(nn.LayerNorm(WIDTH), nn.Dropout(0.3))
        self.dropout = nn.Dropout(0.5)

    def forward(self, queries: Tensor) -> Tensor:
        """``[B, Q, 256]`` of ``queries [B, Q, hidden_size]``."""
        projected: Tensor = self.dropout(F.normalize(self.norm(self.linear(queries)), dim=-1))
        return projected


class Heads(nn.Module):
    """Linear(256, 256), ReLU, dropout .3, Linear(256, C) for each query, all of them at once.

    Args:
        n_heads: R, or 1 for a classifier that all queries share.
        n_classes: C.
        video: the video model's: LayerNorm before the ReLU, and Kaiming's start.
    """

    def __init__(self, n_heads: int, n_classes: int, *, video: bool = False) -> None:
        super().__init__()
        self.in_weight = nn.Parameter(torch.empty(n_heads, WIDTH, WIDTH))
        self.in_bias = nn.Parameter(torch.empty(n_heads, WIDTH))
        self.out_weight = nn.Parameter(torch.empty(n_heads, WIDTH, n_classes))
        self.out_bias = nn.Parameter(torch.empty(n_heads, n_classes))
        self.norm_weight = nn.Parameter(torch.ones(n_heads, WIDTH)) if video else None
        self.norm_bias = nn.Parameter(torch.zeros(n_heads, WIDTH)) if video else None
        self.dropout = nn.Dropout(0.3)
        self._start(video)

    def _start(self, video: bool) -> None:
        """Kaiming's for the video model, else what ``nn.Linear`` draws: uniform up to 1 / sqrt(inputs)."""
        limit = 1 / math.sqrt(WIDTH)
        with torch.no_grad():
            for weight, bias in ((self.in_weight, self.in_bias), (self.out_weight, self.out_bias)):
                if video:
                    weight.normal_(0, math.sqrt(2 / WIDTH))
                    bias.zero_()
                else:
                    weight.uniform_(-limit, limit)
                    bias.uniform_(-limit, limit)

    def forward(self, features: Tensor) -> Tensor:
        """Logits ``[B, Q, C]`` of ``features [B, Q, 256]``, Q being R; any Q where all share one classifier."""
        hidden = self._linear(features, self.in_weight, self.in_bias)
        if self.norm_weight is not None and self.norm_bias is not None:
            hidden = F.layer_norm(hidden, (WIDTH,)) * self.norm_weight + self.norm_bias
        return self._linear(self.dropout(hidden.relu()), self.out_weight, self.out_bias)

    @staticmethod
    def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        weight = weight.expand(x.shape[1], -1, -1)
        return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1) + bias


def majority_labels(labels: Tensor, n_classes: int) -> Tensor:
    """The most frequent label ``[B]`` of ``labels [B, R]`` (-1 where there is none); -1 for an item without any.

    Ties go to the lowest class, as in the released code.
    """
    present = labels >= 0
    votes = (F.one_hot(labels.clamp_min(0), n_classes) * present.unsqueeze(2)).sum(1)
    # no two are equal then: one vote more outweighs any class
    ranked = votes * n_classes - torch.arange(n_classes, device=labels.device)
    return torch.where(present.any(1), ranked.argmax(1), -1)
