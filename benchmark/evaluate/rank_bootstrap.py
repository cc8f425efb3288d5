"""Rank correlation over few subjects, with a bootstrap interval."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from datamodules.seeds import derive_seed

#: draws of the annotators
RESAMPLES = 2000
_SEED = 0


class RankCorrelation(NamedTuple):
    """Spearman's correlation with the bounds of a bootstrap; None where it is undefined."""

    estimate: float | None
    low: float | None
    high: float | None


def rank_correlation(first: Tensor, second: Tensor, resamples: int = RESAMPLES) -> RankCorrelation:
    """Spearman's correlation of two values of each annotator, and the 95 % interval of a bootstrap over annotators.

    Bounds are quantiles of the correlation over annotators drawn again with replacement (fixed seed); draws in which
    one side is constant have no correlation and are left out. Over ten annotators such an interval is wide.

    Args:
        first: a value of each annotator ``[R]``; pairs with NaN are left out.
        second: another ``[R]``.
        resamples: draws.

    Returns:
        Without numbers for fewer than 3 annotators or where one side is constant.
    """
    known = ~(first.isnan() | second.isnan())
    sides = torch.stack([first[known], second[known]]).double().numpy()
    n = sides.shape[1]
    if n < 3 or np.ptp(sides, axis=1).min() == 0:
        return RankCorrelation(None, None, None)
    generator = np.random.default_rng(derive_seed(seed=_SEED, purpose="resampled annotators"))
    drawn = generator.integers(n, size=(resamples, n))
    values = _spearman(sides[0][drawn], sides[1][drawn])
    low, high = np.nanquantile(values, [0.025, 0.975])
    return RankCorrelation(float(_spearman(sides[:1], sides[1:])[0]), float(low), float(high))


def _spearman(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Spearman's correlation of each row ``[S]``; NaN where one side is constant."""
    centred = [
        ranks - ranks.mean(1, keepdims=True) for ranks in (stats.rankdata(side, axis=1) for side in (first, second))
    ]
    spread = np.sqrt((centred[0] ** 2).sum(1) * (centred[1] ** 2).sum(1))
    return (centred[0] * centred[1]).sum(1) / np.where(spread > 0, spread, np.nan)
