"""Metrics on predicted distributions: scipy's values, by hand, and the same under any batching."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy, spearmanr
from torch import Tensor
from torchmetrics import Metric

from benchmark.metrics import EntropyCorrelation, JensenShannon, SoftBrier, SoftKL, SoftNLL

ALL: list[Callable[[], Metric]] = [SoftKL, JensenShannon, SoftBrier, EntropyCorrelation]


def draw(n: int, seed: int = 0, n_classes: int = 4) -> tuple[Tensor, Tensor]:
    """Predictions and votes, some unanimous, every item with a vote."""
    generator = torch.Generator().manual_seed(seed)
    predictions = torch.randn(n, n_classes, generator=generator).mul(2).softmax(1).double()
    votes = torch.randint(-6, 5, (n, n_classes), generator=generator).clamp_min(0)
    votes[:, 1] += 1
    return predictions / predictions.sum(1, keepdim=True), votes


def measured(build: Callable[[], Metric], predictions: Tensor, votes: Tensor, batch: int = 10_000) -> float:
    metric = build()
    for some, own in zip(predictions.split(batch), votes.split(batch), strict=True):
        metric.update(some, own)
    return float(metric.compute())


def test_values_are_those_of_scipy() -> None:
    predictions, votes = draw(200)
    q, p = predictions.numpy(), votes.numpy() / votes.numpy().sum(1, keepdims=True)
    assert measured(SoftKL, predictions, votes) == pytest.approx(entropy(p, q, axis=1).mean(), abs=1e-9)
    distances = jensenshannon(p, q, axis=1)
    assert measured(JensenShannon, predictions, votes) == pytest.approx((distances**2).mean(), abs=1e-9)
    assert measured(SoftBrier, predictions, votes) == pytest.approx(((p - q) ** 2).sum(1).mean(), abs=1e-12)
    human = entropy(np.sort(p, axis=1), axis=1).round(10)
    assert len(np.unique(human)) < 100  # ties, or the mean ranks would not be tested
    expected = spearmanr(entropy(q, axis=1), human).statistic
    assert measured(EntropyCorrelation, predictions, votes) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=20)
@given(n=st.integers(1, 50), batch=st.integers(1, 17), seed=st.integers(0, 99))
def test_uneven_batches_and_another_order_change_nothing(n: int, batch: int, seed: int) -> None:
    predictions, votes = draw(n, seed)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    for build in ALL:
        whole = measured(build, predictions, votes)
        parts = measured(build, predictions[order], votes[order], batch)
        assert parts == pytest.approx(whole, abs=1e-12, nan_ok=True)


def test_perfect_predictions_and_the_worst_ones() -> None:
    votes = torch.tensor([[3, 1, 0], [5, 0, 0], [2, 2, 2]])
    perfect = votes / votes.sum(1, keepdim=True)
    for build in (SoftKL, JensenShannon, SoftBrier):
        assert measured(build, perfect, votes) == pytest.approx(0, abs=1e-6)
    assert measured(EntropyCorrelation, perfect, votes) == 1.0
    wrong, unanimous = torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([[7, 0, 0]])
    assert measured(JensenShannon, wrong, unanimous) == pytest.approx(math.log(2))
    assert measured(SoftBrier, wrong, unanimous) == 2.0
    assert measured(SoftKL, wrong, unanimous) == pytest.approx(-math.log(1e-12))


def test_divergence_is_soft_nll_less_the_entropy_of_the_votes() -> None:
    predictions, votes = draw(30)
    spread = entropy(votes.numpy(), axis=1).mean()
    nll = measured(SoftNLL, predictions, votes)
    assert measured(SoftKL, predictions, votes) == pytest.approx(nll - spread, abs=1e-9)


def test_equal_spreads_tie_whichever_class_they_are_on() -> None:
    # sums in another order differ in the last bit: without care equal doubts would get different ranks
    base = torch.tensor([7, 3, 1, 1, 0])
    votes = torch.stack([base[torch.randperm(5, generator=torch.Generator().manual_seed(k))] for k in range(40)])
    predictions = torch.rand(40, 5, generator=torch.Generator().manual_seed(0)).softmax(1)
    assert math.isnan(measured(EntropyCorrelation, predictions, votes))
    votes[20:] = torch.tensor([12, 0, 0, 0, 0])
    human = np.repeat([1.0, 0.0], 20)
    expected = spearmanr(entropy(predictions.double().numpy(), axis=1), human).statistic
    assert measured(EntropyCorrelation, predictions, votes) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("build", ALL)
def test_what_has_no_votes_is_left_out_and_nothing_gives_nan(build: Callable[[], Metric]) -> None:
    predictions, votes = draw(12)
    whole = measured(build, predictions[:10], votes[:10])
    votes = votes.double()
    votes[10], votes[11] = 0, float("nan")
    assert measured(build, predictions, votes) == whole
    assert math.isnan(measured(build, predictions[10:], votes[10:]))
    assert math.isnan(measured(build, predictions[:0], votes[:0]))


@pytest.mark.parametrize("build", ALL)
def test_log_probabilities_count_as_what_they_are(build: Callable[[], Metric]) -> None:
    predictions, votes = draw(12)
    assert measured(build, predictions.log(), votes) == pytest.approx(measured(build, predictions, votes), abs=1e-12)


@pytest.mark.parametrize("build", ALL)
def test_bad_input_is_refused_with_the_remedy(build: Callable[[], Metric]) -> None:
    predictions, votes = draw(4)
    with pytest.raises(ValueError, match="not logits"):
        build().update(predictions * 3, votes)
    with pytest.raises(ValueError, match=r"\[4, 4\] is needed"):
        build().update(predictions, votes[:2])
    with pytest.raises(ValueError, match="floor is 0"):
        SoftKL(floor=0)
