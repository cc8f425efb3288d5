"""What comes out of a cell, and where it stands in a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from benchmark.spec import Cell

Status = Literal["done", "failed", "missing", "n/a"]
DONE: Final = "done"
FAILED: Final = "failed"
MISSING: Final = "missing"
NOT_APPLICABLE: Final = "n/a"


class Result(BaseModel):
    """The outcome of one cell that ran to its end.

    ``metrics`` holds what ``benchmark.evaluate`` measured (fractions, not per cent); ``curves`` one list
    per logged name with a value an epoch; ``arrays`` lists a figure needs (e.g. skill per annotator);
    ``notes`` what the data says of itself; ``provenance`` versions, hardware, git revision, data digest,
    durations, peak memory, profile.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: str
    cell: Cell
    metrics: dict[str, float | None]
    curves: dict[str, list[float | None]] = {}
    arrays: dict[str, list[float | None]] = {}
    notes: tuple[str, ...] = ()
    provenance: dict[str, Any] = {}


@dataclass(frozen=True)
class Outcome:
    """A planned cell and what became of it.

    Attributes:
        row: name of its row.
        column: name of its column.
        cell: the cell.
        digest: its address in the store; empty where it could not be computed (data absent).
        status: ``done``, ``failed``, ``missing`` or ``n/a``.
        result: there exactly when ``done``.
        reason: last line of the error if failed, why if not applicable, else empty.
    """

    row: str
    column: str
    cell: Cell
    digest: str
    status: Status
    result: Result | None = None
    reason: str = ""
