"""From a table's spec and the outcomes of its cells to a :class:`Report`: numbers, marks and notes.

A failed cell is never a value, and a row without any value is a row of dashes with the reason: what lacks in
one place changes nothing elsewhere.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from benchmark.report.compare import compare_rows
from benchmark.report.model import DELTA_SPREADS, DELTA_TOLERANCE, CellStatus, Report, ReportCell
from benchmark.report.notes import data_line, fact_lines, hardware_line, note_lines
from benchmark.report.statistics import Spread, spread
from benchmark.report.values import Prefixes, prefixes, value_at, with_averages
from benchmark.result import DONE, FAILED, MISSING, NOT_APPLICABLE, Outcome
from benchmark.spec import TableSpec
from benchmark.table_parts import ColumnSpec, MetricSpec, ProfileSpec, RowSpec


def build_report(
    spec: TableSpec,
    profile: str,
    outcomes: Sequence[Outcome],
    data_notes: Sequence[str] = (),
    printed: Sequence[ColumnSpec] = (),
) -> Report:
    """Lays out ``outcomes`` as the table ``spec`` under ``profile``.

    Args:
        spec: the table.
        profile: name of one of its profiles.
        outcomes: what became of the planned cells, in any order; places without any are "missing".
        data_notes: what is to be known of the data, e.g. the verdict of its audit.
        printed: all columns of the table, those that the profile omits as well; empty: the columns of ``spec``.

    Raises:
        SpecError: if the table has no such profile.
    """
    chosen = spec.profile(profile)
    prefix, places = prefixes(spec), with_averages(spec, outcomes)
    cells = [
        _cell(row, column.name, metric, _at(places, row.name, column.name), chosen, prefix)
        for row in spec.rows
        for column in spec.columns
        for metric in spec.metrics
    ]
    marked = tuple(_mark_best(cells, spec))
    comparisons = compare_rows(spec, places)
    return Report(
        table=spec.table,
        kind=spec.kind,
        title=spec.title,
        paper=spec.paper,
        profile=profile,
        is_papers_data=chosen.is_papers_data,
        data=data_line(spec, chosen, outcomes),
        hardware=hardware_line(outcomes),
        rows=spec.rows,
        columns=spec.columns,
        printed_columns=tuple(printed) or spec.columns,
        metrics=spec.metrics,
        references=spec.references,
        cells=marked,
        facts=fact_lines(spec, profile, outcomes),
        notes=note_lines(spec, profile, outcomes, marked, comparisons, data_notes),
        comparisons=comparisons,
    )


def _at(outcomes: Sequence[Outcome], row: str, column: str) -> list[Outcome]:
    found = [outcome for outcome in outcomes if (outcome.row, outcome.column) == (row, column)]
    return sorted(found, key=lambda outcome: outcome.cell.seed)


def _cell(
    row: RowSpec,
    column: str,
    metric: MetricSpec,
    outcomes: Sequence[Outcome],
    profile: ProfileSpec,
    prefix: Prefixes,
) -> ReportCell:
    done = [outcome for outcome in outcomes if outcome.status == DONE and outcome.result is not None]
    summary = spread([value_at(prefix, outcome, metric.name) for outcome in done])
    paper = row.values.get(column, {}).get(metric.name)
    # a column may bring other data than the profile's, and that is not the paper's
    comparable = profile.is_papers_data and all(outcome.cell.dataset == profile.dataset for outcome in outcomes)
    delta = summary.mean - paper if comparable and paper is not None and summary.mean is not None else None
    status, reason = _status(outcomes, len(done), summary.n)
    return ReportCell(
        row=row.name,
        column=column,
        metric=metric.name,
        paper=paper,
        mean=summary.mean,
        std=summary.std,
        n=summary.n,
        planned=len(outcomes),
        delta=delta,
        status=status,
        reason=reason,
        flagged=_is_flagged(delta, summary),
    )


def _is_flagged(delta: float | None, summary: Spread) -> bool:
    if delta is None:
        return False
    return abs(delta) > max(DELTA_TOLERANCE, DELTA_SPREADS * (summary.std or 0.0))


def _status(outcomes: Sequence[Outcome], n_done: int, n_values: int) -> tuple[CellStatus, str]:
    """Status of a place and why it is not done."""
    counts: Counter[str] = Counter(outcome.status for outcome in outcomes)
    total = len(outcomes)
    if n_values == total and total:
        return "done", ""
    reasons = [
        f"{status} in {counts[status]} of {total} seeds{_why(outcomes, status)}"
        for status in (FAILED, NOT_APPLICABLE, MISSING)
        if counts[status]
    ]
    if n_done > n_values:
        reasons.append(f"no value (not measured, or undefined) in {n_done - n_values} of {total} seeds")
    reason = "; ".join(reasons) or "not run"
    if n_values:
        return "partial", reason
    if counts[FAILED]:
        return "failed", reason
    if counts[MISSING] or not total:
        return "missing", reason
    return "n/a", reason


def _why(outcomes: Sequence[Outcome], status: str) -> str:
    whys = dict.fromkeys(outcome.reason for outcome in outcomes if outcome.status == status and outcome.reason)
    return f" ({'; '.join(whys)})" if whys else ""


def _mark_best(cells: Sequence[ReportCell], spec: TableSpec) -> list[ReportCell]:
    """The cells with the best mean of each column and metric marked; nothing where only one row has a value."""
    directions = {metric.name: metric.direction for metric in spec.metrics}
    by_place: dict[tuple[str, str], list[float]] = {}
    for cell in cells:
        if cell.mean is not None:
            by_place.setdefault((cell.column, cell.metric), []).append(cell.mean)
    marked = []
    for cell in cells:
        means = by_place.get((cell.column, cell.metric), [])
        if cell.mean is not None and len(means) > 1:
            best = max(means) if directions[cell.metric] == "max" else min(means)
            cell = replace(cell, best=math.isclose(cell.mean, best, rel_tol=0, abs_tol=1e-12))
        marked.append(cell)
    return marked
