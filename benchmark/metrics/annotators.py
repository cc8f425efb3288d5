"""Scores of each annotator's predicted labels, and what resampling the items says of their agreement (DIC)."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from benchmark.metrics.agreement import (
    PairCounts,
    check_labels,
    compare_agreement,
    kappa_of_counts,
    narrow,
    one_hot,
    same_answer,
)
from datamodules.annotations import Annotations
from datamodules.names import unknown_name
from datamodules.seeds import derive_seed

Scoring = Literal["labelled", "as_released"]

#: numbers held at a time while items are resampled
_CHUNK = 1 << 24


class AnnotatorScores(NamedTuple):
    """How well the labels of each annotator are predicted.

    Attributes:
        accuracy: share of right predictions ``[R]`` float64, NaN for an annotator without a label.
        weighted_f1: F1 of each class, weighted by how often the annotator gave it, ``[R]`` float64, NaN likewise.
        counts: labels of each annotator ``[R]`` int64.
    """

    accuracy: Tensor
    weighted_f1: Tensor
    counts: Tensor


def annotator_scores(labels: Annotations, predictions: Annotations, scoring: Scoring = "labelled") -> AnnotatorScores:
    """Accuracy and weighted F1 of the predictions for each annotator.

    Args:
        labels: the annotators' own labels.
        predictions: what was predicted for the same items and annotators.
        scoring: ``labelled``: on the items that the annotator labelled. ``as_released``: on all items as the
            released QuMATL code does on AMER (arXiv 2503.15237), where an item that the annotator did not label
            counts as predicted right, and as a class of its own with an F1 of 1. It shows what that does to a table
            and must never be compared with anything else.

    Raises:
        ValueError: if labels and predictions are of other items or annotators, or for an unknown scoring.
    """
    if scoring not in get_args(Scoring):
        raise ValueError(unknown_name("scoring", scoring, get_args(Scoring), where="annotator_scores"))
    _check_same_places(labels, predictions)
    table = _confusions(labels, predictions).double()
    given, predicted = table.sum(2), table.sum(1)
    right = table.diagonal(dim1=1, dim2=2)
    counts = labels.labels_per_annotator()
    f1 = 2 * right / (given + predicted).clamp_min(1)
    n_right, weighted, total = right.sum(1), (given * f1).sum(1), counts
    if scoring == "as_released":
        unlabelled = labels.n_items - counts
        n_right, weighted, total = n_right + unlabelled, weighted + unlabelled, counts + unlabelled
    # none at all: 0 / 0, which is NaN
    return AnnotatorScores(n_right / total, weighted / total, counts)


def _confusions(labels: Annotations, predictions: Annotations) -> Tensor:
    """How often each annotator gave a label where another was predicted ``[R, C, C]`` (given, predicted) int64."""
    shape = (labels.n_annotators, labels.n_classes, labels.n_classes)
    cell = (labels.annotators * labels.n_classes + labels.labels) * labels.n_classes + predictions.labels
    return torch.bincount(cell, minlength=shape[0] * shape[1] * shape[2]).view(shape)


def consensus_agreement(labels: Annotations, predictions: Annotations) -> float:
    """CoPr: share of items on which the majority of predictions is the majority of labels; NaN without a label.

    Both are taken over the annotators who labelled the item. A tie goes to the class that comes first, as in the
    released code. Items without a label are left out.

    Raises:
        ValueError: if labels and predictions are of other items or annotators.
    """
    _check_same_places(labels, predictions)
    votes = labels.votes()
    voted = votes.sum(1) > 0
    # argmax names the first of equal counts
    same = votes.argmax(1) == predictions.votes().argmax(1)
    return float(same[voted].double().mean())


def _check_same_places(labels: Annotations, predictions: Annotations) -> None:
    same = torch.equal(labels.items, predictions.items) and torch.equal(labels.annotators, predictions.annotators)
    if not same or (labels.n_items, labels.n_classes) != (predictions.n_items, predictions.n_classes):
        raise ValueError(
            f"{predictions!r} as predictions for {labels!r}: they must be of the same items, annotators and classes, "
            "one prediction for every label"
        )


# --- resampling -----------------------------------------------------------------------------------


class Resampled(NamedTuple):
    """DICs of items drawn again with replacement, as many as there are.

    Attributes:
        values: DIC of the resampled predictions against the same items' labels ``[S]`` float64.
        floor: DIC of the labels of one resample against those of another ``[S]`` float64: what is left of it for
            predictions drawn from the very distribution of the labels.
    """

    values: Tensor
    floor: Tensor


def resample_dic(labels: Tensor, predictions: Tensor, n_classes: int, resamples: int = 200, seed: int = 0) -> Resampled:
    """Sampling error of a DIC (Frobenius), and the DIC that sampling alone makes.

    The floor is QuMATL's noise floor (fact sheet, section (a)): labels and predictions are two independent samples
    of one joint distribution of all annotators' labels, which here is that of the items at hand. Two resamples are
    two such samples, and unlike two halves of the items they are of the size that the DIC was measured on. Predictions
    that follow the items, and so share the labels' sampling error, can come below the floor.

    Args:
        labels: class ids ``[N, R]``, -1 where there is none.
        predictions: predicted class ids ``[N, R]``; read only where there is a label.
        n_classes: C.
        resamples: S, at least 2.
        seed: of the draws.

    Raises:
        ValueError: for shapes, types or class ids that do not fit, no items, or fewer than 2 resamples.
    """
    check_labels("labels", labels, n_classes)
    check_labels("predictions", predictions, n_classes, labels.shape[1])
    if len(labels) == 0 or len(predictions) != len(labels) or resamples < 2:
        raise ValueError(
            f"{len(labels)} rows of labels, {len(predictions)} of predictions and {resamples} resamples; there must be "
            "a row, as many predictions, and 2 resamples"
        )
    weights = draw_weights(len(labels), resamples, seed).to(labels.device)
    own = resampled_kappas(labels, weights, n_classes)
    predicted = resampled_kappas(torch.where(labels >= 0, predictions, -1), weights, n_classes)
    # each resample against the next, which was drawn independently of it
    return Resampled(compare_agreement(own, predicted), compare_agreement(own, own.roll(1, 0)))


def draw_weights(n_items: int, resamples: int, seed: int) -> Tensor:
    """How often each item occurs in each of ``resamples`` draws of ``n_items`` with replacement ``[S, N]`` float32."""
    generator = torch.Generator().manual_seed(derive_seed(seed=seed, purpose="resampled items"))
    drawn = torch.randint(n_items, (resamples, n_items), generator=generator)
    return torch.zeros(resamples, n_items).scatter_add_(1, drawn, torch.ones(resamples, n_items))


def resampled_kappas(labels: Tensor, weights: Tensor, n_classes: int) -> Tensor:
    """Kappas ``[S, R, R]`` float64 of every pair, with item i counted ``weights[s, i]`` times.

    Args:
        labels: class ids ``[N, R]``, -1 where there is none.
        weights: whole numbers ``[S, N]`` float32; each row's sum below 2^24.
        n_classes: C.
    """
    small = narrow(labels, n_classes)
    n_annotators = labels.shape[1]
    chosen, present = one_hot(small, n_classes), (small >= 0).float()
    same = same_answer(small).flatten(0, 1).float()
    complete = bool((present > 0).all())
    kappas = []
    for some in weights.split(max(1, _CHUNK // (n_annotators * n_annotators * n_classes))):
        agreed = (some @ same.t()).view(-1, n_annotators, n_annotators)
        if complete:
            given = (some @ chosen.flatten(0, 1).t()).view(-1, n_annotators, n_classes, 1).expand(*_shape(some, chosen))
        else:
            given = torch.stack([(chosen * each).flatten(0, 1) @ present for each in some]).view(*_shape(some, chosen))
        kappas.append(kappa_of_counts(PairCounts(agreed.double(), given.double())))
    return torch.cat(kappas)


def _shape(weights: Tensor, chosen: Tensor) -> tuple[int, int, int, int]:
    return len(weights), chosen.shape[0], chosen.shape[1], chosen.shape[0]


def interval_around(estimate: float, resampled: Tensor, confidence: float = 0.95) -> tuple[float, float]:
    """Bounds of a statistic that is not negative: the spread of its resampled values about their mean, around it.

    Resampling adds noise of its own, which a norm turns into a rise: the resampled values of a DIC lie above it, and
    their plain quantiles could leave it out. The interval so is one for the expected value *at this number of items*,
    like the floor, which carries the same rise.

    Args:
        estimate: the statistic on the items as they are.
        resampled: its values ``[S]`` on resampled items; NaN where undefined.
        confidence: how often such an interval should hold the expected value.

    Returns:
        Low (at least 0) and high; NaN where nothing is defined.
    """
    known = resampled[~resampled.isnan()].double()
    if len(known) == 0 or estimate != estimate:
        return float("nan"), float("nan")
    tails = torch.tensor([(1 - confidence) / 2, (1 + confidence) / 2], dtype=torch.float64, device=known.device)
    low, high = (estimate + known.quantile(tails) - known.mean()).tolist()
    return max(0.0, low), high
