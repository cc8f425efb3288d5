"""How well annotators agree, and whether their error rates differ more than chance has it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from datamodules.annotations import Annotations
from datamodules.seeds import derive_seed

#: random deals of the ids behind a p-value; the smallest it can be is 1 / (this + 1)
PERMUTATIONS = 999


@dataclass(frozen=True)
class AnnotatorVariance:
    """Whether annotators' error rates vary more than chance has it.

    Attributes:
        ratio: variance of the error rates over the binomial one; about 1 if annotators do not differ.
        p: share of random deals of the ids with at least this ratio (one-sided, the data counted as one).
        null_mean: mean ratio of those deals.
        null_sd: their standard deviation.
        error_rate: share of the annotations that are wrong.
        error_sd: standard deviation of annotators' own error rates with the binomial part taken off (by
            moments; 0 where there is no excess).
        n_annotators: annotators with a label that could be scored.
        n_annotations: labels that could be scored.
    """

    ratio: float
    p: float
    null_mean: float
    null_sd: float
    error_rate: float
    error_sd: float
    n_annotators: int
    n_annotations: int


# --- agreement --------------------------------------------------------------------------------


def raw_agreement(annotations: Annotations) -> float | None:
    """Probability that two annotators of an item agree, averaged over the items with two labels or more.

    The observed agreement of Fleiss (1971). None where no item has two labels.
    """
    votes = annotations.votes().double()
    counts = votes.sum(dim=1)
    agreeing = (votes * (votes - 1)).sum(dim=1)
    several = counts >= 2
    if not several.any():
        return None
    return float((agreeing[several] / (counts * (counts - 1))[several]).mean())


def krippendorff_alpha(annotations: Annotations) -> float | None:
    """Krippendorff's alpha for nominal labels: 1 for full agreement, 0 for what chance gives.

    None where it is undefined: no item with two labels, or one class only. This is the textbook's closed form
    on the vote counts; the package krippendorff builds items x classes x classes, 4 GB for 50,000 items of
    100 classes, and is the oracle in the tests instead.
    """
    votes = annotations.votes().double()
    counts = votes.sum(dim=1)
    several = counts >= 2
    votes, counts = votes[several], counts[several]
    totals = votes.sum(dim=0)
    n_pairable = totals.sum()
    agreeing_by_chance = (totals * (totals - 1)).sum()
    possible = n_pairable * (n_pairable - 1)
    if n_pairable == 0 or agreeing_by_chance == possible:
        return None
    agreeing = ((votes * (votes - 1)).sum(dim=1) / (counts - 1)).sum()
    observed = 1 - agreeing / n_pairable
    return float(1 - observed / (1 - agreeing_by_chance / possible))


# --- do annotators differ ---------------------------------------------------------------------


def score(annotations: Annotations, true_labels: Tensor | None, seed: int) -> tuple[Tensor, Tensor]:
    """Which annotations can be scored ``[n]`` bool, and which of them are wrong ``[n]`` bool.

    Against the clean label where there is one; without clean labels against the majority of the item's other
    annotators, ties broken at random by ``seed``, so that an item needs two labels.
    """
    if true_labels is None:
        return _score_leave_one_out(annotations, seed)
    truth = true_labels[annotations.items]
    return truth >= 0, annotations.labels != truth


def _score_leave_one_out(annotations: Annotations, seed: int) -> tuple[Tensor, Tensor]:
    """Chance of agreeing with the others' majority, from each item's two highest counts alone.

    Only a label that is the item's sole most frequent one can still win without its own vote: alone if it was
    ahead by two or more, else in a tie with all classes that had one vote less. (A label that ties for the
    first place loses to the classes it tied with, and any other label loses anyhow.)
    """
    votes = annotations.votes()
    own = votes[annotations.items, annotations.labels]
    best = votes.max(dim=1).values
    second = torch.where(votes < best.unsqueeze(1), votes, -1).max(dim=1).values
    sole = (votes == best.unsqueeze(1)).sum(dim=1) == 1
    rivals = (votes == second.unsqueeze(1)).sum(dim=1)[annotations.items]
    first = (own == best[annotations.items]) & sole[annotations.items]
    lead = own - second[annotations.items]
    chance = torch.where(lead >= 2, 1.0, 1.0 / (1.0 + rivals)) * first
    generator = torch.Generator().manual_seed(derive_seed(seed=seed, purpose="audit ties"))
    draw = torch.rand(len(annotations), generator=generator)
    return annotations.labels_per_item()[annotations.items] >= 2, draw >= chance


def annotator_variance(
    annotators: Tensor, wrong: Tensor, n_annotators: int, seed: int, permutations: int = PERMUTATIONS
) -> AnnotatorVariance | None:
    """Variance of annotators' error rates over the binomial one, with a permutation p-value.

    With n_r labels and error rate e_r of annotator r and error rate p overall, the ratio is the chi-squared
    statistic of homogeneity over its degrees of freedom: sum_r n_r (e_r - p)^2 / (p (1 - p) (R - 1)), over
    the R annotators with a label. The p-value deals the ids out to the annotations at random. The number of
    errors each annotator then has is multivariate hypergeometric, so it is drawn as such, with no shuffling.

    A large ratio says that error rates differ, not why: annotators who were given harder items also show it.
    A design in which all label the same items makes the ratio smaller (hard items are hard for everyone), so
    there the test errs on the side of no difference.

    Args:
        annotators: annotator of each scored annotation ``[n]``.
        wrong: whether it is wrong ``[n]`` bool.
        n_annotators: number of annotators.
        seed: seed of the random deals.
        permutations: how many.

    Returns:
        None where it is undefined: fewer than two annotators, or all annotations wrong or all right.
    """
    counts = torch.bincount(annotators, minlength=n_annotators).numpy()
    errors = torch.bincount(annotators[wrong], minlength=n_annotators).numpy()
    active = counts > 0
    counts, errors = counts[active], errors[active]
    n_wrong, total = int(errors.sum()), int(counts.sum())
    if len(counts) < 2 or n_wrong in (0, total):
        return None
    ratio = float(_variance_ratio(errors, counts))
    generator = np.random.default_rng(derive_seed(seed=seed, purpose="audit permutations"))
    dealt = generator.multivariate_hypergeometric(counts, n_wrong, size=permutations, method="marginals")
    null = _variance_ratio(dealt, counts)
    rate = n_wrong / total
    # E[chi2] = (R - 1) + error_sd^2 (n - sum n_r^2 / n) / (p (1 - p)), solved for error_sd
    excess = max(0.0, (ratio - 1) * (len(counts) - 1)) * rate * (1 - rate)
    spread = total - float((counts.astype(np.float64) ** 2).sum()) / total
    return AnnotatorVariance(
        ratio=ratio,
        p=float((1 + (null >= ratio * (1 - 1e-12)).sum()) / (1 + permutations)),
        null_mean=float(null.mean()),
        null_sd=float(null.std()),
        error_rate=rate,
        error_sd=float(np.sqrt(excess / spread)),
        n_annotators=len(counts),
        n_annotations=total,
    )


def _variance_ratio(errors: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Chi-squared over degrees of freedom, for error counts ``[..., R]`` among ``counts [R]`` labels."""
    rate = errors.sum(axis=-1, keepdims=True) / counts.sum()
    squares = (errors - counts * rate) ** 2 / (counts * rate * (1 - rate))
    return np.asarray(squares.sum(axis=-1) / (len(counts) - 1))
