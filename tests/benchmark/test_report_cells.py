"""The file of single cells holds every value that a mean is made of, and where it comes from."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from benchmark.report import build_report
from benchmark.report.cells import cell_frame, write_cells
from tests.benchmark.fixtures_report import outcomes_of, small_spec


def numbers(row: str, column: str, seed: int) -> dict[str, float | None] | str:
    if (row, column) == ("second", "hard"):
        return "failed: RuntimeError: cold"
    return {"test_accuracy": 0.5 + 0.1 * seed, "test_nll": None}


def test_the_mean_of_the_table_is_the_mean_of_its_cells(tmp_path: Path) -> None:
    spec = small_spec()
    outcomes = outcomes_of(spec, "cpu", numbers)
    (path,) = write_cells(spec.table, outcomes, tmp_path)
    frame = pd.read_csv(path)
    assert path == tmp_path / "demo" / "small_cells.csv"
    assert len(frame) == 9, "a failed cell is not a line"
    mean = frame[(frame.row == "first") & (frame.column == "easy")].test_accuracy.mean()
    assert mean == pytest.approx(build_report(spec, "cpu", outcomes).cell("first", "easy", "test_accuracy").mean)
    assert set(frame.hardware) == {"a processor (2 cores)"} and frame.test_nll.isna().all()


def test_a_table_without_results_writes_no_file(tmp_path: Path) -> None:
    spec = small_spec()
    outcomes = outcomes_of(spec, "cpu", lambda row, column, seed: "missing")
    assert write_cells(spec.table, outcomes, tmp_path) == []
    assert cell_frame(outcomes).empty and not list(tmp_path.iterdir())


def test_columns_that_show_one_cell_are_one_line_that_names_them() -> None:
    columns = [
        {"name": "last", "label": "Last", "regime": "aggre"},
        {"name": "best", "label": "Best", "regime": "aggre", "prefix": "best_"},
    ]
    rows = [{"name": name, "label": name, "method": "cross_entropy"} for name in ("first", "second")]
    spec = small_spec(columns=columns, rows=rows, references=[])
    frame = cell_frame(outcomes_of(spec, "cpu", lambda *_: {"test_accuracy": 0.5, "best_test_accuracy": 0.6}))
    assert len(frame) == 2 * 3 and set(frame.column) == {"last;best"}
    assert set(frame.best_test_accuracy) == {0.6} and list(frame.columns)[:2] == ["row", "column"]
