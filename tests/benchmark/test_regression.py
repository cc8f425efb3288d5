"""The gate: what did not move passes, what moved has a line, and what is gone has moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmark.regression import (
    FLOOR,
    RegressionError,
    baseline_path,
    committed_tables,
    compare,
    make_baseline,
    read_baseline,
    render_moved,
    tolerance,
    write_baseline,
)
from benchmark.report.build import build_report
from benchmark.report.model import Report
from tests.benchmark.fixtures_report import outcomes_of, small_spec


def _report(shift: float = 0.0, what: Any = None, seeds: int = 3) -> Report:
    """A report whose first row in the easy column is moved by ``shift``, or is ``what``."""
    spec = small_spec()

    def numbers(row: str, column: str, seed: int) -> dict[str, float | None] | str:
        here = row == "first" and column == "easy"
        if here and what is not None:
            return what  # type: ignore[no-any-return]
        return {"test_accuracy": 0.8 + 0.01 * seed + (shift if here else 0.0), "test_nll": 0.5 + 0.01 * seed}

    return build_report(spec, "demo", outcomes_of(spec, "demo", numbers, seeds=seeds))


def test_the_same_numbers_hold(tmp_path: Path) -> None:
    path = write_baseline(_report(), tmp_path)
    assert path == baseline_path(tmp_path, "demo", "demo/small") == tmp_path / "gate" / "demo" / "demo" / "small.json"
    assert committed_tables(tmp_path, "demo") == ["demo/small"] and committed_tables(tmp_path, "cpu") == []
    committed = read_baseline("demo/small", "demo", tmp_path)
    assert len(committed.numbers) == 8
    assert compare(_report(), committed) == []
    assert render_moved([]) == []


def test_a_move_beyond_the_tolerance_is_one_line_with_was_is_and_allowed() -> None:
    committed = make_baseline(_report())
    allowed = 3 * 0.01 * (2 / 3) ** 0.5
    assert committed.numbers[0].tolerance == pytest.approx(allowed)
    assert compare(_report(shift=0.9 * allowed), committed) == []
    for sign in (-1, 1):
        moved = compare(_report(shift=sign * 1.1 * allowed), committed)
        assert [(each.row, each.column, each.metric) for each in moved] == [("first", "easy", "test_accuracy")]
    (line,) = render_moved(moved, "demo/small")
    assert line == "demo/small: first / easy / test_accuracy: was 0.8100, is 0.8369, allowed ±0.0245"


@pytest.mark.parametrize("what", ["failed: RuntimeError: x", "missing", "n/a: no ids", {"test_nll": float("nan")}])
def test_a_number_that_failed_or_is_missing_has_moved(what: Any) -> None:
    moved = compare(_report(what=what), make_baseline(_report()))
    assert {each.metric for each in moved} == {"test_accuracy", "test_nll"}
    assert all(each.now is None and each.reason and "is –" in str(each) for each in moved)


def test_a_seed_that_failed_has_moved_even_if_the_mean_has_not() -> None:
    spec = small_spec()

    def numbers(row: str, column: str, seed: int) -> dict[str, float | None] | str:
        return "failed: E: x" if (row, seed) == ("first", 1) else {"test_accuracy": 0.8 + 0.01 * seed, "test_nll": 0.5}

    moved = compare(build_report(spec, "demo", outcomes_of(spec, "demo", numbers)), make_baseline(_report()))
    assert any(each.row == "first" and "failed in 1 of 3 seeds" in each.reason for each in moved)


def test_a_row_that_left_the_table_has_moved() -> None:
    committed = make_baseline(_report())
    spec = small_spec(rows=[{"name": "second", "label": "Second", "method": "cross_entropy"}])
    numbers = outcomes_of(spec, "demo", lambda _, __, seed: {"test_accuracy": 0.8 + 0.01 * seed, "test_nll": 0.51})
    moved = compare(build_report(spec, "demo", numbers), committed)
    assert {each.row for each in moved} == {"first"} and "no longer in the table" in str(moved[0])


def test_fewer_seeds_are_held_to_a_wider_tolerance() -> None:
    assert tolerance(0.01, 3, 1) > tolerance(0.01, 3, 3) > FLOOR
    assert compare(_report(seeds=1), make_baseline(_report())) == []


def test_the_tolerance_never_falls_below_its_floor() -> None:
    assert tolerance(0.0, 3, 3) == tolerance(None, 1, 1) == FLOOR


def test_only_a_whole_table_can_be_committed() -> None:
    with pytest.raises(RegressionError, match="run the table to its end first"):
        make_baseline(_report(what="failed: RuntimeError: x"))


def test_numbers_that_are_not_there_or_broken_name_file_and_remedy(tmp_path: Path) -> None:
    with pytest.raises(RegressionError, match="annobench check --update"):
        read_baseline("demo/small", "demo", tmp_path)
    broken = baseline_path(tmp_path, "demo", "demo/small")
    broken.parent.mkdir(parents=True)
    broken.write_text('{"table": 3')
    with pytest.raises(RegressionError, match="small.json does not hold"):
        read_baseline("demo/small", "demo", tmp_path)


def test_another_table_cannot_be_held_against_it() -> None:
    committed = make_baseline(_report()).model_copy(update={"profile": "cpu"})
    with pytest.raises(RegressionError, match="cannot be held against"):
        compare(_report(), committed)


def test_committed_numbers_are_finite(tmp_path: Path) -> None:
    # no difference to NaN is ever too large: such a file passed whatever was measured
    path = write_baseline(_report(), tmp_path)
    path.write_text(path.read_text().replace('"mean": 0.81', '"mean": NaN', 1))
    with pytest.raises(RegressionError, match="does not hold committed numbers"):
        read_baseline("demo/small", "demo", tmp_path)


def test_large_numbers_have_a_floor_of_their_own_size_and_small_ones_keep_theirs() -> None:
    # a trace of thousands moves by more than .01 when a processor rounds differently
    assert tolerance(0.0, 3, 3, mean=5_000.0) == tolerance(None, 1, 1, mean=-5_000.0) == pytest.approx(100.0)
    assert tolerance(0.0, 3, 3, mean=10.0) == tolerance(0.0, 3, 3, mean=0.9) == FLOOR
    assert tolerance(200.0, 3, 3, mean=5_000.0) == tolerance(200.0, 3, 3) > 100.0


def test_numbers_under_a_columns_prefix_are_held() -> None:
    columns = [{"name": "best", "label": "Best", "regime": "aggre", "prefix": "best_"}]
    rows = [{"name": "first", "label": "First", "method": "cross_entropy"}]
    spec = small_spec(columns=columns, rows=rows, references=[])
    numbers = {"test_accuracy": 0.1, "best_test_accuracy": 0.8, "best_test_nll": 0.5}
    held = make_baseline(build_report(spec, "demo", outcomes_of(spec, "demo", lambda *_: numbers)))
    assert {(each.metric, each.mean) for each in held.numbers} == {("test_accuracy", 0.8), ("test_nll", 0.5)}
