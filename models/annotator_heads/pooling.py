"""One vector an item: what methods without queries read of a frozen encoder's tokens."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from models.qumatl.heads import Projection

PoolingName = Literal["mean", "class_token", "flatten"]
POOLINGS: tuple[PoolingName, ...] = ("mean", "class_token", "flatten")


def pool(x: Tensor, pooling: PoolingName) -> Tensor:
    """One vector an item.

    Args:
        x: features ``[B, D]``, tokens ``[B, N, D]``, or tokens of frames ``[B, F, N, D]``.
        pooling: ``mean`` over all tokens; ``class_token``: the first token, of frames the mean of their first tokens;
            ``flatten``: all tokens one behind the other. Features ``[B, D]`` stay as they are.

    Returns:
        ``[B, D]``, or ``[B, N * D]`` or ``[B, F * N * D]`` for ``flatten``.
    """
    if x.ndim == 2 or pooling == "flatten":
        return x.flatten(1)
    if pooling == "class_token":
        x = x[..., 0, :]
    return x.mean(tuple(range(1, x.ndim - 1))) if x.ndim > 2 else x


def pooled_width(input_shape: tuple[int, ...], pooling: PoolingName) -> int:
    """Numbers in the vector that :func:`pool` makes of an item of ``input_shape``.

    Raises:
        ValueError: for a pooling that does not exist, or items that are neither features, tokens nor frames.
    """
    if pooling not in POOLINGS:
        raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, not {pooling!r}")
    if not 1 <= len(input_shape) <= 3:
        raise ValueError(
            f"items have shape {input_shape}; features (D,), tokens (N, D) or tokens of frames (F, N, D) are needed: "
            "give the cell an encoder"
        )
    return math.prod(input_shape) if pooling == "flatten" else input_shape[-1]


class Pooled(nn.Module):
    """Pooled items behind QuMATL's projection: Linear(., 256), features of norm 1, dropout.

    Args:
        input_shape: of an item: ``(D,)``, ``(N, D)`` or ``(F, N, D)``. For frames the projection is the video model's.
        pooling: see :func:`pool`.

    Raises:
        ValueError: see :func:`pooled_width`.
    """

    def __init__(self, input_shape: tuple[int, ...], pooling: PoolingName) -> None:
        super().__init__()
        self.pooling: PoolingName = pooling
        self.projection = Projection(pooled_width(input_shape, pooling), video=len(input_shape) == 3)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, 1, 256]`` of items ``x [B, ...]``."""
        projected: Tensor = self.projection(pool(x, self.pooling).unsqueeze(1))
        return projected


def entropy_share(probabilities: Tensor) -> Tensor:
    """Entropy over the last axis as a share of the largest possible: 0 for a certain class, 1 for an even spread."""
    n_classes = probabilities.shape[-1]
    entropy = torch.special.entr(probabilities).sum(-1)
    return (entropy / math.log(n_classes)).clamp(0, 1)
