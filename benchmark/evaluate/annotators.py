"""Annotators: the prediction of each annotator's own label, scored against the test annotations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from benchmark.evaluate.measured import Measured, finite_or_none
from benchmark.metrics.agreement import DIC, Agreement, compare_agreement, kappa_matrix
from benchmark.metrics.annotators import annotator_scores, consensus_agreement, interval_around, resample_dic
from datamodules.annotations import Annotations
from datamodules.base import CrowdDataModule
from models.base import CrowdModule

#: draws of the test items behind the interval of the DIC and its floor
RESAMPLES = 200
#: with more annotators there is no metric for each of them, and agreement of all pairs is not measured
MOST_ANNOTATORS = 100


def measure(method: CrowdModule, datamodule: CrowdDataModule) -> Measured:
    """How well each annotator's own labels of the test items are predicted, and whether their agreement is kept.

    ``accuracy`` and ``weighted_f1`` are means over the annotators with a test label, ``accuracy_<r>`` and
    ``weighted_f1_<r>`` those of annotator r, from 1. ``copr`` is
    :func:`~benchmark.metrics.annotators.consensus_agreement`. ``accuracy_as_released`` and
    ``weighted_f1_as_released`` count what an annotator did not label as right, to show what that does.

    ``dic`` (Frobenius), ``dic_mean_difference`` and ``dic_relative_difference`` are the variants of
    :class:`~benchmark.metrics.DIC`; ``dic_low`` and ``dic_high`` bound ``dic`` (95 %), ``dic_floor`` is what sampling
    alone would make of it for predictions from the labels' own distribution, ``dic_floor_high`` what that exceeds
    in 5 % of cases; all three from ``RESAMPLES`` draws of the test items. ``dic_pairs`` were compared,
    ``dic_pairs_left_out`` have no kappa of labels, ``dic_pairs_as_zero`` none of predictions;
    ``constant_labels`` and ``constant_predictions`` count annotators with one class only.

    Data without test annotations gives no metric.

    Raises:
        ValueError: if a prediction is NaN or infinite.
    """
    noted = datamodule.data.test_annotations
    if noted is None or len(noted) == 0:
        return Measured(notes=("There are no test annotations: no annotator's prediction was scored.",))
    predicted = predicted_annotations(method, datamodule, noted)
    measured = scores(noted, predicted)
    if noted.n_annotators > MOST_ANNOTATORS:
        note = f"Agreement (DIC) is measured for up to {MOST_ANNOTATORS} annotators; here are {noted.n_annotators:,}."
        return measured.merged_with(Measured(notes=(note,)))
    return measured.merged_with(agreement(noted, predicted))


def predicted_annotations(method: CrowdModule, datamodule: CrowdDataModule, noted: Annotations) -> Annotations:
    """The most probable label of every test annotation in ``noted``, in its place.

    Raises:
        ValueError: if the method predicts NaN or infinite probabilities.
    """
    found: list[Tensor] = []
    for batch in datamodule.test_dataloader():
        annotators = batch["annotators"].to(method.device)
        # in the order of the annotations: by item, then by annotator
        answers = method.predict_annotators(batch["x"].to(method.device), annotators)[annotators >= 0]
        if not torch.isfinite(answers.exp()).all():
            raise ValueError(f"{type(method).__name__}.predict_annotators returned NaN or infinite probabilities")
        found.append(answers.argmax(-1).cpu())
    return replace(noted, labels=torch.cat(found))


def scores(noted: Annotations, predicted: Annotations) -> Measured:
    """All that is measured of each annotator on their own."""
    own = annotator_scores(noted, predicted)
    released = annotator_scores(noted, predicted, scoring="as_released")
    each = {"accuracy": own.accuracy, "weighted_f1": own.weighted_f1}
    metrics = {name: _mean(values) for name, values in each.items()}
    if noted.n_annotators <= MOST_ANNOTATORS:
        for name, values in each.items():
            metrics |= {f"{name}_{number}": value for number, value in enumerate(_listed(values), start=1)}
    metrics["copr"] = finite_or_none(consensus_agreement(noted, predicted))
    metrics["accuracy_as_released"] = _mean(released.accuracy)
    metrics["weighted_f1_as_released"] = _mean(released.weighted_f1)
    arrays = {
        "accuracy_of_annotator": _listed(own.accuracy),
        "weighted_f1_of_annotator": _listed(own.weighted_f1),
        "accuracy_as_released_of_annotator": _listed(released.accuracy),
        "test_labels_of_annotator": _listed(own.counts.double()),
    }
    return Measured(metrics, arrays)


def agreement(noted: Annotations, predicted: Annotations) -> Measured:
    """DIC in its variants, with what is needed to read it."""
    labels, predictions = noted.dense(), predicted.dense()
    dic = DIC(noted.n_annotators, noted.n_classes)
    # a prediction is read only where there is a label
    dic.update(predictions, labels)
    found = dic.details()
    estimate = float(found.value)
    resampled = resample_dic(labels, predictions, noted.n_classes, RESAMPLES)
    low, high = interval_around(estimate, resampled.values)
    kappas = kappa_matrix(labels, noted.n_classes), kappa_matrix(predictions, noted.n_classes)
    values: Mapping[str, float] = {
        "dic": estimate,
        "dic_mean_difference": float(compare_agreement(*kappas, variant="mean_difference")),
        "dic_relative_difference": float(compare_agreement(*kappas, variant="relative_difference")),
        "dic_low": low,
        "dic_high": high,
        "dic_floor": float(resampled.floor.nanmean()),
        "dic_floor_high": float(resampled.floor.nanquantile(0.95)),
        "dic_pairs": found.n_pairs,
        "dic_pairs_left_out": found.n_left_out,
        "dic_pairs_as_zero": found.n_as_zero,
        "constant_labels": float(found.constant_labels.sum()),
        "constant_predictions": float(found.constant_predictions.sum()),
    }
    arrays = {
        "constant_labels_of_annotator": _listed(found.constant_labels.double()),
        "constant_predictions_of_annotator": _listed(found.constant_predictions.double()),
    }
    metrics = {name: finite_or_none(value) for name, value in values.items()}
    return Measured(metrics, arrays, _flags(found))


def _flags(found: Agreement) -> tuple[str, ...]:
    """What a reader of the DIC must know; one text for all cells that it is true of, how often is a metric."""
    said = {
        "For some annotators one class only was predicted (constant_predictions of a cell counts them).": (
            bool(found.constant_predictions.any())
        ),
        "Some annotators gave all their test labels to one class (constant_labels counts them).": (
            bool(found.constant_labels.any())
        ),
        "Pairs of annotators whose labels have no kappa (no shared test item, or one and the same class) are left out "
        "of the DIC (dic_pairs_left_out counts them).": found.n_left_out > 0,
        "Pairs whose predictions have no kappa where their labels do count as no agreement beyond chance in the DIC "
        "(dic_pairs_as_zero counts them).": found.n_as_zero > 0,
    }
    return tuple(text for text, holds in said.items() if holds)


def _mean(values: Tensor) -> float | None:
    """Mean over the annotators with a value; None where none has."""
    return finite_or_none(float(values.nanmean()))


def _listed(values: Tensor) -> list[float | None]:
    return [finite_or_none(value) for value in values.tolist()]
