"""Every measured cell of a table, one line each: what the means are made of and where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmark.report.atomic import write_text
from benchmark.result import Outcome, Result


def cell_frame(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One line a done cell: place, seed, digest, metrics (fractions or in their own unit), provenance.

    Where several columns of a row show the same cell, it is one line and ``column`` names them all, ``last;best``.
    """
    columns: dict[tuple[str, str, int], list[str]] = {}
    first: dict[tuple[str, str, int], Outcome] = {}
    for at in outcomes:
        if at.result is not None:
            key = (at.row, at.digest, at.cell.seed)
            columns.setdefault(key, []).append(at.column)
            first.setdefault(key, at)
    return pd.DataFrame([_record(at, at.result, columns[key]) for key, at in first.items() if at.result is not None])


def write_cells(table: str, outcomes: Sequence[Outcome], folder: Path) -> list[Path]:
    """Writes ``<folder>/<table>_cells.csv``, whole or not at all; nothing where no cell is done."""
    frame = cell_frame(outcomes)
    if frame.empty:
        return []
    return [write_text(folder / f"{table}_cells.csv", frame.to_csv(index=False, lineterminator="\n"))]


def _record(outcome: Outcome, result: Result, columns: Sequence[str]) -> dict[str, Any]:
    source = result.provenance
    seconds = source.get("seconds", {})
    return {
        "row": outcome.row,
        "column": ";".join(columns),
        "dataset": outcome.cell.dataset,
        "regime": outcome.cell.regime,
        "seed": outcome.cell.seed,
        "digest": outcome.digest,
        **result.metrics,
        **{f"seconds_{phase}": value for phase, value in seconds.items()},
        # a protocol measures prediction under the name without "cell"
        "cell_peak_memory_mib": source.get("peak_memory_mib"),
        "hardware": source.get("hardware"),
        "torch": source.get("versions", {}).get("torch"),
        "git": source.get("git"),
        "data_digest": source.get("data_digest"),
        "finished": source.get("finished"),
    }
