"""What a report is made of: plain frozen records that every renderer reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmark.report.compare import Comparison
from benchmark.table_parts import ColumnSpec, MetricSpec, PaperSpec, ReferenceRow, RowSpec

CellStatus = Literal["done", "partial", "failed", "missing", "n/a"]

#: a difference to the paper is flagged beyond this (in the metric's own units) …
DELTA_TOLERANCE = 0.02
#: … and beyond this many standard deviations over seeds
DELTA_SPREADS = 2.0


@dataclass(frozen=True)
class ReportCell:
    """One number of the table: a row, a column and a metric, over seeds.

    Attributes:
        row: name of the row.
        column: name of the column.
        metric: name of the metric.
        paper: the paper's value, or None where it printed none.
        mean: ours over the seeds that are done, or None.
        std: sample standard deviation, or None for fewer than two seeds.
        n: seeds in ``mean``.
        planned: seeds asked for.
        delta: ``mean - paper`` where the data is the paper's own, else None.
        status: ``done``; ``partial`` (some seeds lack); ``failed``, ``missing``, ``n/a`` (no seed has a value).
        reason: why it is not ``done``, in a sentence without the place; else empty.
        best: whether it is the best mean of its column, by the metric's direction.
        flagged: whether ``delta`` exceeds the tolerance.
    """

    row: str
    column: str
    metric: str
    paper: float | None
    mean: float | None
    std: float | None
    n: int
    planned: int
    delta: float | None
    status: CellStatus
    reason: str = ""
    best: bool = False
    flagged: bool = False


@dataclass(frozen=True)
class Report:
    """A table with everything a reader must know about it; made by ``build.build_report``."""

    table: str
    kind: str
    title: str
    paper: PaperSpec
    profile: str
    is_papers_data: bool
    data: str
    hardware: str
    rows: tuple[RowSpec, ...]
    columns: tuple[ColumnSpec, ...]
    metrics: tuple[MetricSpec, ...]
    references: tuple[ReferenceRow, ...]
    cells: tuple[ReportCell, ...]
    facts: tuple[str, ...]
    """What this table is: data, profile, seeds, selection, precision, hardware."""
    notes: tuple[str, ...]
    """Everything else to know: of data, sources, rows, failures, statistics."""
    printed_columns: tuple[ColumnSpec, ...] = ()
    """Columns for which the paper's values are shown where they stand apart: those that were not run as well."""
    comparisons: tuple[Comparison, ...] = ()
    """Rows held against the reference row, by metric, column and row; empty where the table asks for none."""

    def cell(self, row: str, column: str, metric: str) -> ReportCell:
        """The cell at a place; KeyError if the table has no such place."""
        for cell in self.cells:
            if (cell.row, cell.column, cell.metric) == (row, column, metric):
                return cell
        raise KeyError(f"table {self.table!r} has no cell ({row!r}, {column!r}, {metric!r})")

    def has_paper_values(self, column: str, metric: str) -> bool:
        """Whether the paper printed a value of ``metric`` in ``column`` for any row."""
        return any(cell.paper is not None for cell in self.cells if (cell.column, cell.metric) == (column, metric))
