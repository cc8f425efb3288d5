"""Paired comparisons: right differences, right p-values, one family a table, and words where nothing can be tested."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmark.report.build import build_report
from benchmark.report.compare import Comparison, compare_rows, comparison_notes
from benchmark.report.formats import FORMATS, render, write_report
from benchmark.report.model import Report
from benchmark.report.statistics import holm, wilcoxon_exact
from benchmark.spec import TableSpec
from tests.benchmark.fixtures_report import outcomes_of, small_spec

COMPARE = {"reference": "second", "metrics": ["test_accuracy", "test_nll"]}
GAINS = [0.03, 0.01, 0.02, 0.05, -0.01]


def _report(gains: list[Any], **changes: Any) -> tuple[TableSpec, Report]:
    """First is better than second by ``gains``, a number (or status) a seed, in both metrics and columns."""
    spec = small_spec(compare=COMPARE, **changes)

    def numbers(row: str, column: str, seed: int) -> dict[str, float | None] | str:
        gain = gains[seed] if row == "first" else 0.0
        if isinstance(gain, str):
            return gain
        return {"test_accuracy": 0.5 + 0.1 * seed + gain, "test_nll": 1.0 - 0.1 * seed - gain}

    return spec, build_report(spec, "cpu", outcomes_of(spec, "cpu", numbers, seeds=len(gains)))


def _of(report: Report, metric: str = "test_accuracy") -> Comparison:
    return next(each for each in report.comparisons if (each.column, each.metric) == ("easy", metric))


def test_a_comparison_is_scipys_paired_test_of_the_differences() -> None:
    _, report = _report(GAINS)
    assert len(report.comparisons) == 2 * 2, "metrics and columns; the reference is not held against itself"
    found = _of(report)
    expected = stats.ttest_1samp(GAINS, 0.0)
    interval = expected.confidence_interval(0.95)
    assert found.difference == pytest.approx(0.02) and found.p_t == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert found.p_wilcoxon == pytest.approx(wilcoxon_exact(GAINS))
    assert (found.n, found.better) == (5, 4)


def test_lower_is_better_where_the_metric_says_so_and_the_difference_keeps_its_sign() -> None:
    found = _of(_report(GAINS)[1], "test_nll")
    assert found.difference == pytest.approx(-0.02) and found.better == 4


def test_all_comparisons_of_the_table_are_one_family() -> None:
    _, report = _report(GAINS)
    for raw, adjusted in (("p_t", "p_t_holm"), ("p_wilcoxon", "p_wilcoxon_holm")):
        expected = holm([getattr(each, raw) for each in report.comparisons])
        assert [getattr(each, adjusted) for each in report.comparisons] == expected
    assert _of(report).p_t_holm == pytest.approx(4 * (_of(report).p_t or 0.0))


def test_only_seeds_that_both_rows_have_are_compared() -> None:
    found = _of(_report([0.03, "failed: E: x", 0.02, "missing", 0.05])[1])
    assert (found.n, found.better, found.difference) == (3, 3, pytest.approx(0.1 / 3))


@pytest.mark.parametrize(
    ("gains", "n", "part"),
    [(["missing"] * 3, 0, "no seed has a value"), ([0.1], 1, "one seed"), ([0.1, 0.1, 0.1], 3, "same in every seed")],
)
def test_what_cannot_be_tested_is_a_dash_with_its_reason(gains: list[Any], n: int, part: str) -> None:
    _, report = _report(gains)
    found = _of(report)
    assert found.n == n and part in found.reason
    assert found.p_t is None and found.low is None and (found.difference is None) == (n == 0)
    text = render(report, "md")
    assert "Paired comparisons: Accuracy" in text and part in text
    json.loads(render(report, "json"), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_exactly_equal_rows_differ_by_nothing_however_numbers_round() -> None:
    spec = small_spec(compare=COMPARE)
    values = {"first": 0.1 + 0.2, "second": 0.3}
    outcomes = outcomes_of(spec, "cpu", lambda row, *_: {"test_accuracy": values[row], "test_nll": 1.0})
    found = compare_rows(spec, outcomes)[0]
    assert (found.difference, found.better, found.p_wilcoxon) == (0.0, 0, 1.0)


def test_too_few_seeds_for_any_significance_are_told_once() -> None:
    def told(seeds: int) -> list[str]:
        notes = _report(list(np.linspace(0.01, 0.02, seeds)))[1].notes
        return [note for note in notes if "exact Wilcoxon" in note]

    (five,) = told(5)
    assert "smallest is 0.0625" in five and "none can after Holm" in five and "8 seeds" in five
    (seven,) = told(7)
    assert "0.0625; it would take 8 seeds" in seven and "single tests can (0.0156)" in seven
    assert told(8) == []
    notes = _report([0.1])[1].notes
    assert sum("One seed only" in note for note in notes) == 1


def test_columns_with_many_seeds_do_not_speak_for_those_with_few() -> None:
    """With 11 and with 5 seeds, the note about the 5 vanished: the largest number of seeds spoke for all."""
    few = Comparison("a", "b", "few", "m", n=5, better=5, p_wilcoxon=0.0625)
    many = Comparison("a", "b", "many", "m", n=11, better=11, p_wilcoxon=0.001)
    (note,) = [each for each in comparison_notes([many, few]) if "exact Wilcoxon" in each]
    assert note.startswith("With 5 seeds no exact Wilcoxon test of two rows can give p < 0.05")


def test_a_table_that_compares_nothing_has_no_comparisons(tmp_path: Path) -> None:
    spec = small_spec()
    report = build_report(spec, "cpu", outcomes_of(spec, "cpu", lambda *_: {"test_accuracy": 0.5}))
    assert report.comparisons == () and "Paired" not in render(report, "md")
    assert [path.suffix for path in write_report(report, tmp_path)] == [".md", ".csv", ".json"]


def test_every_format_shows_them_and_a_file_holds_them(tmp_path: Path) -> None:
    _, report = _report(GAINS)
    for form in sorted(set(FORMATS) - {"csv", "json"}):
        text = render(report, form)
        assert "Paired comparisons: Accuracy minus that of Second" in text and "4 of 5" in text
    assert json.loads(render(report, "json"))["comparisons"][0]["better"] == 4
    path = write_report(report, tmp_path)[-1]
    assert path == tmp_path / "demo" / "small_comparisons.csv"
    lines = list(csv.DictReader(io.StringIO(path.read_text())))
    assert len(lines) == 4 and float(lines[0]["difference"]) == pytest.approx(0.02)
    assert (lines[0]["table"], lines[0]["profile"], lines[0]["reference"]) == ("demo/small", "cpu", "second")


# --- prefixes ---------------------------------------------------------------------------------

STATES = [
    {"name": "last", "label": "Last", "regime": "aggre"},
    {"name": "best", "label": "Best", "regime": "aggre", "prefix": "best_"},
]


def test_columns_with_a_prefix_show_what_the_same_cell_measured_under_it() -> None:
    spec = small_spec(columns=STATES, references=[], rows=[_row("first"), _row("second")], compare=COMPARE)
    gain = {"first": 0.1, "second": 0.0}

    def numbers(row: str, column: str, seed: int) -> dict[str, float | None]:
        return {"test_accuracy": 0.5, "best_test_accuracy": 0.7 + gain[row] * (seed + 1), "test_nll": 1.0}

    report = build_report(spec, "cpu", outcomes_of(spec, "cpu", numbers))
    assert report.cell("first", "last", "test_accuracy").mean == 0.5
    assert report.cell("first", "best", "test_accuracy").mean == pytest.approx(0.9)
    assert report.cell("first", "best", "test_nll").n == 0, "the last state has a loss, the best state none"
    found = {each.column: each.difference for each in report.comparisons if each.metric == "test_accuracy"}
    assert found == {"last": 0.0, "best": pytest.approx(0.2)}


def _row(name: str) -> dict[str, Any]:
    return {"name": name, "label": name.title(), "method": "cross_entropy"}
