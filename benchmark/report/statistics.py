"""Mean, spread and tests over seeds. Plain numbers in, plain numbers out; knows nothing of training.

The tests are scipy's and statsmodels'; this module only fixes conventions: what is missing (None or NaN) is
left out and n says how many values remain, a standard deviation is the sample's (n - 1), an interval is
Student's t, and nothing here raises because a value is missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from statsmodels.stats.multitest import multipletests

Value = float | None


@dataclass(frozen=True)
class Spread:
    """Mean and spread of ``n`` values; ``mean`` is None for n = 0, ``std`` None for n < 2."""

    mean: float | None
    std: float | None
    n: int


@dataclass(frozen=True)
class Interval:
    """An estimate with a confidence interval from ``n`` values."""

    estimate: float
    low: float
    high: float
    n: int
    confidence: float = 0.95


def present(values: Sequence[Value]) -> list[float]:
    """The values that are there and finite, as floats."""
    return [float(value) for value in values if value is not None and math.isfinite(value)]


def spread(values: Sequence[Value]) -> Spread:
    """Mean, sample standard deviation and count of what is present in ``values``."""
    kept = present(values)
    if not kept:
        return Spread(None, None, 0)
    if min(kept) == max(kept):
        # exactly: rounding in the mean would leave a spread of 1e-17, and a t test would take it seriously
        return Spread(kept[0], 0.0 if len(kept) > 1 else None, len(kept))
    std = float(np.std(kept, ddof=1))
    return Spread(float(np.mean(kept)), std, len(kept))


def paired_differences(first: Sequence[Value], second: Sequence[Value]) -> list[float]:
    """``first - second``, pair by pair, where both are present.

    Raises:
        ValueError: if the sequences differ in length, so that pairs cannot be told.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} values cannot be paired; give one of each per seed")
    pairs = [present(pair) for pair in zip(first, second, strict=True)]
    return [pair[0] - pair[1] for pair in pairs if len(pair) == 2]


def t_interval(values: Sequence[Value], confidence: float = 0.95) -> Interval | None:
    """Mean with Student's t interval; None for fewer than two values.

    Values that are all equal give an interval without width.
    """
    summary = spread(values)
    if summary.mean is None or summary.std is None:
        return None
    half = float(stats.t.ppf((1 + confidence) / 2, summary.n - 1)) * summary.std / math.sqrt(summary.n)
    return Interval(summary.mean, summary.mean - half, summary.mean + half, summary.n, confidence)


def prediction_interval(values: Sequence[Value], confidence: float = 0.95) -> Interval | None:
    """Mean with Student's t interval for *one more* value; None for fewer than two values."""
    summary = spread(values)
    narrow = t_interval(values, confidence)
    if narrow is None or summary.mean is None:
        return None
    half = (narrow.high - summary.mean) * math.sqrt(summary.n + 1)
    return Interval(summary.mean, summary.mean - half, summary.mean + half, summary.n, confidence)


def prediction_p(values: Sequence[Value]) -> float | None:
    """Two-sided p-value of 0 under :func:`prediction_interval`; None where there is no spread."""
    summary = spread(values)
    if summary.mean is None or not summary.std:
        return None
    statistic = abs(summary.mean) / (summary.std * math.sqrt(1 + 1 / summary.n))
    return float(2 * stats.t.sf(statistic, summary.n - 1))


def paired_t(differences: Sequence[Value]) -> float | None:
    """Two-sided p of "the mean difference is 0"; None for fewer than two differences."""
    summary = spread(differences)
    if summary.mean is None or summary.std is None:
        return None
    if summary.std == 0:
        return 1.0 if summary.mean == 0 else 0.0
    return float(stats.ttest_1samp(present(differences), 0.0).pvalue)


def wilcoxon_exact(differences: Sequence[Value]) -> float | None:
    """Two-sided p of Wilcoxon's signed-rank test over all 2^n signs, ties and zeros included; None for n = 0.

    With n pairs it cannot fall below ``2 / 2**n``: see :func:`smallest_wilcoxon_p`.
    """
    kept = present(differences)
    if not any(kept):
        return 1.0 if kept else None
    # Pratt: zeros are ranked too and count for neither side; doubled, ranks of ties are whole numbers
    doubled = (2 * stats.rankdata(np.abs(kept))).astype(int) * (np.array(kept) != 0)
    total = int(doubled.sum())
    chances = np.zeros(total + 1)  # of each sum of the ranks with a plus sign, every sign being even odds
    chances[0] = 1.0
    for rank in doubled:
        shifted = np.zeros_like(chances)
        shifted[rank:] = chances[: total + 1 - rank]
        chances = (chances + shifted) / 2
    observed = int(doubled[np.array(kept) > 0].sum())
    as_far = np.abs(2 * np.arange(total + 1) - total) >= abs(2 * observed - total)
    return min(1.0, float(chances[as_far].sum()))


def smallest_wilcoxon_p(n: int) -> float:
    """The smallest two-sided p that Wilcoxon's exact test can give with ``n`` pairs."""
    return min(1.0, 2.0 / 2**n)


def holm(p_values: Sequence[Value]) -> list[float | None]:
    """Holm's adjustment of several p-values; missing ones stay missing and do not count."""
    known = [index for index, value in enumerate(p_values) if value is not None and not math.isnan(value)]
    adjusted: list[float | None] = [None] * len(p_values)
    if known:
        corrected = multipletests([p_values[index] for index in known], method="holm")[1]
        for index, value in zip(known, corrected, strict=True):
            adjusted[index] = float(value)
    return adjusted


def one_sided_t(values: Sequence[Value], above: float) -> float | None:
    """p of "the mean is at most ``above``" by Student's t; None where there is no spread to test with."""
    summary = spread(values)
    if summary.mean is None or not summary.std:
        return None
    statistic = (summary.mean - above) / (summary.std / math.sqrt(summary.n))
    return float(stats.t.sf(statistic, summary.n - 1))


def spearman(first: Sequence[Value], second: Sequence[Value], confidence: float = 0.95) -> Interval | None:
    """Spearman's rank correlation of the pairs that are there, with Fisher's interval on the ranks.

    Returns:
        None for fewer than four pairs (no interval exists) or where one side is constant (undefined).
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} values cannot be paired")
    pairs = [pair for pair in map(present, zip(first, second, strict=True)) if len(pair) == 2]
    if len(pairs) < 4:
        return None
    left, right = (stats.rankdata(side) for side in zip(*pairs, strict=True))
    if np.ptp(left) == 0 or np.ptp(right) == 0:
        return None
    outcome = stats.pearsonr(left, right)
    low, high = outcome.confidence_interval(confidence)
    return Interval(float(outcome.statistic), float(low), float(high), len(pairs), confidence)


def correlation_interval(
    correlations: Sequence[Value], n_pairs: int, reference: float = 0.0, confidence: float = 0.95
) -> tuple[Interval, float] | None:
    """Mean of several correlations with the interval of a *single* one over ``n_pairs`` pairs (Fisher's z).

    Rank correlations of few pairs take few values: some seeds can agree to the last digit and still say
    nothing. So the mean is taken to be only as certain as one run, which never overstates.

    Returns:
        The interval and the two-sided p of "the correlation is ``reference``"; None without correlations or
        with fewer than four pairs.
    """
    kept = present(correlations)
    if not kept or n_pairs < 4:
        return None
    z = float(np.mean(np.arctanh(np.clip(kept, -1 + 1e-9, 1 - 1e-9))))
    error = 1 / math.sqrt(n_pairs - 3)
    half = float(stats.norm.ppf((1 + confidence) / 2)) * error
    p = 2 * float(stats.norm.sf(abs(z - math.atanh(reference)) / error))
    return Interval(math.tanh(z), math.tanh(z - half), math.tanh(z + half), len(kept), confidence), p


def slope(values: Sequence[Value]) -> float | None:
    """Least-squares change per step of ``values`` taken at 0, 1, 2, …; None if one is missing or n < 2."""
    kept = present(values)
    if len(kept) != len(values) or len(kept) < 2:
        return None
    return float(stats.linregress(np.arange(len(kept)), kept).slope)
