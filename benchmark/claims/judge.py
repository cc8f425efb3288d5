"""From effects, a number per seed, to a judgement: the rules in the package's docstring and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from benchmark.claims.kinds import ClaimTest, Correlation, Equals, Equivalence, NonInferiority, PairedDifference
from benchmark.report.statistics import (
    Interval,
    correlation_interval,
    one_sided_t,
    paired_t,
    prediction_interval,
    prediction_p,
    t_interval,
    wilcoxon_exact,
)

Judgement = Literal["shown", "not shown", "contradicted", "not testable here"]
Judged = tuple[Judgement, Interval, float | None]

LEVEL = 0.05


def judge(test: ClaimTest, effects: Sequence[float], epochs: int = 0) -> Judged:
    """Judgement, interval and p-value from two or more seeds' effects.

    Args:
        test: the claim's test.
        effects: a number per seed.
        epochs: of the shortest curve; read by ``correlation`` alone.
    """
    if isinstance(test, Correlation):
        return _correlation(test, effects, epochs)
    if isinstance(test, Equivalence | Equals):
        return _within(effects, test.margin)
    if isinstance(test, NonInferiority):
        return _non_inferior(effects, test.margin)
    if isinstance(test, PairedDifference) and test.one_realisation:
        return _one_realisation(effects)
    if isinstance(test, PairedDifference) and test.exact:
        return _exact(effects)
    return _above_zero(effects)


def _above_zero(effects: Sequence[float]) -> Judged:
    wide = _interval(effects, 0.95)
    p = paired_t(effects)
    if wide.low == wide.high:
        # accuracies come in steps of one test item: that seeds agree exactly does not make them certain
        p = wilcoxon_exact(effects)
        if p is None or p >= LEVEL:
            return "not shown", wide, p
    if wide.low > 0:
        return "shown", wide, p
    return ("contradicted" if wide.high < 0 else "not shown"), wide, p


def _exact(effects: Sequence[float]) -> Judged:
    """By the signs alone; no p-value, as there is no chance."""
    interval = _interval(effects, 0.95)
    if min(effects) > 0:
        return "shown", interval, None
    return ("contradicted" if max(effects) < 0 else "not shown"), interval, None


def _within(effects: Sequence[float], margin: float) -> Judged:
    """Two one-sided tests (TOST) that the mean effect lies within ``margin`` of 0."""
    wide, narrow = _interval(effects, 0.95), _interval(effects, 0.90)
    p = max(_p_above(effects, -margin), _p_above([-effect for effect in effects], -margin))
    if p < LEVEL:
        return "shown", narrow, p
    # without a spread, the signs alone say that all seeds lie outside
    certain = wide.low < wide.high or 2 * 0.5 ** len(effects) < LEVEL
    outside = wide.low > margin or wide.high < -margin
    return ("contradicted" if outside and certain else "not shown"), narrow, p


def _non_inferior(effects: Sequence[float], margin: float) -> Judged:
    """One one-sided test that the mean effect is above ``-margin``, and one that it is below."""
    narrow = _interval(effects, 0.90)
    p = _p_above(effects, -margin)
    if p < LEVEL:
        return "shown", narrow, p
    inferior = _p_above([-effect for effect in effects], margin) < LEVEL
    return ("contradicted" if inferior else "not shown"), narrow, p


def _p_above(effects: Sequence[float], bound: float) -> float:
    """One-sided p of "the mean effect is at most ``bound``"; by the signs where the seeds agree exactly."""
    p = one_sided_t(effects, bound)
    if p is None:  # no spread, or one so small that its square is 0
        return 0.5 ** len(effects) if min(effects) > bound else 1.0
    return p


def _interval(effects: Sequence[float], confidence: float) -> Interval:
    found = t_interval(effects, confidence)
    assert found is not None, "two effects or more have an interval"
    return found


def _one_realisation(effects: Sequence[float]) -> Judged:
    """By the prediction interval: the first side is one draw, however many seeds repeat it."""
    interval = prediction_interval(effects)
    assert interval is not None, "two effects or more have an interval"
    p = prediction_p(effects)
    if p is None or interval.low <= 0 <= interval.high:
        return "not shown", interval, p
    return ("shown" if interval.low > 0 else "contradicted"), interval, p


def _correlation(test: Correlation, effects: Sequence[float], epochs: int) -> Judged:
    found = correlation_interval([effect + test.above for effect in effects], epochs, test.above)
    assert found is not None, "a seed with an effect has four epochs or more"
    over_seeds = _interval(effects, 0.95)
    within, p = found
    low = min(within.low - test.above, over_seeds.low)
    high = max(within.high - test.above, over_seeds.high)
    interval = replace(over_seeds, low=max(low, -1 - test.above), high=min(high, 1 - test.above))
    if low > 0:
        return "shown", interval, p
    return ("contradicted" if high < 0 else "not shown"), interval, p
