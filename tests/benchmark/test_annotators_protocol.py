"""The annotators protocol: scikit-learn's numbers, the released scoring's fault, and a floor that sampling explains."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score
from torch import Tensor

from benchmark.contracts.tiny import TinyCrowd
from benchmark.evaluate import evaluate
from benchmark.evaluate.measured import Measured
from benchmark.metrics import DIC, kappa_matrix
from benchmark.metrics import annotators as home
from benchmark.metrics.agreement import compare_agreement
from benchmark.metrics.annotators import (
    annotator_scores,
    consensus_agreement,
    draw_weights,
    interval_around,
    resample_dic,
    resampled_kappas,
)
from datamodules.annotations import Annotations
from datamodules.base import CrowdData, DataInfo
from models.base import Batch, CrowdModule

INFO = DataInfo(n_classes=4, n_annotators=5, input_shape=(1, 4, 4))


def draw(n: int, n_annotators: int, n_classes: int, seed: int, missing: float = 0.0, agree: float = 0.5) -> Tensor:
    """Labels ``[N, R]`` that share a truth with probability ``agree``, -1 for a share ``missing`` of them."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(n_classes, (n, 1), generator=generator)
    labels = torch.randint(n_classes, (n, n_annotators), generator=generator)
    labels = torch.where(torch.rand(labels.shape, generator=generator) < agree, truth, labels)
    return labels.masked_fill(torch.rand(labels.shape, generator=generator) < missing, -1)


def pair(n: int, n_annotators: int, n_classes: int, seed: int, missing: float = 0.4) -> tuple[Annotations, Annotations]:
    """Labels and predictions for them."""
    labels = Annotations.from_dense(draw(n, n_annotators, n_classes, seed, missing), n_classes)
    guesses = draw(n, n_annotators, n_classes, seed + 1)
    return labels, replace(labels, labels=guesses[labels.items, labels.annotators])


# --- accuracy, weighted F1, CoPr ------------------------------------------------------------------


@settings(max_examples=20)
@given(seed=st.integers(0, 999), n=st.integers(1, 30), n_classes=st.integers(2, 5))
def test_accuracy_and_weighted_f1_are_those_of_scikit_learn(seed: int, n: int, n_classes: int) -> None:
    labels, predictions = pair(n, 3, n_classes, seed)
    given_, guessed = labels.dense(), predictions.dense()
    for scoring in ("labelled", "as_released"):
        found = annotator_scores(labels, predictions, scoring)
        for r in range(3):
            # as released: what is missing is -1 on both sides, a class like any other
            kept = torch.ones(n, dtype=torch.bool) if scoring == "as_released" else given_[:, r] >= 0
            if not bool(kept.any()):
                assert found.accuracy[r].isnan() and found.weighted_f1[r].isnan()
                continue
            own, ours = given_[kept, r].numpy(), guessed[kept, r].numpy()
            f1 = f1_score(own, ours, average="weighted", zero_division=0)
            assert float(found.accuracy[r]) == pytest.approx(accuracy_score(own, ours))
            assert float(found.weighted_f1[r]) == pytest.approx(f1, rel=1e-12)


def test_the_released_scoring_gives_what_was_not_labelled_for_free() -> None:
    # AMER's A1-A10 label a fifth of the clips: always wrong, they reach 0.8 (fact sheet, code fault 1)
    labels = torch.full((10, 1), -1)
    labels[:2, 0] = torch.tensor([0, 1])
    noted = Annotations.from_dense(labels, 2)
    wrong = replace(noted, labels=1 - noted.labels)
    assert float(annotator_scores(noted, wrong).accuracy[0]) == 0
    released = annotator_scores(noted, wrong, "as_released")
    assert float(released.accuracy[0]) == pytest.approx(0.8) == float(released.weighted_f1[0])
    with pytest.raises(ValueError, match="unknown scoring of annotator_scores: 'released'"):
        annotator_scores(noted, wrong, "released")  # type: ignore[arg-type]


def test_the_consensus_of_predictions_is_held_against_that_of_labels_and_ties_go_to_the_first_class() -> None:
    labels = Annotations.from_dense(torch.tensor([[2, 1, -1], [2, 2, 0], [0, 0, 0], [-1, -1, -1]]), 3)
    #                          the first item's labels tie: class 1; both of its predictions are 1
    guessed = torch.tensor([[1, 1, 0], [0, 0, 2], [0, 0, 1], [0, 0, 0]])
    predictions = replace(labels, labels=guessed[labels.items, labels.annotators])
    assert consensus_agreement(labels, predictions) == pytest.approx(2 / 3)
    nobody = Annotations.from_dense(torch.full((2, 2), -1), 3)
    assert math.isnan(consensus_agreement(nobody, nobody))


def test_predictions_of_other_items_are_refused() -> None:
    labels, predictions = pair(6, 3, 3, 0)
    with pytest.raises(ValueError, match="must be of the same items, annotators and classes"):
        annotator_scores(labels, pair(6, 3, 3, 2)[1])
    with pytest.raises(ValueError, match="one prediction for every label"):
        consensus_agreement(labels, replace(predictions, n_items=7))


# --- resampling -----------------------------------------------------------------------------------


@settings(max_examples=10)
@given(seed=st.integers(0, 999), missing=st.sampled_from([0.0, 0.4, 0.9]), chunk=st.sampled_from([1, 1 << 24]))
def test_a_weighted_kappa_is_that_of_repeated_items(seed: int, missing: float, chunk: int) -> None:
    labels = draw(12, 4, 3, seed, missing)
    weights = draw_weights(12, 5, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(home, "_CHUNK", chunk)
        found = resampled_kappas(labels, weights, 3)
    assert weights.sum(1).tolist() == [12] * 5
    for kappas, row in zip(found, weights, strict=True):
        repeated = kappa_matrix(labels.repeat_interleave(row.long(), 0), 3)
        assert torch.equal(kappas.nan_to_num(9), repeated.nan_to_num(9))


def test_several_agreements_at_once_are_those_of_each() -> None:
    own, predicted = (
        torch.stack([kappa_matrix(draw(9, 4, 3, s, 0.5), 3) for s in seeds]) for seeds in ([0, 1], [2, 3])
    )
    for variant in ("frobenius", "mean_difference", "relative_difference"):
        together = compare_agreement(own, predicted, variant)
        alone = [compare_agreement(*each, variant) for each in zip(own, predicted, strict=True)]
        assert torch.equal(together, torch.stack(alone))


def test_the_floor_of_two_independent_annotators_is_the_closed_form() -> None:
    # kappa of two independent fair coins over n items has a standard error of 1 / sqrt(n); the DIC is the difference
    # of two such kappas, counted twice: sqrt(2) E|N(0, 2 / n)|
    n = 500
    floors = [resample_dic(draw(n, 2, 2, seed, agree=0), draw(n, 2, 2, 99), 2, seed=seed).floor for seed in range(5)]
    assert float(torch.cat(floors).mean()) == pytest.approx(2 * math.sqrt(2 / (math.pi * n)), rel=0.1)


def test_the_floor_is_the_dic_of_two_samples_of_one_distribution() -> None:
    def dic(first: Tensor, second: Tensor) -> float:
        return float(compare_agreement(kappa_matrix(first, 6), kappa_matrix(second, 6)))

    sampled = [dic(draw(162, 10, 6, 2 * seed), draw(162, 10, 6, 2 * seed + 1)) for seed in range(60)]
    truth = sum(sampled) / len(sampled)
    floor = float(resample_dic(draw(162, 10, 6, 1000), draw(162, 10, 6, 1001), 6).floor.mean())
    assert floor == pytest.approx(truth, rel=0.1)
    # a perfect copy shares the labels' sampling error and comes below it; one constant class does not
    labels = draw(162, 10, 6, 1000)
    assert float(resample_dic(labels, labels, 6).values.max()) == 0
    assert float(resample_dic(labels, torch.zeros_like(labels), 6).values.min()) > floor


def test_the_interval_holds_what_the_dic_is_on_average_at_this_number_of_items() -> None:
    def sample(seed: int) -> tuple[Tensor, Tensor]:
        return draw(120, 4, 3, 2 * seed, agree=0.7), draw(120, 4, 3, 2 * seed + 1, agree=0.4)

    def dic(labels: Tensor, predictions: Tensor) -> float:
        return float(compare_agreement(kappa_matrix(labels, 3), kappa_matrix(predictions, 3)))

    expected = sum(dic(*sample(seed)) for seed in range(300)) / 300
    bounds = [interval_around(dic(*s), resample_dic(*s, 3, 100).values) for s in map(sample, range(1000, 1060))]
    assert sum(low <= expected <= high for low, high in bounds) >= 51  # 57 of 60 are meant; 6 sigma below


def test_intervals_of_what_is_undefined_or_near_zero() -> None:
    assert all(math.isnan(bound) for bound in interval_around(1.0, torch.tensor([float("nan")])))
    assert interval_around(0.1, torch.linspace(0, 2, 101))[0] == 0


def test_the_same_seed_gives_the_same_resamples_and_bad_arguments_are_refused() -> None:
    labels, predictions = draw(20, 3, 3, 0, 0.3), draw(20, 3, 3, 1)
    first, second = (resample_dic(labels, predictions, 3, 5, seed=4) for _ in range(2))
    assert all(torch.equal(one.nan_to_num(9), other.nan_to_num(9)) for one, other in zip(first, second, strict=True))
    with pytest.raises(ValueError, match="20 rows of labels, 19 of predictions"):
        resample_dic(labels, predictions[:19], 3)


# --- the protocol ---------------------------------------------------------------------------------


class Fixed(CrowdModule):
    """A label an annotator, from the item's pixels; nothing is learnt."""

    def predict_consensus(self, x: Tensor) -> Tensor:
        return (9 * x.flatten(1)[:, :4]).log_softmax(-1)

    def predict_annotators(self, x: Tensor, annotators: Tensor | None = None) -> Tensor:
        whole = (9 * x.flatten(1)[:, : 4 + 4]).unfold(1, 4, 1).log_softmax(-1)
        return whole if annotators is None else whole[torch.arange(len(x)).unsqueeze(1), annotators.clamp_min(0)]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        raise NotImplementedError


class WithTestLabels(TinyCrowd):
    """Tiny items whose test annotations are ``labels [12, 5]``."""

    def __init__(self, labels: Tensor, **arguments: Any) -> None:
        super().__init__("mixed", data_info=INFO, **arguments)
        self.labels = labels

    def load(self) -> CrowdData:
        return replace(super().load(), test_annotations=Annotations.from_dense(self.labels, 4))


def measured(labels: Tensor, method: CrowdModule, **arguments: Any) -> tuple[Measured, Tensor]:
    """What the protocol says, and the predictions of all annotators ``[12, 5]``."""
    datamodule = WithTestLabels(labels, **arguments)
    datamodule.setup()
    (batch,) = list(WithTestLabels(labels).test_dataloader())
    return evaluate(method, datamodule, ["annotators"]), method.predict_annotators(batch["x"]).argmax(-1)


def test_every_number_is_that_of_the_metrics_on_the_test_annotations() -> None:
    labels = draw(12, 5, 4, 7, missing=0.3)
    found, guessed = measured(labels, Fixed(INFO), eval_batch_size=5)
    present = labels >= 0
    accuracies = [(guessed == labels)[present[:, r], r].double().mean().item() for r in range(5)]
    metrics = found.metrics
    assert [metrics[f"accuracy_{r}"] for r in range(1, 6)] == pytest.approx(accuracies)
    assert metrics["accuracy"] == pytest.approx(sum(accuracies) / 5)
    free = [a * s + 1 - s for a, s in zip(accuracies, present.double().mean(0).tolist(), strict=True)]
    assert metrics["accuracy_as_released"] == pytest.approx(sum(free) / 5)
    for variant in ("frobenius", "mean_difference", "relative_difference"):
        dic = DIC(5, 4, variant)
        dic.update(guessed, labels)
        assert metrics["dic" if variant == "frobenius" else f"dic_{variant}"] == pytest.approx(float(dic.compute()))
    low, high, floor = (metrics[f"dic_{name}"] for name in ("low", "high", "floor"))
    assert low is not None and high is not None and floor is not None
    assert low <= metrics["dic"] <= high and floor > 0  # type: ignore[operator]
    assert found.arrays["accuracy_of_annotator"] == pytest.approx(accuracies)
    assert measured(labels, Fixed(INFO), eval_batch_size=4)[0] == found


def test_constant_annotators_and_predictions_are_flagged_and_an_annotator_without_labels_has_no_score() -> None:
    labels = draw(12, 5, 4, 3)
    labels[:, 0], labels[:, 1], labels[:, 4] = 2, 2, -1

    class Constant(Fixed):
        def predict_annotators(self, x: Tensor, annotators: Tensor | None = None) -> Tensor:
            return (
                torch.eye(4).log().clamp_min(-50)[2].expand(len(x), 5 if annotators is None else annotators.shape[1], 4)
            )

    found, _ = measured(labels, Constant(INFO))
    metrics = found.metrics
    assert (metrics["accuracy_1"], metrics["accuracy_5"], metrics["weighted_f1_5"]) == (1, None, None)
    assert metrics["accuracy"] is not None and metrics["accuracy_as_released"] > metrics["accuracy"]  # type: ignore[operator]
    assert (metrics["constant_labels"], metrics["constant_predictions"]) == (2, 4)
    # 1 and 2 agree always; the fifth shares nothing with the four others
    assert (metrics["dic_pairs"], metrics["dic_pairs_left_out"], metrics["dic_pairs_as_zero"]) == (5, 5, 5)
    assert len(found.notes) == 4
    assert found.arrays["constant_labels_of_annotator"] == [1, 1, 0, 0, 0]


def test_without_test_annotations_nothing_is_measured_and_broken_predictions_are_refused() -> None:
    plain = TinyCrowd("mixed", data_info=INFO)
    plain.setup()
    found = evaluate(Fixed(INFO), plain, ["annotators"])
    assert not found.metrics and "no test annotations" in found.notes[0]

    class Broken(Fixed):
        def predict_annotators(self, x: Tensor, annotators: Tensor | None = None) -> Tensor:
            return super().predict_annotators(x, annotators) * float("nan")

    with pytest.raises(ValueError, match=r"Broken.predict_annotators returned NaN"):
        measured(draw(12, 5, 4, 0), Broken(INFO))
