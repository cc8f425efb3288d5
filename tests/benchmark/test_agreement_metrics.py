"""Kappa and DIC: scikit-learn's pair by pair, the same under any batching, and never good for a constant predictor."""

from __future__ import annotations

import multiprocessing
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score
from torch import Tensor

from benchmark.metrics import DIC, ECE, EntropyCorrelation, JensenShannon, SoftBrier, SoftKL, SoftNLL, kappa_matrix
from benchmark.metrics import agreement as home
from benchmark.metrics.agreement import compare_agreement


def draw(n: int, n_annotators: int, n_classes: int, seed: int, missing: float = 0.3) -> Tensor:
    """Labels that agree more than chance, some missing, the first annotator's all one class."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(n_classes, (n, 1), generator=generator)
    labels = torch.randint(n_classes, (n, n_annotators), generator=generator)
    labels = torch.where(torch.rand(labels.shape, generator=generator) < 0.6, truth, labels)
    labels[:, 0] = 1
    labels[torch.rand(labels.shape, generator=generator) < missing] = -1
    return labels


def of_sklearn(labels: Tensor, k: int, other: int) -> float:
    """Cohen's kappa of two annotators on the items both labelled; NaN where there is none."""
    both = (labels[:, k] >= 0) & (labels[:, other] >= 0)
    first, second = labels[both, k].numpy(), labels[both, other].numpy()
    if len(first) == 0 or len(np.unique(np.concatenate([first, second]))) == 1:
        return float("nan")
    return float(cohen_kappa_score(first, second))


def reference_dic(predictions: Tensor, labels: Tensor) -> tuple[float, float, float]:
    """The three variants from scikit-learn's kappas, pair by pair."""
    masked = torch.where(labels >= 0, predictions, -1)
    pairs = [(of_sklearn(labels, *pair), of_sklearn(masked, *pair)) for pair in combinations(range(labels.shape[1]), 2)]
    known = np.array([(own, np.nan_to_num(predicted)) for own, predicted in pairs if not np.isnan(own)]).reshape(-1, 2)
    own, predicted = known.T
    gap = abs(predicted.mean() - own.mean())
    return float(np.sqrt(2 * ((predicted - own) ** 2).sum())), float(gap), float(gap / abs(own.mean()))


@settings(max_examples=15)
@given(
    seed=st.integers(0, 999), n=st.integers(1, 40), n_classes=st.integers(2, 5), missing=st.sampled_from([0, 0.3, 0.9])
)
def test_kappa_is_that_of_scikit_learn_pair_by_pair(seed: int, n: int, n_classes: int, missing: float) -> None:
    labels = draw(n, 4, n_classes, seed, missing)
    found = kappa_matrix(labels, n_classes)
    assert found.dtype == torch.float64 and torch.equal(found.nan_to_num(9), found.t().nan_to_num(9))
    for k, other in combinations(range(4), 2):
        assert float(found[k, other]) == pytest.approx(of_sklearn(labels, k, other), abs=1e-6, nan_ok=True)


def test_kappa_by_hand() -> None:
    # on three shared items both say 0 once, both 1 once, they differ once: p_o = 2/3, p_e = 4/9
    labels = torch.tensor([[0, 0, 1], [1, 1, 1], [0, 1, -1], [1, -1, -1]])
    found = kappa_matrix(labels, 3)
    assert float(found[0, 1]) == pytest.approx((2 / 3 - 4 / 9) / (1 - 4 / 9))
    assert float(found[0, 2]) == 0.0  # one constant annotator: no better than chance, and defined
    assert found.diagonal()[:2].tolist() == [1.0, 1.0] and found[2, 2].isnan()


def test_kappa_is_undefined_without_shared_items_and_between_equal_constants() -> None:
    # checks.md 8 (scikit-learn#9624): both constant gave NaN that spread; here it is where it belongs
    labels = torch.tensor([[0, -1, 2, 2], [1, -1, 2, 2], [-1, 0, -1, -1], [-1, 1, -1, -1]])
    found = kappa_matrix(labels, 3)
    assert found[0, 1].isnan() and found[1, 2].isnan() and found[2, 3].isnan()
    assert float(found[0, 2]) == 0.0
    assert kappa_matrix(torch.zeros(0, 2, dtype=torch.long), 3).isnan().all()


def test_items_are_counted_in_parts_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = draw(50, 5, 4, seed=3)
    whole = kappa_matrix(labels, 4)
    monkeypatch.setattr(home, "_CHUNK", 5 * 4 * 7)
    assert torch.equal(kappa_matrix(labels, 4).nan_to_num(9), whole.nan_to_num(9))


@settings(max_examples=10)
@given(seed=st.integers(0, 999), batch=st.integers(1, 17), n=st.integers(20, 45))
def test_dic_is_that_of_pairs_and_does_not_depend_on_batches(seed: int, batch: int, n: int) -> None:
    labels, predictions = draw(n, 4, 3, seed), draw(n, 4, 3, seed + 1, missing=0)
    expected = reference_dic(predictions, labels)
    for variant, value in zip(("frobenius", "mean_difference", "relative_difference"), expected, strict=True):
        whole, parts = DIC(4, 3, variant), DIC(4, 3, variant)  # type: ignore[arg-type]
        whole.update(predictions, labels)
        for some, own in zip(predictions.split(batch), labels.split(batch), strict=True):
            parts.update(some, own)
        assert float(whole.compute()) == pytest.approx(value, abs=1e-6)
        assert torch.equal(whole.compute(), parts.compute())


def test_perfect_predictions_have_a_dic_of_zero() -> None:
    labels = draw(60, 5, 4, seed=0)
    for variant in ("frobenius", "mean_difference", "relative_difference"):
        metric = DIC(5, 4, variant)
        metric.update(labels.clamp_min(0), labels)
        assert float(metric.compute()) == 0.0


def test_a_constant_predictor_never_looks_good() -> None:
    # leaving undefined prediction kappas out would give a constant predictor a DIC of 0, the best there is
    labels = draw(300, 6, 4, seed=1)[:, 1:]
    metric = DIC(5, 4)
    metric.update(torch.zeros_like(labels), labels)
    found = metric.details()
    kappas = kappa_matrix(labels, 4).fill_diagonal_(0)
    assert float(found.value) == pytest.approx(float(kappas.square().sum().sqrt())) and float(found.value) > 1
    assert (found.n_pairs, found.n_left_out, found.n_as_zero) == (10, 0, 10)
    assert found.constant_predictions.all() and not found.constant_labels.any()


def test_pairs_without_a_label_kappa_are_left_out_and_counted() -> None:
    # annotators 0 and 1 share nothing; 2 and 3 always say 2
    labels = torch.tensor([[0, -1, 2, 2], [1, -1, 2, 2], [-1, 0, 2, 2], [-1, 1, 2, 2]])
    metric = DIC(4, 3)
    metric.update(labels.clamp_min(0), labels)
    found = metric.details()
    assert (found.n_pairs, found.n_left_out, found.n_as_zero) == (4, 2, 0)
    assert found.constant_labels.tolist() == [False, False, True, True]
    nobody = DIC(2, 3)
    nobody.update(torch.zeros(1, 2, dtype=torch.long), torch.tensor([[0, -1]]))
    assert nobody.compute().isnan() and nobody.details().n_left_out == 1


def test_predictions_count_only_where_there_is_a_label() -> None:
    labels, predictions = draw(40, 3, 3, seed=5), draw(40, 3, 3, seed=6, missing=0)
    first, second = DIC(3, 3), DIC(3, 3)
    first.update(predictions, labels)
    second.update(torch.where(labels >= 0, predictions, -1), labels)
    assert torch.equal(first.compute(), second.compute())


def test_relative_difference_has_no_value_over_a_mean_of_zero() -> None:
    own, predicted = torch.eye(2).double(), torch.ones(2, 2).double()
    assert compare_agreement(own, predicted, "relative_difference").isnan()
    assert float(compare_agreement(-predicted, predicted, "relative_difference")) == 2.0


def _of_rank(rank: int, folder: str, answers: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    answers.put(_all_values(slice(0, 23) if rank == 0 else slice(23, None)))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _all_values(part: slice) -> list[float]:
    """Every metric on some of 40 items; with a process group, of all processes' items."""
    labels, predictions = draw(40, 4, 3, seed=8), draw(40, 4, 3, seed=9, missing=0)
    votes = torch.randint(0, 9, (40, 3), generator=torch.Generator().manual_seed(0))
    probabilities = torch.rand(40, 3, generator=torch.Generator().manual_seed(1)).softmax(1)
    dic = DIC(4, 3)
    for some, own in zip(predictions[part].split(5), labels[part].split(5), strict=True):  # the last has 3 or 2
        dic.update(some, own)
    found = dic.details()
    values = [float(dic.compute()), float(found.value), float(found.n_pairs)]
    for build in (SoftNLL, SoftKL, JensenShannon, SoftBrier, EntropyCorrelation):
        metric = build()
        metric.update(probabilities[part], votes[part])
        values.append(float(metric.compute()))
    for binning in ("equal_mass", "equal_width"):
        calibration = ECE(5, binning)  # type: ignore[arg-type]
        calibration.update(probabilities[part], labels[part, 0])
        values.append(float(calibration.compute()))
    return values


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks processes that share torch's state")
def test_two_processes_of_unequal_size_measure_like_one(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    ranks = [context.Process(target=_of_rank, args=(rank, str(tmp_path), answers)) for rank in range(2)]
    for process in ranks:
        process.start()
    found = [answers.get(timeout=60) for _ in ranks]
    for process in ranks:
        process.join(timeout=60)
    assert found[0] == found[1] == pytest.approx(_all_values(slice(None)), abs=1e-12)


def test_bad_labels_are_refused_with_their_place() -> None:
    metric = DIC(2, 3)
    good = torch.zeros(2, 2, dtype=torch.long)
    with pytest.raises(ValueError, match=r"labels of row 1, annotator 0: 3; class ids run from 0 to 2"):
        metric.update(good, torch.tensor([[0, 0], [3, 0]]))
    with pytest.raises(ValueError, match=r"predictions of row 0, annotator 1: -1, but there is a label"):
        metric.update(torch.tensor([[0, -1], [0, 0]]), good)
    with pytest.raises(ValueError, match=r"labels have shape \(2, 3\); \[items, 2\]"):
        metric.update(good, torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="1 rows of predictions for 2 of labels"):
        metric.update(good[:1], good)
    with pytest.raises(ValueError, match="labels are float32; class ids"):
        kappa_matrix(torch.zeros(2, 2), 3)
    # nothing half added
    assert int(metric.label_given.sum()) == 0
    with pytest.raises(ValueError, match=r"unknown variant of DIC: 'frobenious'; did you mean frobenius"):
        DIC(2, 3, "frobenious")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 annotators and 1 classes"):
        DIC(2, 1)
