"""Skill: how a method's estimate of each annotator's skill compares with the truth."""

from __future__ import annotations

import warnings

import torch
from scipy import stats
from torch import Tensor

from benchmark.evaluate.measured import Measured, finite_or_none
from datamodules.annotations import Annotations
from datamodules.base import CrowdDataModule
from models.base import CrowdModule

#: below that many annotations an annotator's true skill is mostly chance; they are left out
MIN_ANNOTATIONS = 10


def measure(method: CrowdModule, datamodule: CrowdDataModule) -> Measured:
    """Correlation of estimated with true skill (clean accuracy) over annotators with enough annotations.

    ``skill_correlation`` (Spearman) and ``skill_correlation_pearson`` take the truth from the annotations
    that were trained on, as the report's Figure 2 does: estimate and truth then share the same finite
    sample and correlate by chance alone. ``skill_correlation_heldout`` takes it from held-out annotations,
    which removes that. None where the method estimates no skill or all estimates are equal.
    """
    estimated = method.annotator_skill()
    truth = datamodule.data.true_labels
    if estimated is None or truth is None:
        return Measured()
    estimated = estimated.detach().double().cpu()
    trained, counts = true_skill(datamodule.train_annotations, truth)
    held_out, held_counts = true_skill(datamodule.val_annotations, truth)
    enough = counts >= MIN_ANNOTATIONS
    held_enough = enough & (held_counts >= MIN_ANNOTATIONS)
    return Measured(
        {
            "skill_mean": finite_or_none(float(estimated.mean())),
            "skill_correlation": correlation("spearman", estimated[enough], trained[enough]),
            "skill_correlation_pearson": correlation("pearson", estimated[enough], trained[enough]),
            "skill_correlation_heldout": correlation("spearman", estimated[held_enough], held_out[held_enough]),
        },
        {
            "skill_estimated": estimated[enough].tolist(),
            "skill_true": trained[enough].tolist(),
            "annotations_per_annotator": counts[enough].tolist(),
        },
    )


def true_skill(annotations: Annotations, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Share of right annotations ``[R]`` (NaN without annotations) and number of annotations ``[R]``."""
    counts = torch.bincount(annotations.annotators, minlength=annotations.n_annotators).double()
    right = (annotations.labels == truth[annotations.items]).double()
    hits = torch.zeros_like(counts).index_add_(0, annotations.annotators, right)
    return hits / counts, counts


def correlation(kind: str, first: Tensor, second: Tensor) -> float | None:
    """Spearman or Pearson correlation; None where it is undefined (under 3 values, or a constant)."""
    if len(first) < 3:
        return None
    function = {"spearman": stats.spearmanr, "pearson": stats.pearsonr}[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a constant input is an expected case: it gives NaN, then None
        return finite_or_none(float(function(first.numpy(), second.numpy()).statistic))
