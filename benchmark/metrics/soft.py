"""Negative log-likelihood of the spread of human labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from benchmark.metrics.probabilities import as_probabilities, check_targets

#: smallest predicted probability taken seriously, unless another is given
FLOOR = 1e-12


def cross_entropy(frequencies: Tensor, probabilities: Tensor, floor: float = FLOOR) -> Tensor:
    """``-sum_c q[c] log p[c]`` ``[n]`` in nats of each item's frequencies q and probabilities p, both ``[n, C]``."""
    return -(frequencies * probabilities.clamp_min(floor).log()).sum(1)


class SoftNLL(Metric):
    """Mean cross-entropy, in nats, between vote frequencies and predicted probabilities.

    ``-sum_c q[c] log p[c]`` averaged over items, each item once however many votes it has. It is the sum and
    the count that are kept, so the last small batch weighs what its items weigh.

    Args:
        floor: smallest probability taken seriously, so that one vote on a class of probability 0 costs
            ``-log(floor)`` and not infinity.

    >>> metric = SoftNLL()
    >>> metric.update(torch.tensor([[0.5, 0.5]]), torch.tensor([[3, 1]]))
    >>> round(float(metric.compute()), 4)
    0.6931
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    total: Tensor
    count: Tensor

    def __init__(self, floor: float = FLOOR, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0 < floor < 1:
            raise ValueError(f"floor is {floor}; it must lie between 0 and 1")
        self.floor = floor
        self.add_state("total", default=torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", default=torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        """Adds a batch.

        Args:
            predictions: probabilities or log-probabilities ``[B, C]``.
            targets: votes or frequencies ``[B, C]``; rows without a vote, or with -1 or NaN in them, are
                missing and left out.
        """
        probabilities = as_probabilities(predictions)
        check_targets(targets, tuple(probabilities.shape))
        mass = targets.double()
        known = (mass >= 0).all(1) & (mass.sum(1) > 0)
        frequencies = mass[known] / mass[known].sum(1, keepdim=True)
        self.total += cross_entropy(frequencies, probabilities[known], self.floor).sum()
        self.count += int(known.sum())

    def compute(self) -> Tensor:
        """The mean as a float64 scalar; NaN if nothing was added."""
        return self.total / self.count
