"""A claim's test, and what it lacks, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

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
    Side,
    Trend,
)
from benchmark.report.figure_parts import words
from benchmark.result import DONE, NOT_APPLICABLE, Outcome
from benchmark.spec import TableSpec


def describe(test: ClaimTest, spec: TableSpec) -> str:
    """The comparison in one line."""
    if isinstance(test, Correlation):
        curves = " and ".join(test.curves)
        return f"correlation over epochs of {curves}, {_place(spec, test.row, test.columns)} > {test.above:g}"
    if isinstance(test, GainCorrelation):
        sides = _sides(spec, test.first, test.second)
        return f"correlation over items of how much lower {test.array} is with {test.against}: {sides} > 0"
    metric = {known.name: known.label for known in spec.metrics}[test.metric]
    if isinstance(test, GainDifference):
        here, there = (_names(spec, columns) for columns in (test.columns, test.than_columns))
        return f"{metric}: {_row(spec, test.row)} gains over {_row(spec, test.over)} more in {here} than in {there}"
    if isinstance(test, Trend):
        return f"{metric} {test.direction} over columns, {_place(spec, test.row, test.columns)}"
    if isinstance(test, PairedDifference | Equivalence | NonInferiority):
        return f"{metric}: {_sides(spec, test.first, test.second)}{_margin(test)}"
    if isinstance(test, Equals):
        return f"{metric}, {_place(spec, test.row, test.columns)} = {test.value:g}, within ±{test.margin:g}"
    if isinstance(test, AbovePairs):
        pairs = f"{words(test.probe)} of pairs, {test.pair} (two seeds share one)"
        return f"{metric}, {_place(spec, test.row, test.columns)} > {pairs}"
    return f"{metric}, {_place(spec, test.row, test.columns)} > {test.above:g}"


def _place(spec: TableSpec, row: str, names: Sequence[str]) -> str:
    return f"{_row(spec, row)} ({_names(spec, names)})"


def _row(spec: TableSpec, name: str) -> str:
    return next(row.label for row in spec.rows if row.name == name)


def _names(spec: TableSpec, columns: Sequence[str]) -> str:
    labels = {column.name: column.label for column in spec.columns}
    return ", ".join(labels[name] for name in columns)


def _sides(spec: TableSpec, first: Side, second: Side) -> str:
    return " against ".join(_place(spec, side.row, side.columns) for side in (first, second))


def _margin(test: PairedDifference | Equivalence | NonInferiority) -> str:
    if isinstance(test, Equivalence):
        return f", within ±{test.margin:g}"
    if not isinstance(test, NonInferiority):
        return ""
    return f", worse by less than {f'{100 * test.margin:g} %' if test.relative else f'{test.margin:g}'}"


def lacking(test: ClaimTest, outcomes: Sequence[Outcome], effects: dict[int, float | None]) -> str:
    """Which of the needed cells have no value and why; empty if none lacks."""
    parts: list[str] = []
    planned = {(outcome.row, outcome.column) for outcome in outcomes}
    absent = [place for place in dict.fromkeys(test.places()) if place not in planned]
    if absent:
        parts.append(f"not run: {', '.join(f'{row} in {column}' for row, column in absent)}")
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        if outcome.status != DONE:
            why = f": {outcome.reason}" if outcome.reason else ""
            counts[f"{outcome.status}{why if outcome.status == NOT_APPLICABLE else ''}"] += 1
    parts += [f"{count} of {len(outcomes)} cells {status}" for status, count in counts.items()]
    if not parts and any(effect is None for effect in effects.values()):
        without = sum(effect is None for effect in effects.values())
        parts.append(f"{_no_effect(test)} in {without} of {len(effects)} seeds")
    return "; ".join(parts)


def _no_effect(test: ClaimTest) -> str:
    if isinstance(test, Correlation):
        return "a curve is constant or has fewer than four epochs"
    if isinstance(test, GainCorrelation):
        return f"{test.array} or {test.against} lacks, is constant, or is of other items in the two sides"
    return "no value, or no probed pair," if isinstance(test, AbovePairs) else "no value"
