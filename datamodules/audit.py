"""What annotations tell about their annotators, before any method sees them.

The question that decides whether a method can gain from annotator identity is whether annotators differ at
all. If they do not, their error rates vary as chance has it: binomially. The audit gives the ratio of the two
variances, about 1 in that case, and how often ids dealt out at random reach it.

>>> from datamodules.annotations import Annotations
>>> found = audit(Annotations([0, 0, 1], [0, 1, 1], [1, 0, 1], n_items=2, n_annotators=2, n_classes=2))
>>> found.raw_agreement
0.0
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datamodules.agreement import (
    PERMUTATIONS,
    AnnotatorVariance,
    annotator_variance,
    krippendorff_alpha,
    raw_agreement,
    score,
)
from datamodules.annotations import Annotations
from datamodules.seeds import derive_seed

#: permutation p-value at or below which annotators are said to differ
LEVEL = 0.01
CLEAN = "clean labels"
POOLED = "pooled votes: no annotator ids"
LEAVE_ONE_OUT = "leave-one-out majority"


@dataclass(frozen=True)
class Spread:
    """Least, quartiles, greatest and mean of some counts."""

    min: int
    q1: float
    median: float
    q3: float
    max: int
    mean: float


@dataclass(frozen=True)
class Audit:
    """A description of annotations; None where something cannot be said.

    Attributes:
        n_items: items, those without labels included; likewise annotators and classes. Annotators are None, as
            is all that is said of them, where votes are pooled and nobody knows who gave which.
        n_annotations: labels in all.
        n_items_without_labels: items nobody labelled.
        n_annotators_without_labels: annotators who labelled nothing.
        labels_per_item: over all items.
        labels_per_annotator: over all annotators.
        class_counts: how often each class was given.
        true_class_counts: how many items are truly of each class.
        raw_agreement: see :func:`datamodules.agreement.raw_agreement`.
        krippendorff_alpha: see :func:`datamodules.agreement.krippendorff_alpha`.
        noise_rate: share of the annotations that are not the clean label.
        majority_noise_rate: share of the labelled items whose majority (ties at random) is not clean.
        annotator_variance_ratio: see :class:`datamodules.agreement.AnnotatorVariance`; also the next three.
        annotator_variance_p: permutation p-value.
        annotator_variance_null_sd: what chance alone does to the ratio.
        annotator_error_sd: spread of error rates beyond chance.
        annotator_variance_basis: what an annotation was compared with: ``"clean labels"``, or
            ``"leave-one-out majority"``; ``"pooled votes: no annotator ids"`` where annotators are unknown.
        verdict: one sentence on whether annotators differ.
        notes: what a reader must know besides.
    """

    n_items: int
    n_annotators: int | None
    n_classes: int
    n_annotations: int
    n_items_without_labels: int
    n_annotators_without_labels: int | None
    labels_per_item: Spread | None
    labels_per_annotator: Spread | None
    class_counts: tuple[int, ...]
    true_class_counts: tuple[int, ...] | None
    raw_agreement: float | None
    krippendorff_alpha: float | None
    noise_rate: float | None
    majority_noise_rate: float | None
    annotator_variance_ratio: float | None
    annotator_variance_p: float | None
    annotator_variance_null_sd: float | None
    annotator_error_sd: float | None
    annotator_variance_basis: str
    verdict: str
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: numbers, strings, lists, dicts and None."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def audit(
    annotations: Annotations,
    true_labels: Tensor | None = None,
    seed: int = 0,
    permutations: int = PERMUTATIONS,
    pooled: bool = False,
) -> Audit:
    """Describes annotations, and says whether their annotators differ.

    Args:
        annotations: of N items.
        true_labels: clean labels ``[N]``, -1 where unknown; None: nobody knows them, and annotators are
            compared with the majority of the others.
        seed: seed of ties and of the random deals.
        permutations: random deals behind the p-value.
        pooled: annotator ids only number the votes of an item and are nobody's: nothing is said of annotators.

    Raises:
        ValueError: if ``true_labels`` has another length, or a label out of range.
    """
    _check_truth(annotations, true_labels)
    scored, wrong = score(annotations, true_labels, seed)
    annotators = annotations.annotators[scored]
    found = None
    if not pooled:
        found = annotator_variance(annotators, wrong[scored], annotations.n_annotators, seed, permutations)
    per_item, per_annotator = annotations.labels_per_item(), annotations.labels_per_annotator()
    agreement = raw_agreement(annotations)
    basis = POOLED if pooled else LEAVE_ONE_OUT if true_labels is None else CLEAN
    return Audit(
        n_items=annotations.n_items,
        n_annotators=None if pooled else annotations.n_annotators,
        n_classes=annotations.n_classes,
        n_annotations=len(annotations),
        n_items_without_labels=int((per_item == 0).sum()),
        n_annotators_without_labels=None if pooled else int((per_annotator == 0).sum()),
        labels_per_item=_spread(per_item),
        labels_per_annotator=None if pooled else _spread(per_annotator),
        class_counts=_class_counts(annotations.labels, annotations.n_classes),
        true_class_counts=None if true_labels is None else _class_counts(true_labels, annotations.n_classes),
        raw_agreement=agreement,
        krippendorff_alpha=krippendorff_alpha(annotations),
        noise_rate=None if true_labels is None or not scored.any() else float(wrong[scored].double().mean()),
        majority_noise_rate=_majority_noise(annotations, true_labels, seed),
        annotator_variance_ratio=found.ratio if found else None,
        annotator_variance_p=found.p if found else None,
        annotator_variance_null_sd=found.null_sd if found else None,
        annotator_error_sd=found.error_sd if found else None,
        annotator_variance_basis=basis,
        verdict=_verdict(found, basis, int(annotators.unique().numel())),
        notes=_notes(per_item, agreement, basis),
    )


# --- in words ---------------------------------------------------------------------------------


def _verdict(found: AnnotatorVariance | None, basis: str, n_compared: int) -> str:
    if basis == POOLED:
        return "Whether annotators differ cannot be said: votes are pooled, and nobody knows who gave which."
    if found is None:
        reason = (
            f"labels that can be scored come from {n_compared} of them"
            if n_compared < 2
            else "their labels are all right, or all wrong"
        )
        return f"Whether annotators differ cannot be said: {reason} (compared with: {basis})."
    measured = (
        f"the variance of their error rates is {found.ratio:.2f} times the binomial one (against {basis}; "
        f"chance alone: {found.null_mean:.2f} ± {found.null_sd:.2f}; p = {found.p:.3g})"
    )
    if found.p <= LEVEL:
        return f"Annotators differ: {measured}."
    consequence = (
        "a method cannot be expected to gain from annotator identity on this data"
        if basis == CLEAN
        else "with few labels an item the others' majority is a blunt yardstick: differences may be missed"
    )
    return f"No difference between annotators shows: {measured}; {consequence}."


def _notes(per_item: Tensor, agreement: float | None, basis: str) -> tuple[str, ...]:
    notes = []
    if agreement is None:
        notes.append("no item has two labels: agreement and Krippendorff's alpha are n/a")
    if agreement == 1.0:
        notes.append("all labels of an item are the same: they may have been copied rather than given")
    singles = int((per_item == 1).sum())
    if basis == LEAVE_ONE_OUT and singles and agreement is not None:
        notes.append(f"{singles} items with one label have no majority of others and are not compared")
    return tuple(notes)


def describe(found: Audit) -> list[tuple[str, str]]:
    """The audit as (label, value) pairs for people, in reading order."""
    rows = [
        ("items", _with_empty(found.n_items, found.n_items_without_labels)),
        ("annotators", _with_empty(found.n_annotators, found.n_annotators_without_labels)),
        ("annotations", f"{found.n_annotations:,}"),
        ("classes", f"{found.n_classes}"),
        ("labels per item", _spread_text(found.labels_per_item)),
        ("labels per annotator", _spread_text(found.labels_per_annotator)),
        ("labels per class", _counts_text(found.class_counts)),
        ("true labels per class", _counts_text(found.true_class_counts)),
        ("raw agreement", _text(found.raw_agreement, "{:.3f}".format)),
        ("Krippendorff's alpha", _text(found.krippendorff_alpha, "{:.3f}".format)),
        ("noise rate", _text(found.noise_rate, "{:.2%}".format)),
        ("noise rate of the majority", _text(found.majority_noise_rate, "{:.2%}".format)),
        ("annotator variance ratio", _text(found.annotator_variance_ratio, "{:.2f}".format)),
        ("  by chance alone", _text(found.annotator_variance_null_sd, "1 ± {:.2f}".format)),
        ("  p-value", _text(found.annotator_variance_p, "{:.3g}".format)),
        ("  compared with", found.annotator_variance_basis),
        ("spread of error rates beyond chance", _text(found.annotator_error_sd, "± {:.3f}".format)),
        ("verdict", found.verdict),
    ]
    return rows + [("note", note) for note in found.notes]


def _text(value: float | None, form: Callable[[float], str]) -> str:
    return "n/a" if value is None else form(value)


def _with_empty(total: int | None, empty: int | None) -> str:
    if total is None:
        return f"n/a ({POOLED})"
    return f"{total:,}" + (f" ({empty:,} without labels)" if empty else "")


def _spread_text(spread: Spread | None) -> str:
    if spread is None:
        return "n/a"
    return (
        f"min {spread.min:,}, quartiles {spread.q1:,g} / {spread.median:,g} / {spread.q3:,g}, "
        f"max {spread.max:,}, mean {spread.mean:,.1f}"
    )


def _counts_text(counts: tuple[int, ...] | None) -> str:
    if counts is None:
        return "n/a"
    if len(counts) <= 20:
        return " ".join(map(str, counts))
    return f"{len(counts)} classes, {min(counts):,} to {max(counts):,}"


# --- small counts -----------------------------------------------------------------------------


def _check_truth(annotations: Annotations, true_labels: Tensor | None) -> None:
    if true_labels is None:
        return
    if true_labels.shape != (annotations.n_items,):
        raise ValueError(
            f"true_labels have shape {tuple(true_labels.shape)}; give one for each of the {annotations.n_items} items"
        )
    outside = ((true_labels < -1) | (true_labels >= annotations.n_classes)).nonzero()
    if len(outside):
        item = int(outside[0])
        raise ValueError(
            f"item {item}: true label {int(true_labels[item])} is not between 0 and "
            f"{annotations.n_classes - 1} (-1: unknown)"
        )


def _spread(counts: Tensor) -> Spread | None:
    if not len(counts):
        return None
    low, q1, median, q3, high = np.quantile(counts.numpy(), [0, 0.25, 0.5, 0.75, 1])
    return Spread(int(low), float(q1), float(median), float(q3), int(high), float(counts.double().mean()))


def _class_counts(labels: Tensor, n_classes: int) -> tuple[int, ...]:
    return tuple(torch.bincount(labels[labels >= 0], minlength=n_classes).tolist())


def _majority_noise(annotations: Annotations, true_labels: Tensor | None, seed: int) -> float | None:
    if true_labels is None:
        return None
    majority = annotations.majority(derive_seed(seed=seed, purpose="audit majority"))
    known = (majority >= 0) & (true_labels >= 0)
    return float((majority != true_labels)[known].double().mean()) if known.any() else None
