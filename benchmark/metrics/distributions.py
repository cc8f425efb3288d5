"""How near predicted distributions are to the spread of human labels, beside :class:`SoftNLL`."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from benchmark.metrics.probabilities import as_probabilities, check_targets, concatenated

#: digits of an entropy that count when entropies are ranked: equal distributions tie however they were summed
_DIGITS = 10


def known_distributions(predictions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Predicted probabilities and human frequencies ``[n, C]`` float64 of the items that have votes.

    Args:
        predictions: probabilities or log-probabilities ``[B, C]``.
        targets: votes or frequencies ``[B, C]``; rows without a vote, or with -1 or NaN in them, are left out.

    Raises:
        ValueError: for logits, NaN predictions, or shapes that do not match.
    """
    probabilities = as_probabilities(predictions)
    check_targets(targets, tuple(probabilities.shape))
    mass = targets.double()
    known = (mass >= 0).all(1) & (mass.sum(1) > 0)
    return probabilities[known], mass[known] / mass[known].sum(1, keepdim=True)


class _MeanOverItems(Metric):
    """A cost per item, averaged over items, each once however many votes it has: a sum and a count."""

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    total: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("total", default=torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", default=torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        """Adds a batch; see :func:`known_distributions` for both arguments ``[B, C]``."""
        probabilities, frequencies = known_distributions(predictions, targets)
        self.total += self._costs(probabilities, frequencies).sum()
        self.count += len(frequencies)

    def compute(self) -> Tensor:
        """The mean as a float64 scalar; NaN if nothing was added."""
        return self.total / self.count

    @abstractmethod
    def _costs(self, probabilities: Tensor, frequencies: Tensor) -> Tensor:
        """Cost ``[n]`` of each item from predictions and human frequencies, both ``[n, C]`` float64."""


class SoftKL(_MeanOverItems):
    """Mean Kullback-Leibler divergence of predictions from vote frequencies, ``sum_c q[c] log(q[c] / p[c])``, in nats.

    It is :class:`~benchmark.metrics.SoftNLL` less the entropy of the votes: 0 where the spread is met exactly.

    Args:
        floor: smallest probability taken seriously, as in ``SoftNLL``.

    >>> metric = SoftKL()
    >>> metric.update(torch.tensor([[0.5, 0.5]]), torch.tensor([[4, 0]]))
    >>> round(float(metric.compute()), 4)
    0.6931
    """

    def __init__(self, floor: float = 1e-12, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0 < floor < 1:
            raise ValueError(f"floor is {floor}; it must lie between 0 and 1")
        self.floor = floor

    def _costs(self, probabilities: Tensor, frequencies: Tensor) -> Tensor:
        crossed = -(frequencies * probabilities.clamp_min(self.floor).log()).sum(1)
        return crossed - entropy(frequencies)


class JensenShannon(_MeanOverItems):
    """Mean Jensen-Shannon divergence between predictions and vote frequencies, in nats: 0 to log 2.

    Lin, Divergence measures based on the Shannon entropy, 1991: the entropy of the mean less the mean of the
    entropies. It is the square of ``scipy.spatial.distance.jensenshannon``, which is the distance.

    >>> metric = JensenShannon()
    >>> metric.update(torch.tensor([[0.0, 1.0]]), torch.tensor([[4, 0]]))
    >>> round(float(metric.compute()), 4)
    0.6931
    """

    def _costs(self, probabilities: Tensor, frequencies: Tensor) -> Tensor:
        return jensen_shannon(probabilities, frequencies)


class SoftBrier(_MeanOverItems):
    """Mean squared distance between predictions and vote frequencies, summed over classes: 0 to 2.

    With all votes of an item on one class it is the multi-class score of Brier, 1950.

    >>> metric = SoftBrier()
    >>> metric.update(torch.tensor([[0.5, 0.5]]), torch.tensor([[4, 0]]))
    >>> float(metric.compute())
    0.5
    """

    def _costs(self, probabilities: Tensor, frequencies: Tensor) -> Tensor:
        return (probabilities - frequencies).square().sum(1)


class EntropyCorrelation(Metric):
    """Spearman correlation, over items, of predicted entropy and the entropy of the votes ("EntCorr").

    Does a model doubt where people disagree? Entropies are kept until ``compute``, since ranks are those of
    the whole set. Equal entropies share their mean rank; the many unanimous items all do.

    >>> metric = EntropyCorrelation()
    >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.5, 0.5]]), torch.tensor([[9, 0], [8, 1], [6, 3]]))
    >>> float(metric.compute())
    1.0
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    predicted: list[Tensor]
    human: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("predicted", default=[], dist_reduce_fx="cat")
        self.add_state("human", default=[], dist_reduce_fx="cat")

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        """Adds a batch; see :func:`known_distributions` for both arguments ``[B, C]``."""
        probabilities, frequencies = known_distributions(predictions, targets)
        self.predicted.append(entropy(probabilities))
        self.human.append(entropy(frequencies))

    def compute(self) -> Tensor:
        """The correlation in [-1, 1] as a float64 scalar; NaN if all entropies of one side are equal."""
        ranks = torch.stack([_mean_ranks(concatenated(self.predicted)), _mean_ranks(concatenated(self.human))])
        if ranks.shape[1] == 0:
            return torch.full((), float("nan"), dtype=torch.float64, device=ranks.device)
        centred = ranks - ranks.mean(dim=1, keepdim=True)
        spread = centred.square().sum(dim=1).prod().sqrt()
        return (centred.prod(dim=0).sum() / spread).clamp(-1, 1)


def jensen_shannon(first: Tensor, second: Tensor) -> Tensor:
    """Jensen-Shannon divergence ``[n]`` in nats of each pair of distributions ``[n, C]``."""
    mean_entropy = (entropy(first) + entropy(second)) / 2
    return (entropy((first + second) / 2) - mean_entropy).clamp_min(0)


def entropy(distributions: Tensor) -> Tensor:
    """Entropy ``[n]`` in nats of distributions ``[n, C]``; sorted first, so that classes may change places."""
    return torch.special.entr(distributions.sort(dim=1).values).sum(1)


def _mean_ranks(values: Tensor) -> Tensor:
    """Ranks ``[n]`` float64 from 1 up; equal values share the mean of their ranks."""
    _, group, size = values.round(decimals=_DIGITS).unique(return_inverse=True, return_counts=True)
    mean_of_group = size.cumsum(0).double() - (size - 1) / 2
    return mean_of_group[group]
