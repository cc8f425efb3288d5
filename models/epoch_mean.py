"""The mean of a loss over an epoch without a synchronisation or a logging call per step."""

from __future__ import annotations

import torch
from torch import Tensor


class EpochMean:
    """Sums detached scalars where they are; the mean is read once an epoch."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._count = 0

    def add(self, value: Tensor) -> None:
        """Adds the scalar ``value`` (a mean over one batch)."""
        detached = value.detach().float()
        self._sum = detached.clone() if self._sum is None else self._sum + detached
        self._count += 1

    def pop(self) -> Tensor | None:
        """The mean since the last call, or None if nothing was added."""
        mean = None if self._sum is None else self._sum / self._count
        self._sum, self._count = None, 0
        return mean


def no_loss(device: torch.device) -> Tensor:
    """A loss of 0 that reaches no parameter, for a batch that says nothing.

    A zero made from the network's outputs would give gradients of 0, and an optimiser with weight decay or
    momentum would still move the weights; parameters without a gradient stay as they are.
    """
    return torch.zeros((), device=device, requires_grad=True)
