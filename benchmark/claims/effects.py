"""From results to effects: what a kind of test makes of one seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmark.claims.kinds import (
    AbovePairs,
    ClaimTest,
    Correlation,
    Equals,
    Equivalence,
    GainCorrelation,
    GainDifference,
    NonInferiority,
    PairedDifference,
    Trend,
)
from benchmark.report.statistics import present, slope, spearman, spread
from benchmark.report.values import direction_of, gain_pairs, prefixes, value_at
from benchmark.result import DONE, Outcome, Result
from benchmark.spec import TableSpec

#: what probes say of pairs of trained models, see :func:`benchmark.pairs.probe_pairs`
Pairs = Sequence[Mapping[str, Any]]


def effects_by_seed(
    test: ClaimTest, spec: TableSpec, outcomes: Sequence[Outcome], pairs: Pairs = ()
) -> dict[int, float | None]:
    """Seed -> its effect, None where a cell or a pair that the test needs has no value."""
    done = {
        (outcome.cell.seed, outcome.row, outcome.column): outcome
        for outcome in outcomes
        if outcome.status == DONE and outcome.result is not None
    }
    effects: dict[int, float | None] = {}
    for seed in sorted({outcome.cell.seed for outcome in outcomes}):
        found = [done.get((seed, *place)) for place in test.places()]
        complete = [outcome for outcome in found if outcome is not None]
        effect = _effect(test, spec, complete) if len(complete) == len(found) else None
        if isinstance(test, AbovePairs):
            effect = _above(effect, _of_pairs(test, seed, pairs))
        # what rounding leaves of equal numbers (1e-17) must not become an effect with a sign
        effects[seed] = None if effect is None else round(effect, 12)
    return effects


def _effect(test: ClaimTest, spec: TableSpec, outcomes: Sequence[Outcome]) -> float | None:
    """Effect of one seed from what became of ``test.places()``, in that order."""
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    half = len(results) // 2
    if isinstance(test, Correlation):
        return _mean_of_all([_curve_correlation(test, result) for result in results], minus=test.above)
    if isinstance(test, GainCorrelation):
        pairs = zip(results[:half], results[half:], strict=True)
        return _mean_of_all([_gain_correlation(test, *pair) for pair in pairs], minus=0.0)
    prefix = prefixes(spec)
    values = [value_at(prefix, outcome, test.metric) for outcome in outcomes]
    numbers = present(values)
    if len(numbers) < len(values):
        return None
    if isinstance(test, Trend):
        change = slope(numbers)
        return None if change is None else (change if test.direction == "rising" else -change)
    sign = 1 if direction_of(spec, test.metric) == "max" else -1
    if isinstance(test, GainDifference):
        here, there = _gain(numbers[: 2 * len(test.columns)]), _gain(numbers[2 * len(test.columns) :])
        return sign * (here - there)
    if isinstance(test, PairedDifference | Equivalence | NonInferiority):
        difference = sign * _gain(numbers)
        relative = isinstance(test, NonInferiority) and test.relative
        return difference / abs(fmean(numbers[half:])) if relative else difference
    if isinstance(test, AbovePairs):
        return _mean_of_all(values, minus=0.0)
    return _mean_of_all(values, minus=test.value if isinstance(test, Equals) else test.above)


def _of_pairs(test: AbovePairs, seed: int, pairs: Pairs) -> float | None:
    """Mean over the columns of the mean probe of the pairs with ``seed``; None if one lacks, or a column has none."""
    means = []
    for column in test.columns:
        values = [
            record["value"]
            for record in pairs
            if (record["column"], record["pair"], record["probe"]) == (column, test.pair, test.probe)
            and seed in (record["first_seed"], record["second_seed"])
        ]
        means.append(None if not values or None in values else fmean(present(values)))
    return _mean_of_all(means, minus=0.0)


def _above(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other


def _gain(numbers: Sequence[float]) -> float:
    """Mean of the first half less that of the second."""
    half = len(numbers) // 2
    return fmean(numbers[:half]) - fmean(numbers[half:])


def curve_lengths(test: ClaimTest, outcomes: Sequence[Outcome]) -> int:
    """Epochs in which both curves of a ``correlation`` have a value, in the shortest run; 0 for other kinds."""
    if not isinstance(test, Correlation):
        return 0
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    lengths = [
        sum(
            len(present(pair)) == 2
            for pair in zip(*(result.curves.get(name, []) for name in test.curves), strict=False)
        )
        for result in results
    ]
    return min((length for length in lengths if length >= 4), default=0)


def _curve_correlation(test: Correlation, result: Result) -> float | None:
    first, second = (result.curves.get(name, []) for name in test.curves)
    length = min(len(first), len(second))
    interval = spearman(first[:length], second[:length])
    return None if interval is None else interval.estimate


def _gain_correlation(test: GainCorrelation, first: Result, second: Result) -> float | None:
    pairs = gain_pairs(first, second, test.array, test.against)
    interval = spearman([place for place, _ in pairs], [gain for _, gain in pairs]) if pairs else None
    return None if interval is None else interval.estimate


def _mean_of_all(values: Sequence[float | None], minus: float) -> float | None:
    """Mean of ``values`` less ``minus``; None if one of them is missing."""
    summary = spread(values)
    return summary.mean - minus if summary.mean is not None and summary.n == len(values) else None
