"""Rows held against a reference row, seed by seed: differences, intervals and p-values.

The unit is the seed: a row and the reference are compared where both have a value, so that what a seed fixes for
both (split, votes drawn, order) cancels. Nothing here speaks of other test items than the ones there were. All
comparisons of a table are one family for Holm's adjustment, of the t tests and of the Wilcoxon tests apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmark.report.statistics import (
    holm,
    paired_differences,
    paired_t,
    smallest_wilcoxon_p,
    spread,
    t_interval,
    wilcoxon_exact,
)
from benchmark.report.values import direction_of, prefixes, value_at
from benchmark.result import Outcome
from benchmark.spec import TableSpec

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Comparison:
    """A row against the reference row in one column, by one metric.

    Attributes:
        row: name of the row.
        reference: name of the row it is held against.
        column: name of the column.
        metric: name of the metric.
        n: seeds in which both have a value.
        better: in how many of them the row is strictly better, by the metric's direction.
        difference: mean of row minus reference, in the metric's units; None for n = 0.
        low: lower end of its 95 % t interval over seeds, or None.
        high: upper end, or None.
        p_t: two-sided p of the paired t test, or None.
        p_t_holm: the same, adjusted over the table.
        p_wilcoxon: two-sided p of the exact signed-rank test, or None.
        p_wilcoxon_holm: the same, adjusted over the table.
        reason: why a number is None; else empty.
    """

    row: str
    reference: str
    column: str
    metric: str
    n: int
    better: int
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p_t: float | None = None
    p_t_holm: float | None = None
    p_wilcoxon: float | None = None
    p_wilcoxon_holm: float | None = None
    reason: str = ""

    def record(self) -> dict[str, Any]:
        """All attributes by name, ready for strict JSON."""
        return asdict(self)


def compare_rows(spec: TableSpec, outcomes: Sequence[Outcome]) -> tuple[Comparison, ...]:
    """The comparisons that ``spec.compare`` asks for: by metric, column and row; none where it asks for none."""
    if spec.compare is None:
        return ()
    rows = [row.name for row in spec.rows if row.name != spec.compare.reference]
    raw = [
        _compare(spec, outcomes, row, spec.compare.reference, column.name, metric)
        for metric in spec.compare.metrics
        for column in spec.columns
        for row in rows
    ]
    by_t, by_ranks = holm([each.p_t for each in raw]), holm([each.p_wilcoxon for each in raw])
    return tuple(
        replace(each, p_t_holm=t, p_wilcoxon_holm=ranks) for each, t, ranks in zip(raw, by_t, by_ranks, strict=True)
    )


def _compare(
    spec: TableSpec, outcomes: Sequence[Outcome], row: str, reference: str, column: str, metric: str
) -> Comparison:
    ours, theirs = (_by_seed(spec, outcomes, name, column, metric) for name in (row, reference))
    seeds = sorted(ours.keys() & theirs.keys())
    raw = paired_differences([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds])
    # what rounding leaves of equal numbers (1e-17) must not become a difference with a sign
    differences = [round(value, 12) for value in raw]
    sign = 1 if direction_of(spec, metric) == "max" else -1
    better = sum(sign * value > 0 for value in differences)
    summary = spread(differences)
    found = Comparison(row, reference, column, metric, summary.n, better, summary.mean)
    if summary.n == 0:
        return replace(found, reason="no seed has a value of both rows")
    if summary.n == 1:
        return replace(found, reason="one seed: no spread is known, nothing can be tested")
    found = replace(found, p_wilcoxon=wilcoxon_exact(differences))
    interval = t_interval(differences)
    if interval is None or not summary.std:
        return replace(found, reason="the difference is the same in every seed: without a spread there is no t test")
    return replace(found, low=interval.low, high=interval.high, p_t=paired_t(differences))


def _by_seed(
    spec: TableSpec, outcomes: Sequence[Outcome], row: str, column: str, metric: str
) -> dict[int, float | None]:
    prefix = prefixes(spec)
    return {
        outcome.cell.seed: value_at(prefix, outcome, metric)
        for outcome in outcomes
        if (outcome.row, outcome.column) == (row, column)
    }


# --- words ------------------------------------------------------------------------------------


def comparison_notes(comparisons: Sequence[Comparison]) -> list[str]:
    """How to read the comparisons, and what so few seeds can never show; nothing without comparisons."""
    if not comparisons:
        return []
    numbers = sorted({each.n for each in comparisons if each.n > 1})
    if not numbers:
        return ["Paired comparisons: no two rows share two seeds or more, so nothing could be tested."]
    family = sum(each.p_wilcoxon is not None for each in comparisons)
    return [
        "Paired comparisons: a row minus the reference row over the seeds that both have, with Student's t interval "
        f"(95 %); p-values are two-sided; Holm's adjustment is over all {family} comparisons of this table. The unit "
        "is the seed: where all seeds have the same test items, they speak of other seeds and not of other test items.",
        # each number of seeds has its own limit: columns with many must not speak for those with few
        *[note for n in numbers for note in _too_few(n, family)],
    ]


def _too_few(n: int, family: int) -> list[str]:
    smallest = smallest_wilcoxon_p(n)
    adjusted = min(1.0, family * smallest)
    if adjusted < SIGNIFICANT:
        return []
    needed = math.floor(math.log2(2 * family / SIGNIFICANT)) + 1
    if smallest >= SIGNIFICANT:
        return [
            f"With {n} seeds no exact Wilcoxon test of two rows can give p < {SIGNIFICANT} (the smallest is "
            f"{smallest:.3g}), and none can after Holm's adjustment over {family} comparisons (it would take {needed} "
            "seeds): its p-values can neither show nor rule out a difference there. Read the intervals."
        ]
    return [
        f"With {n} seeds no exact Wilcoxon test can give p < {SIGNIFICANT} after Holm's adjustment over {family} "
        f"comparisons (the smallest is {adjusted:.3g}; it would take {needed} seeds), though single tests can "
        f"({smallest:.3g})."
    ]
