"""Examples: how a method that saw few votes of a training item fares on all the votes of that item."""

from __future__ import annotations

from torch import Tensor

from benchmark.evaluate.measured import Measured, finite_or_none
from benchmark.evaluate.predictions import predicted_log_probabilities
from benchmark.metrics.distributions import jensen_shannon
from benchmark.metrics.soft import cross_entropy
from datamodules.base import CrowdDataModule
from models.base import CrowdModule

#: digits that are kept of an array's values
DIGITS = 6


def measure(method: CrowdModule, datamodule: CrowdDataModule) -> Measured:
    """Soft NLL of every training item against its full votes, and how far the votes trained on are from these.

    ``example_soft_nll`` is ``-sum_c p[c] log q[c]`` in nats with the frequencies p of ``data.full_votes`` and the
    consensus q predicted for the unaugmented item; ``example_distance`` is the Jensen-Shannon divergence in
    nats between the frequencies under the regime and the full ones. Both follow ``train_items``, rounded to six
    digits, None where an item has no vote. ``train_soft_nll_full`` is the mean of the first. Data that does
    not know more votes than the regime's gives nothing.
    """
    if datamodule.data.full_votes is None:
        return Measured()
    items = datamodule.train_items
    full = frequencies(datamodule.data.full_votes[items])
    sparse = frequencies(datamodule.train_annotations.votes()[items])
    probabilities = predicted_log_probabilities(method, datamodule.scan_dataloader()).exp()
    costs = cross_entropy(full, probabilities)
    return Measured(
        {"train_soft_nll_full": finite_or_none(float(costs[~costs.isnan()].mean()))},
        {"example_soft_nll": rounded(costs), "example_distance": rounded(jensen_shannon(sparse, full))},
    )


def frequencies(votes: Tensor) -> Tensor:
    """Share of each class among an item's votes ``[N, C]`` float64; NaN for an item without one."""
    counts = votes.double()
    return counts / counts.sum(1, keepdim=True)


def rounded(values: Tensor) -> list[float | None]:
    """``values [N]`` as a list, to ``DIGITS`` digits; None for NaN."""
    return [None if number != number else round(number, DIGITS) for number in values.tolist()]
