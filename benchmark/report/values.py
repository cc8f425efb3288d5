"""Where a table's numbers stand in results: metrics under a column's prefix, and arrays of items of two results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from benchmark.report.statistics import present
from benchmark.result import DONE, MISSING, Outcome, Result
from benchmark.spec import TableSpec

Prefixes = dict[tuple[str, str], str]
#: metrics that every run has: seconds of the wall clock, as its provenance has them
DURATIONS = {"train_seconds": "train", "evaluate_seconds": "evaluate"}


def prefixes(spec: TableSpec) -> Prefixes:
    """(row, column) -> what goes before a metric's name there."""
    return {(row.name, column.name): column.prefix + row.prefix for row in spec.rows for column in spec.columns}


def value_at(prefix: Prefixes, outcome: Outcome, metric: str) -> float | None:
    """What ``outcome`` measured of ``metric`` in its place; None where nothing was.

    Args:
        prefix: as :func:`prefixes` gives it.
        outcome: of any status.
        metric: name without the place's prefix; one of :data:`DURATIONS` has none.
    """
    if outcome.status != DONE or outcome.result is None:
        return None
    name = prefix[outcome.row, outcome.column] + metric
    if metric in DURATIONS and name not in outcome.result.metrics:  # an average has its own
        seconds = outcome.result.provenance.get("seconds", {}).get(DURATIONS[metric])
        return None if seconds is None else float(seconds)
    return outcome.result.metrics.get(name)


def with_averages(spec: TableSpec, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """``outcomes`` and, for each average column, row and seed, one more whose metrics are the columns' means.

    A metric that one of the columns lacks is None. An average of which not all is done has the status and the reason
    of the first column that lacks.
    """
    found = {(at.row, at.column, at.cell.seed): at for at in outcomes}
    places = dict.fromkeys((at.row, at.cell.seed) for at in outcomes)
    averages = []
    for column in spec.columns:
        for row, seed in places if column.average_of else ():
            parts = [found.get((row, part, seed)) for part in column.average_of]
            known = [part for part in parts if part is not None]
            if known:
                averages.append(_average(spec, column.name, known, len(parts)))
    return [*outcomes, *averages]


def _average(spec: TableSpec, column: str, parts: Sequence[Outcome], wanted: int) -> Outcome:
    first = next((part for part in parts if part.status != DONE), parts[0])
    place = replace(first, column=column, digest="", result=None)
    if first.status != DONE or first.result is None:
        return place
    if len(parts) < wanted:
        return replace(place, status=MISSING, reason="one of the columns was not run")
    prefix, own = prefixes(spec), prefixes(spec)[first.row, column]
    means = {}
    for metric in spec.metrics:
        values = [value_at(prefix, part, metric.name) for part in parts]
        means[own + metric.name] = fmean(present(values)) if len(present(values)) == len(values) else None
    return replace(place, result=first.result.model_copy(update={"metrics": means, "arrays": {}, "curves": {}}))


def direction_of(spec: TableSpec, metric: str) -> str:
    """``max`` or ``min``: which way ``metric`` is better."""
    return next(known.direction for known in spec.metrics if known.name == metric)


def gain_pairs(first: Result, second: Result, array: str, against: str) -> list[tuple[float, float]] | None:
    """How much lower ``array`` is in ``first`` than in ``second``, item by item, and ``against`` of the item.

    Args:
        first: one result.
        second: another, on the same items.
        array: name in ``Result.arrays``, a value an item; in full: no column's prefix goes before.
        against: likewise.

    Returns:
        ``(against, gain)`` of the items for which all is there, by item number; None where an array lacks, the items
        are not equally many, or both results disagree in ``against``: then they are not of the same items and votes.
    """
    arrays = [each.arrays.get(name, []) for each in (first, second) for name in (array, against)]
    if not arrays[0] or len({len(each) for each in arrays}) > 1:
        return None
    lower, places, higher, same = arrays
    if not all(map(_agree, places, same)):
        return None
    known = [present(item) for item in zip(places, higher, lower, strict=True)]
    return [(item[0], item[1] - item[2]) for item in known if len(item) == 3]


def _agree(one: float | None, other: float | None) -> bool:
    """Equal up to what another machine's rounding makes of the same votes, or both missing."""
    pair: Sequence[float] = present([one, other])
    return len(pair) == 0 or (len(pair) == 2 and math.isclose(*pair, rel_tol=1e-5, abs_tol=1e-6))
