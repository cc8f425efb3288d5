"""Metrics: equal to an oracle, to a closed form, and to themselves under any batching."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy
from torchmetrics.functional.classification import multiclass_calibration_error

from benchmark.metrics import ECE, SoftNLL


def _draw(n: int, n_classes: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.randn(n, n_classes, generator=generator).mul(2).softmax(1)
    return probabilities, torch.randint(0, n_classes, (n,), generator=generator)


@pytest.mark.parametrize("n_bins", [1, 7, 15])
def test_equal_width_ece_is_that_of_torchmetrics(n_bins: int) -> None:
    probabilities, targets = _draw(500)
    metric = ECE(n_bins, "equal_width")
    metric.update(probabilities, targets)
    oracle = multiclass_calibration_error(probabilities, targets, num_classes=4, n_bins=n_bins, norm="l1")
    assert float(metric.compute()) == pytest.approx(float(oracle), abs=1e-6)


@pytest.mark.parametrize("n_bins", [1, 5, 10])
def test_equal_mass_ece_is_that_of_sorted_equal_parts(n_bins: int) -> None:
    probabilities, targets = _draw(400)
    metric = ECE(n_bins, "equal_mass")
    metric.update(probabilities, targets)
    confidence, predicted = probabilities.double().max(1)
    order = confidence.argsort()
    gaps = ((predicted == targets).double() - confidence)[order]
    expected = sum(abs(float(part.sum())) for part in np.array_split(gaps.numpy(), n_bins)) / 400
    assert float(metric.compute()) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 60),
    batch=st.integers(1, 17),
    binning=st.sampled_from(["equal_mass", "equal_width"]),
    seed=st.integers(0, 99),
)
def test_metrics_do_not_depend_on_the_batch_size_nor_on_order(n: int, batch: int, binning: str, seed: int) -> None:
    # lightning#2924 and the averaged calibration errors elsewhere: the small last batch weighed like a full one
    probabilities, targets = _draw(n, seed=seed)
    # rounded, so that confidences tie
    probabilities = (probabilities * 4).round().add(0.25)
    probabilities = probabilities / probabilities.sum(1, keepdim=True)
    votes = torch.nn.functional.one_hot(targets, 4) + 1
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    for build, aim in ((lambda: ECE(5, binning), targets), (SoftNLL, votes)):  # type: ignore[arg-type]
        whole, parts = build(), build()
        whole.update(probabilities, aim)
        for chunk in order.split(batch):
            parts.update(probabilities[chunk], aim[chunk])
        assert float(parts.compute()) == pytest.approx(float(whole.compute()), abs=1e-12)


@pytest.mark.parametrize("binning", ["equal_mass", "equal_width"])
def test_probabilities_of_exactly_zero_and_one_have_a_bin(binning: str) -> None:
    # torchmetrics#1646, #1744 (check 9): confidence 0 fell into bin -1
    metric = ECE(10, binning)  # type: ignore[arg-type]
    metric.update(torch.eye(3), torch.tensor([0, 1, 0]))
    assert float(metric.compute()) == pytest.approx(1 / 3)


def test_ece_is_that_of_a_hand_made_example_with_probabilities_of_exactly_zero_and_one() -> None:
    # confidences 1, 1, 1, 0.75, 0.75, 0.5; right, wrong, right, right, right, wrong
    predictions = torch.tensor([[1, 0], [1, 0], [0, 1], [0.75, 0.25], [0.25, 0.75], [0.5, 0.5]])
    targets = torch.tensor([0, 1, 1, 0, 1, 1])
    expected = {
        # [0.5, 0.75): |0 - 0.5| x 1; [0.75, 1]: |4 - 4.5|, the ones included; over 6 items
        ("equal_width", 4): (0.5 + 0.5) / 6,
        # halves of the sorted confidences: 0.5, 0.75, 0.75 with 2 right; 1, 1, 1 with 2 right
        ("equal_mass", 2): (abs(2 - 2) + abs(2 - 3)) / 6,
        ("equal_width", 1): abs(4 - 5) / 6,
        ("equal_mass", 1): abs(4 - 5) / 6,
    }
    for (binning, n_bins), value in expected.items():
        metric = ECE(n_bins, binning)  # type: ignore[arg-type]
        metric.update(predictions, targets)
        assert float(metric.compute()) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("binning", ["equal_mass", "equal_width"])
def test_ece_of_a_perfect_and_of_a_perfectly_wrong_predictor(binning: str) -> None:
    for target, expected in ((0, 0.0), (1, 1.0)):
        metric = ECE(15, binning)  # type: ignore[arg-type]
        metric.update(torch.tensor([[1.0, 0.0]] * 20), torch.full((20,), target))
        assert float(metric.compute()) == expected


def test_log_probabilities_count_as_what_they_are() -> None:
    probabilities, targets = _draw(50)
    votes = torch.nn.functional.one_hot(targets, 4) * 3 + 1
    for build, aim in ((lambda: ECE(10), targets), (SoftNLL, votes)):
        one, other = build(), build()
        one.update(probabilities, aim)
        other.update(probabilities.log(), aim)
        assert float(one.compute()) == pytest.approx(float(other.compute()), abs=1e-6)


def test_missing_targets_are_left_out_and_nothing_gives_nan() -> None:
    probabilities, targets = _draw(30)
    all_known, some = ECE(5), ECE(5)
    all_known.update(probabilities[:20], targets[:20])
    some.update(probabilities, torch.cat([targets[:20], torch.full((10,), -1)]))
    assert float(some.compute()) == float(all_known.compute())
    empty = ECE(5)
    empty.update(probabilities, torch.full((30,), -1))
    assert math.isnan(float(empty.compute()))
    nobody = SoftNLL()
    nobody.update(probabilities, torch.zeros(30, 4))
    assert math.isnan(float(nobody.compute()))


def test_soft_nll_is_entropy_plus_divergence() -> None:
    probabilities, _ = _draw(40)
    votes = torch.randint(0, 9, (40, 4), generator=torch.Generator().manual_seed(3)) + 1
    metric = SoftNLL()
    metric.update(probabilities, votes)
    q, p = votes.numpy() / votes.sum(1, keepdim=True).numpy(), probabilities.double().numpy()
    p = p / p.sum(1, keepdims=True)
    assert float(metric.compute()) == pytest.approx(float(np.mean(entropy(q.T) + entropy(q.T, p.T))), abs=1e-6)


def test_soft_nll_stays_finite_where_a_vote_has_probability_zero() -> None:
    metric = SoftNLL(floor=1e-6)
    metric.update(torch.tensor([[0.0, -torch.inf]]), torch.tensor([[1, 1]]))
    assert float(metric.compute()) == pytest.approx(0.5 * math.log(1e6))


def test_logits_nan_and_wrong_shapes_are_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="log_softmax"):
        ECE(5).update(torch.tensor([[3.0, -1.0]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="diverged"):
        ECE(5).update(torch.tensor([[float("nan"), 1.0]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="targets have shape"):
        SoftNLL().update(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="equal_mass"):
        ECE(5, "equal_mas")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="n_bins"):
        ECE(0)


def test_reset_forgets() -> None:
    metric = SoftNLL()
    metric.update(torch.tensor([[0.5, 0.5]]), torch.tensor([[1, 0]]))
    metric.reset()
    metric.update(torch.tensor([[1.0, 0.0]]), torch.tensor([[1, 0]]))
    assert float(metric.compute()) == 0.0
