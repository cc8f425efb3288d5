"""Expected calibration error of the top class."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torchmetrics import Metric

from benchmark.metrics.probabilities import as_probabilities, check_targets, concatenated
from datamodules.names import unknown_name

Binning = Literal["equal_mass", "equal_width"]


class ECE(Metric):
    """Expected calibration error: sum over bins of (share of items) x |accuracy - mean confidence|.

    Guo et al., On Calibration of Modern Neural Networks, ICML 2017, eq. 5. Confidences are kept until
    ``compute``, so the value is that of the whole set whatever the batches were (calibration error is not
    an average over batches).

    Args:
        n_bins: number of bins.
        binning: ``equal_mass`` (bins hold equally many items; items of equal confidence share a bin, so
            order does not matter) or ``equal_width`` (bins are equal parts of [0, 1], the lower end
            included; confidence 1 belongs to the last).

    Raises:
        ValueError: for an unknown binning or a number of bins below 1.

    >>> metric = ECE(n_bins=10, binning="equal_width")
    >>> metric.update(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    >>> float(metric.compute())
    0.5
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    confidences: list[Tensor]
    hits: list[Tensor]

    def __init__(self, n_bins: int = 15, binning: Binning = "equal_mass", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if n_bins < 1:
            raise ValueError(f"n_bins is {n_bins}; at least 1 is needed")
        if binning not in get_args(Binning):
            raise ValueError(unknown_name("binning", binning, get_args(Binning), where="ECE"))
        self.n_bins = n_bins
        self.binning = binning
        self.add_state("confidences", default=[], dist_reduce_fx="cat")
        self.add_state("hits", default=[], dist_reduce_fx="cat")

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        """Adds a batch.

        Args:
            predictions: probabilities or log-probabilities ``[B, C]``.
            targets: class ids ``[B]``; -1 where unknown, which is left out.
        """
        probabilities = as_probabilities(predictions)
        check_targets(targets, (len(probabilities),))
        known = targets >= 0
        confidence, predicted = probabilities[known].max(1)
        self.confidences.append(confidence.clamp(0, 1))
        self.hits.append((predicted == targets[known]).double())

    def compute(self) -> Tensor:
        """The error in [0, 1] as a float64 scalar; NaN if nothing was added."""
        confidences, hits = concatenated(self.confidences), concatenated(self.hits)
        if len(confidences) == 0:
            return torch.tensor(float("nan"), dtype=torch.float64)
        bins = self._bins(confidences)
        gaps = torch.zeros(self.n_bins, dtype=torch.float64, device=bins.device)
        gaps.index_add_(0, bins, hits - confidences)
        return gaps.abs().sum() / len(confidences)

    def _bins(self, confidences: Tensor) -> Tensor:
        """Bin ``[N]`` of each confidence, in 0 .. n_bins - 1."""
        if self.binning == "equal_width":
            return (confidences * self.n_bins).long().clamp(0, self.n_bins - 1)
        smaller = torch.searchsorted(confidences.sort().values, confidences)
        return smaller * self.n_bins // len(confidences)
