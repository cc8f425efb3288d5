"""Statistics: equal to closed forms and to scipy, and never broken by a missing value."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmark.report.statistics import (
    holm,
    one_sided_t,
    paired_differences,
    paired_t,
    slope,
    smallest_wilcoxon_p,
    spearman,
    spread,
    t_interval,
    wilcoxon_exact,
)

NUMBERS = st.floats(-100, 100).map(lambda value: round(value, 3))
MAYBE = st.one_of(NUMBERS, st.none(), st.just(float("nan")))


def test_spread_is_mean_and_sample_deviation() -> None:
    assert spread([1.0, 3.0]).mean == 2.0
    assert spread([1.0, 3.0]).std == pytest.approx(math.sqrt(2))
    assert (spread([5.0]).mean, spread([5.0]).std, spread([5.0]).n) == (5.0, None, 1)
    assert (spread([]).mean, spread([None, float("nan")]).n) == (None, 0)


@given(st.lists(MAYBE, max_size=12))
def test_missing_values_are_left_out_of_everything(values: list[float | None]) -> None:
    kept = [value for value in values if value is not None and not math.isnan(value)]
    assert spread(values) == spread(kept)
    assert t_interval(values) == t_interval(kept)
    assert paired_t(values) == paired_t(kept)


@given(st.lists(NUMBERS, min_size=2, max_size=12))
def test_t_interval_is_scipys(values: list[float]) -> None:
    interval = t_interval(values)
    assert interval is not None
    if max(values) == min(values):
        assert interval.low == pytest.approx(interval.high)
        return
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    assert (interval.low, interval.high) == (pytest.approx(low, abs=1e-9), pytest.approx(high, abs=1e-9))


def test_pairs_with_a_missing_side_are_left_out_and_lengths_must_match() -> None:
    assert paired_differences([3.0, None, 5.0], [1.0, 2.0, float("nan")]) == [2.0]
    with pytest.raises(ValueError, match="cannot be paired"):
        paired_differences([1.0], [1.0, 2.0])


@pytest.mark.parametrize("differences", [[0.1, 0.2, 0.3], [0.1, -0.2, 0.3, 0.4, 0.5, 0.7], [1.0, 1.0, -1.0, 2.0]])
def test_wilcoxon_is_the_enumeration_of_all_signs(differences: list[float]) -> None:
    ranks = stats.rankdata(np.abs(differences))
    observed = abs(float(np.sum(np.sign(differences) * ranks)))
    signs = list(itertools.product((-1, 1), repeat=len(differences)))
    extreme = sum(abs(float(np.dot(sign, ranks))) >= observed - 1e-9 for sign in signs)
    assert wilcoxon_exact(differences) == pytest.approx(extreme / len(signs))


@given(st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=7).filter(any))
def test_wilcoxon_with_ties_and_zeros_is_the_enumeration_too(differences: list[float]) -> None:
    # Pratt's way with zeros: ranked with the others, on neither side
    ranks = stats.rankdata(np.abs(differences)) * (np.array(differences) != 0)
    signs = np.array(list(itertools.product((-1, 1), repeat=len(differences))))
    observed = abs(float(np.sign(differences) @ ranks))
    assert wilcoxon_exact(differences) == pytest.approx(float(np.mean(np.abs(signs @ ranks) >= observed)))


def test_wilcoxon_of_many_pairs_is_scipys_exact_distribution() -> None:
    differences = np.random.default_rng(0).normal(0.3, 1.0, size=40).tolist()
    assert wilcoxon_exact(differences) == pytest.approx(stats.wilcoxon(differences, method="exact").pvalue)


def test_one_sided_t_is_scipys_and_undefined_without_spread() -> None:
    values = [0.1, 0.3, -0.2, 0.4]
    assert one_sided_t(values, -0.1) == pytest.approx(stats.ttest_1samp(values, -0.1, alternative="greater").pvalue)
    assert one_sided_t([0.1, 0.1], 0.0) is None and one_sided_t([0.1], 0.0) is None


def test_three_pairs_cannot_be_significant_by_wilcoxon() -> None:
    assert wilcoxon_exact([0.1, 0.2, 0.3]) == pytest.approx(smallest_wilcoxon_p(3)) == 0.25
    assert smallest_wilcoxon_p(5) > 0.05 > smallest_wilcoxon_p(6)
    assert wilcoxon_exact([0.0, 0.0]) == 1.0
    assert wilcoxon_exact([]) is None


def test_holm_multiplies_the_smallest_by_all_and_skips_the_missing() -> None:
    assert holm([0.01, None, 0.04, 0.03]) == [pytest.approx(0.03), None, pytest.approx(0.06), pytest.approx(0.06)]
    assert holm([None]) == [None]


def test_equal_values_need_no_division_by_zero() -> None:
    assert paired_t([0.5, 0.5, 0.5]) == 0.0
    assert paired_t([0.0, 0.0]) == 1.0


def test_spearman_is_scipys_and_undefined_where_constant() -> None:
    first, second = [1.0, 2.0, 3.0, 4.0, 5.0, None], [2.0, 1.0, 4.0, 3.0, 5.0, 9.0]
    interval = spearman(first, second)
    assert interval is not None
    assert interval.estimate == pytest.approx(stats.spearmanr(first[:5], second[:5]).statistic)
    assert interval.low < interval.estimate < interval.high and interval.n == 5
    assert spearman([1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0]) is None
    assert spearman([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) is None


def test_slope_is_the_change_per_step() -> None:
    assert slope([0.9, 0.8, 0.7]) == pytest.approx(-0.1)
    assert slope([0.9, None, 0.7]) is None
    assert slope([0.9]) is None
