"""The gate on headline numbers: what is measured now against what is committed.

``leaderboards/gate/<profile>/<paper>/<table>.json`` holds, for each number of a table, mean, spread, n and how
far it may move. A number may move by ::

    allowed = max(floor(mean), SPREADS * std * sqrt(1 / n_was + 1 / n_is))

that is, by ``SPREADS`` standard errors of a difference of two means of independent seeds. On the same machine
the same cell gives the same bits and nothing moves; another processor or torch release rounds differently,
which is at most as much as drawing other seeds. ``std`` is the number's own or, where larger, the median of
its metric over the table: three seeds that happen to agree must not make a gate that nobody can pass. ``floor`` is
``FLOOR``, which suits fractions and nats; of numbers above ``LARGE`` in size (a trace of thousands) it is the share
``RELATIVE_FLOOR``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pydantic import BaseModel, ConfigDict, ValidationError

from benchmark.report.atomic import write_text
from benchmark.report.layout import DASH
from benchmark.report.model import Report, ReportCell

FLOOR = 0.01
LARGE = 10.0
RELATIVE_FLOOR = 0.02
SPREADS = 3.0

Place = tuple[str, str, str]


class RegressionError(RuntimeError):
    """The committed numbers are not there or cannot be read: names the file and the remedy."""


class _Frozen(BaseModel):
    # a NaN among the committed numbers would hold nothing: no difference to it is ever too large
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class HeldNumber(_Frozen):
    """One committed number."""

    row: str
    column: str
    metric: str
    mean: float
    std: float | None
    n: int
    tolerance: float
    """How far it may move when measured with as many seeds."""

    @property
    def place(self) -> Place:
        """Row, column and metric."""
        return (self.row, self.column, self.metric)


class Baseline(_Frozen):
    """The committed numbers of one table under one profile."""

    table: str
    profile: str
    data: str
    hardware: str
    numbers: tuple[HeldNumber, ...]


@dataclass(frozen=True)
class Moved:
    """A number that is not where it was.

    Attributes:
        row: name of the row.
        column: name of the column.
        metric: name of the metric.
        was: committed mean.
        now: measured mean, or None where there is none now.
        allowed: how far it might have moved.
        reason: why there is no number now, or what else is wrong; empty for a plain move.
    """

    row: str
    column: str
    metric: str
    was: float
    now: float | None
    allowed: float
    reason: str = ""

    def __str__(self) -> str:
        now = DASH if self.now is None else f"{self.now:.4f}"
        why = f" ({self.reason})" if self.reason else ""
        place = f"{self.row} / {self.column} / {self.metric}"
        return f"{place}: was {self.was:.4f}, is {now}, allowed ±{self.allowed:.4f}{why}"


def baseline_path(root: Path, profile: str, table: str) -> Path:
    """Where the committed numbers of ``table`` under ``profile`` are, below ``leaderboards/``."""
    return root / "gate" / profile / f"{table}.json"


def tolerance(std: float | None, n_was: int, n_is: int, mean: float = 0.0) -> float:
    """How far a mean over ``n_was`` seeds, ``mean``, may be from one over ``n_is``; see the module's docstring."""
    floor = RELATIVE_FLOOR * abs(mean) if abs(mean) > LARGE else FLOOR
    if std is None or n_was < 1 or n_is < 1:
        return floor
    return max(floor, SPREADS * std * math.sqrt(1 / n_was + 1 / n_is))


def make_baseline(report: Report) -> Baseline:
    """The numbers of ``report`` that are there, with their tolerances.

    Raises:
        RegressionError: if a cell failed or is missing: what is committed must be a whole table.
    """
    broken = [cell for cell in report.cells if cell.status in ("failed", "missing", "partial")]
    if broken:
        first = broken[0]
        raise RegressionError(
            f"{report.table}, profile {report.profile}: {len(broken)} numbers are not done, the first is "
            f"{first.row} / {first.column} / {first.metric} ({first.reason}); run the table to its end first"
        )
    typical = _typical_spreads(report.cells)
    numbers = tuple(_held(cell, typical) for cell in report.cells if cell.mean is not None)
    return Baseline(
        table=report.table, profile=report.profile, data=report.data, hardware=report.hardware, numbers=numbers
    )


def _held(cell: ReportCell, typical: dict[str, float]) -> HeldNumber:
    assert cell.mean is not None
    spread = max(cell.std or 0.0, typical.get(cell.metric, 0.0))
    return HeldNumber(
        row=cell.row,
        column=cell.column,
        metric=cell.metric,
        mean=cell.mean,
        std=spread if cell.std is not None else None,
        n=cell.n,
        tolerance=tolerance(spread, cell.n, cell.n, cell.mean),
    )


def _typical_spreads(cells: Iterable[ReportCell]) -> dict[str, float]:
    spreads: dict[str, list[float]] = {}
    for cell in cells:
        if cell.std is not None:
            spreads.setdefault(cell.metric, []).append(cell.std)
    return {metric: median(values) for metric, values in spreads.items()}


def committed_tables(root: Path, profile: str) -> list[str]:
    """Names of the tables whose numbers under ``profile`` are committed below ``root``, sorted."""
    folder = root / "gate" / profile
    return sorted(f"{path.parent.name}/{path.stem}" for path in folder.glob("*/*.json"))


def write_baseline(report: Report, root: Path) -> Path:
    """Writes the numbers of ``report`` below ``root``, whole or not at all; errors as :func:`make_baseline`."""
    path = baseline_path(root, report.profile, report.table)
    return write_text(path, make_baseline(report).model_dump_json(indent=2) + "\n")


def read_baseline(table: str, profile: str, root: Path) -> Baseline:
    """The committed numbers of ``table`` under ``profile``, below ``root``.

    Raises:
        RegressionError: if the file is not there or is not what :func:`write_baseline` writes.
    """
    path = baseline_path(root, profile, table)
    try:
        return Baseline.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RegressionError(
            f"{path} is not there: no numbers are committed for this table and profile; write them with "
            "`annobench check --update` after a complete run"
        ) from error
    except (ValidationError, UnicodeDecodeError) as error:
        raise RegressionError(f"{path} does not hold committed numbers: {str(error).splitlines()[-1]}") from error


def compare(report: Report, committed: Baseline) -> list[Moved]:
    """Every committed number that moved beyond its tolerance, is missing, failed, or is not a number now.

    Numbers that are new in ``report`` are not held yet and do not count.

    Raises:
        RegressionError: if both are of different tables or profiles, which cannot be compared.
    """
    if (report.table, report.profile) != (committed.table, committed.profile):
        raise RegressionError(
            f"{report.table} under {report.profile} cannot be held against {committed.table} under {committed.profile}"
        )
    measured = {(cell.row, cell.column, cell.metric): cell for cell in report.cells}
    moved = [_moved(held, measured.get(held.place)) for held in committed.numbers]
    return [number for number in moved if number is not None]


def _moved(held: HeldNumber, cell: ReportCell | None) -> Moved | None:
    if cell is None:
        return Moved(*held.place, held.mean, None, held.tolerance, "no longer in the table")
    if cell.mean is None:
        return Moved(*held.place, held.mean, None, held.tolerance, cell.reason or cell.status)
    allowed = held.tolerance if cell.n == held.n else tolerance(held.std, held.n, cell.n, held.mean)
    far = abs(cell.mean - held.mean) > allowed
    if cell.status != "done" or far:
        return Moved(*held.place, held.mean, cell.mean, allowed, cell.reason)
    return None


def render_moved(moved: Sequence[Moved], table: str = "") -> list[str]:
    """A line per number that moved: where, what it was, what it is, what is allowed; ``table`` goes before."""
    prefix = f"{table}: " if table else ""
    return [f"{prefix}{number}" for number in moved]
