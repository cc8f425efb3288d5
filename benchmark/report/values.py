"""Where a table's numbers stand in results: metrics under a column's prefix, and arrays of items of two results."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmark.report.statistics import present
from benchmark.result import DONE, Outcome, Result
from benchmark.spec import TableSpec


def prefixes(spec: TableSpec) -> dict[str, str]:
    """Column -> what goes before a metric's name there."""
    return {column.name: column.prefix for column in spec.columns}


def value_at(prefix: dict[str, str], outcome: Outcome, metric: str) -> float | None:
    """What ``outcome`` measured of ``metric`` in its column; None where nothing was.

    Args:
        prefix: as :func:`prefixes` gives it.
        outcome: of any status.
        metric: name without the column's prefix.
    """
    if outcome.status != DONE or outcome.result is None:
        return None
    return outcome.result.metrics.get(prefix[outcome.column] + metric)


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
