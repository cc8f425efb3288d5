"""Columns that are the mean of others, and rows that show what one cell measured under several names."""

from __future__ import annotations

from typing import Any

import pytest

from benchmark.claims import evaluate_claims
from benchmark.report.build import build_report
from benchmark.report.values import with_averages
from benchmark.result import Outcome
from benchmark.spec import TableSpec
from tests.benchmark.fixtures_report import outcomes_of, small_spec

COLUMNS = [
    {"name": "both", "label": "Average", "average_of": ["easy", "hard"]},
    {"name": "easy", "label": "Easy", "regime": "aggre", "prefix": "e_"},
    {"name": "hard", "label": "Hard", "regime": "worst", "prefix": "h_"},
]
ROWS = [
    {"name": "votes", "label": "Votes", "method": "cross_entropy", "prefix": "votes_"},
    {"name": "skill", "label": "Skill", "method": "cross_entropy", "prefix": "skill_"},
]


def spec(**changes: Any) -> TableSpec:
    return small_spec(columns=COLUMNS, rows=ROWS, references=[], **changes)


def numbers(row: str, column: str, seed: int) -> dict[str, float | None]:
    start = {"easy": 0.8, "hard": 0.4}[column] + 0.01 * seed
    name = column[0]
    return {f"{name}_votes_test_accuracy": start, f"{name}_skill_test_accuracy": start + 0.1}


def test_an_average_runs_nothing_and_is_taken_seed_by_seed() -> None:
    table = spec()
    assert {at.column for at in table.plan("cpu")} == {"easy", "hard"}
    report = build_report(table, "cpu", outcomes_of(table, "cpu", numbers))
    found = report.cell("votes", "both", "test_accuracy")
    assert found.mean == pytest.approx(0.61) and found.std == pytest.approx(0.01) and found.n == 3
    assert report.cell("skill", "both", "test_accuracy").mean == pytest.approx(0.71)
    assert report.cell("skill", "hard", "test_accuracy").mean == pytest.approx(0.51)


def test_an_average_of_which_a_part_lacks_has_no_value() -> None:
    table = spec()

    def lacking(row: str, column: str, seed: int) -> Any:
        return "failed: the oven is cold" if (column, seed) == ("hard", 1) else numbers(row, column, seed)

    outcomes = outcomes_of(table, "cpu", lacking)
    found = build_report(table, "cpu", outcomes).cell("votes", "both", "test_accuracy")
    assert (found.n, found.status) == (2, "partial") and "the oven is cold" in found.reason
    averages = [at for at in with_averages(table, outcomes) if at.column == "both"]
    assert [at.status for at in averages if at.cell.seed == 1] == ["failed", "failed"]


def test_an_average_of_columns_that_were_not_all_asked_for_is_missing() -> None:
    table = spec()
    some: list[Outcome] = [at for at in outcomes_of(table, "cpu", numbers) if at.column == "easy"]
    found = build_report(table, "cpu", some).cell("votes", "both", "test_accuracy")
    assert (found.mean, found.status) == (None, "missing")


def test_claims_compare_averages() -> None:
    test = {
        "kind": "paired_difference",
        "metric": "test_accuracy",
        "first": {"row": "skill", "columns": ["both"]},
        "second": {"row": "votes", "columns": ["both"]},
    }
    table = spec(claims=[{"id": "a", "says": "Skill is better.", "source": "nowhere", "test": test}])
    (verdict,) = evaluate_claims(table, "cpu", outcomes_of(table, "cpu", numbers))
    assert verdict.effect == pytest.approx(0.1) and verdict.n == 3


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"name": "x", "label": "X"}, "either a regime or columns"),
        ({"name": "x", "label": "X", "regime": "aggre", "average_of": ["easy"]}, "either a regime or columns"),
        ({"name": "x", "label": "X", "average_of": ["esay"]}, "did you mean easy"),
    ],
)
def test_a_column_is_run_or_is_an_average_of_columns_that_are(column: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_spec(columns=[*COLUMNS[1:], column], rows=ROWS, references=[])
