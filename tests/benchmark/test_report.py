"""Reports: right numbers, right marks, and nothing that lacks breaks what is there."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import benchmark.report
from benchmark.report.build import build_report
from benchmark.report.formats import FORMATS, render, write_report
from tests.benchmark.fixtures_report import outcomes_of, small_spec


def _plain(row: str, column: str, seed: int) -> dict[str, float | None]:
    base = {"first": 0.8, "second": 0.7}[row] - (0.1 if column == "hard" else 0.0)
    return {"test_accuracy": base + 0.01 * seed, "test_nll": 1 - base}


def test_means_deviations_and_differences_are_right() -> None:
    spec = small_spec()
    cell = build_report(spec, "cpu", outcomes_of(spec, "cpu", _plain)).cell("first", "easy", "test_accuracy")
    assert (cell.mean, cell.std, cell.n, cell.status) == (pytest.approx(0.81), pytest.approx(0.01), 3, "done")
    assert (cell.paper, cell.delta) == (0.9, pytest.approx(-0.09))


def test_the_order_of_outcomes_changes_nothing() -> None:
    spec = small_spec()
    outcomes = outcomes_of(spec, "cpu", _plain)
    forward, backward = (build_report(spec, "cpu", order) for order in (outcomes, outcomes[::-1]))
    assert forward.cells == backward.cells


def test_the_best_is_marked_by_the_metrics_direction() -> None:
    spec = small_spec()
    report = build_report(spec, "cpu", outcomes_of(spec, "cpu", _plain))
    best = {(cell.row, cell.metric) for cell in report.cells if cell.best and cell.column == "easy"}
    assert best == {("first", "test_accuracy"), ("first", "test_nll")}


def test_on_a_stand_in_no_difference_is_taken_and_the_papers_values_stand_apart() -> None:
    spec = small_spec()
    report = build_report(spec, "demo", outcomes_of(spec, "demo", _plain))
    assert all(cell.delta is None for cell in report.cells)
    text = render(report, "md")
    ours, _, apart = text.partition("values as printed")
    assert "0.90" not in ours and "0.90" in apart
    assert "stand-in" in ours


def test_values_of_columns_that_a_profile_omits_stand_apart_too() -> None:
    spec = small_spec()
    shown = spec.model_copy(update={"columns": spec.columns[1:]})
    text = render(build_report(shown, "demo", outcomes_of(shown, "demo", _plain), printed=spec.columns), "md")
    ours, _, apart = text.partition("values as printed")
    assert "Easy" not in ours and "Easy: Accuracy" in apart and "0.90" in apart
    # without the columns there is no value at all, and no empty block
    assert "values as printed" not in render(build_report(shown, "demo", outcomes_of(shown, "demo", _plain)), "md")


def test_a_column_with_other_data_than_the_papers_has_no_difference() -> None:
    columns = [
        {"name": "easy", "label": "Easy", "regime": "aggre", "dataset": "digits"},
        {"name": "hard", "label": "Hard", "regime": "worst"},
    ]
    spec = small_spec(columns=columns)
    cell = build_report(spec, "cpu", outcomes_of(spec, "cpu", _plain)).cell("first", "easy", "test_accuracy")
    assert cell.paper == 0.9 and cell.delta is None


def test_differences_beyond_tolerance_are_flagged_with_a_note() -> None:
    # cifar-10-100n#7, DivideMix#10 (check 32): default settings that miss the published number, unnoticed
    spec = small_spec()
    report = build_report(spec, "cpu", outcomes_of(spec, "cpu", _plain))
    assert report.cell("first", "easy", "test_accuracy").flagged
    flagged = sum(cell.flagged for cell in report.cells)
    assert sum(f"({flagged} of " in note and "differs from the paper by" in note for note in report.notes) == 1
    close = build_report(spec, "cpu", outcomes_of(spec, "cpu", lambda *_: {"test_accuracy": 0.89, "test_nll": 1.0}))
    assert not any(cell.flagged for cell in close.cells)


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_a_row_that_failed_wholly_is_a_dash_with_its_reason_and_the_rest_stands(form: str) -> None:
    # benchopt#565, #921 (check 28): an all-NaN column broke the page; mteb#3916 (check 31)
    spec = small_spec()

    def numbers(row: str, column: str, seed: int) -> dict[str, float | None] | str:
        return "failed: RuntimeError: out of <memory> & more" if row == "first" else _plain(row, column, seed)

    report = build_report(spec, "cpu", outcomes_of(spec, "cpu", numbers))
    cell = report.cell("first", "easy", "test_accuracy")
    assert (cell.status, cell.mean, cell.n, cell.delta) == ("failed", None, 0, None)
    assert report.cell("second", "easy", "test_accuracy").mean == pytest.approx(0.71)
    text = render(report, form)
    assert "nan" not in text.lower().replace("annotat", "")
    if form == "md":
        assert re.search(r"\| First +\| 0.90 +\| – \[1\]", text)
        assert "[1] failed in 3 of 3 seeds (RuntimeError: out of" in text


@pytest.mark.parametrize("form", sorted(FORMATS))
@pytest.mark.parametrize("what", ["missing", "n/a: needs annotator ids", "failed: Error: x", float("nan"), None])
def test_any_table_without_a_single_value_renders(form: str, what: str | float | None) -> None:
    spec = small_spec()
    value = what if isinstance(what, str) else {"test_accuracy": what}
    report = build_report(spec, "cpu", outcomes_of(spec, "cpu", lambda *_: value))
    assert "No cell is done" in render(report, "json")
    assert len(render(report, form)) > 100


def test_nothing_run_at_all_is_a_table_of_missing_cells() -> None:
    report = build_report(small_spec(), "cpu", [])
    assert {cell.status for cell in report.cells} == {"missing"}
    assert "nothing measured" in report.hardware


def test_failed_seeds_never_count_and_the_cell_is_partial() -> None:
    spec = small_spec()

    def numbers(row: str, column: str, seed: int) -> dict[str, float | None] | str:
        return "failed: ValueError: x" if seed == 1 else _plain(row, column, seed)

    report = build_report(spec, "cpu", outcomes_of(spec, "cpu", numbers))
    cell = report.cell("first", "easy", "test_accuracy")
    assert (cell.status, cell.n, cell.planned, cell.mean) == ("partial", 2, 3, pytest.approx(0.81))
    assert "Failed: cross_entropy on cifar10n/aggre, seed 1: ValueError: x" in report.notes


def test_a_number_undefined_in_one_seed_is_told_and_not_averaged_away() -> None:
    spec = small_spec()

    def numbers(row: str, column: str, seed: int) -> dict[str, float | None]:
        return {"test_accuracy": None if seed == 0 else 0.5, "test_nll": 1.0}

    cell = build_report(spec, "cpu", outcomes_of(spec, "cpu", numbers)).cell("first", "easy", "test_accuracy")
    assert (cell.status, cell.n) == ("partial", 2) and "1 of 3 seeds" in cell.reason


def test_json_has_the_keys_that_others_rely_on_and_is_strict() -> None:
    spec = small_spec()
    report = build_report(spec, "cpu", outcomes_of(spec, "cpu", _plain))
    document = json.loads(render(report, "json"), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert set(document) == {"table", "profile", "data", "hardware", "cells", "comparisons", "notes"}
    keys = {"row", "column", "metric", "paper", "mean", "std", "n", "delta", "status"}
    assert len(document["cells"]) == 8 and all(set(cell) == keys for cell in document["cells"])
    assert document["hardware"] == "a processor (2 cores)"


def test_csv_has_a_line_per_number() -> None:
    spec = small_spec()
    text = render(build_report(spec, "cpu", outcomes_of(spec, "cpu", _plain)), "csv")
    lines = list(csv.DictReader(io.StringIO(text)))
    assert len(lines) == 8
    assert float(lines[0]["mean"]) == pytest.approx(0.81) and lines[-1]["paper"] == ""


def test_notes_name_data_doubts_rows_and_too_few_seeds_once_each() -> None:
    spec = small_spec()
    report = build_report(spec, "cpu", outcomes_of(spec, "cpu", _plain))
    for part in ("Images are a copy.", "a doubt about the source", "First: a note on the first row"):
        assert sum(part in note for note in report.notes) == 1
    assert any("smallest is 0.25" in note for note in report.notes)
    assert any("the model after the last epoch is tested" in fact for fact in report.facts)
    six = build_report(spec, "cpu", outcomes_of(spec, "cpu", _plain, seeds=6))
    assert not any("Wilcoxon" in note for note in six.notes)
    one = build_report(spec, "cpu", outcomes_of(spec, "cpu", _plain, seeds=1))
    assert any("One seed only" in note for note in one.notes)


def test_reference_rows_stand_under_their_own_heading() -> None:
    spec = small_spec()
    text = render(build_report(spec, "cpu", outcomes_of(spec, "cpu", _plain)), "md")
    assert "0.8777" in text.partition("Published reference rows (never run here)")[2]
    assert "0.8777" not in text.partition("Published reference rows (never run here)")[0]


def test_facts_say_where_an_encoder_was_used_and_where_epochs_differ() -> None:
    encoder = {"name": "patches", "filters": 512}
    profile = {"dataset": "cifar10n", "seeds": 2, "train": {"max_epochs": 40}, "encoder": encoder}
    both = small_spec(profiles={"cpu": profile})
    hard = {"encoder": {}, "train": {"max_epochs": 8, "selection": "last_and_best_votes"}}
    one = small_spec(profiles={"cpu": {**profile, "columns": {"hard": hard}}})
    by_row = small_spec(profiles={"cpu": {**profile, "rows": {"first": {"train": {"max_epochs": 9}}}}})
    facts = [
        " ".join(build_report(spec, "cpu", outcomes_of(spec, "cpu", _plain)).facts) for spec in (both, one, by_row)
    ]
    assert "Items: features of the frozen encoder patches (filters 512). Epochs: 40;" in facts[0]
    assert "patches (filters 512) in Easy and the images or features of the data set as they are in Hard." in facts[1]
    assert "Epochs: 40 in Easy and 8 in Hard;" in facts[1] and "Epochs: 9 in First and 40 in Second;" in facts[2]
    assert "lowest soft negative log-likelihood on held-out votes" in facts[1]
    assert "in other columns the last epoch" in facts[1] and "read only after training" in facts[1]
    plain = build_report(small_spec(), "cpu", outcomes_of(small_spec(), "cpu", _plain)).facts
    assert not any("Items" in fact for fact in plain) and any("Epochs: 2;" in fact for fact in plain)


def test_large_printed_values_keep_their_one_decimal() -> None:
    rows = [{"name": "first", "label": "First", "method": "cross_entropy", "values": {"easy": {"test_nll": 4946.0}}}]
    spec = small_spec(rows=rows, references=[])
    text = render(build_report(spec, "cpu", outcomes_of(spec, "cpu", _plain)), "md")
    assert "| 4946.0 " in text and "4946.00" not in text


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@given(label=st.text(st.characters(codec="utf-8", categories=("L", "P", "S", "Nd")), min_size=1, max_size=20))
def test_no_label_breaks_out_of_a_format(label: str) -> None:
    row = {"name": "first", "label": label, "method": "cross_entropy"}
    spec = small_spec(rows=[row])
    report = build_report(spec, "cpu", outcomes_of(spec, "cpu", _plain))
    page = _Text()
    page.feed(render(report, "html"))
    assert label in page.texts
    assert page.tags <= {
        "html",
        "head",
        "meta",
        "title",
        "body",
        "h1",
        "h2",
        "p",
        "style",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "ul",
        "li",
    }
    rows = [line for line in render(report, "md").splitlines() if line.startswith("| ")]
    columns = {len(re.findall(r"(?<!\\)\|", line.replace("\\\\", ""))) for line in rows[:3]}
    assert len(columns) == 1


def test_latex_escapes_what_it_would_read_as_markup() -> None:
    spec = small_spec(rows=[{"name": "first", "label": "50% of a_b & {c} #1 $", "method": "cross_entropy"}])
    text = render(build_report(spec, "cpu", outcomes_of(spec, "cpu", _plain)), "tex")
    assert r"50\% of a\_b \& \{c\} \#1 \$" in text
    assert text.count("\\begin{tabular}") == text.count("\\end{tabular}") == 3


def test_an_unknown_format_lists_near_ones() -> None:
    with pytest.raises(ValueError, match="did you mean json"):
        render(build_report(small_spec(), "cpu", []), "jsn")


def test_files_are_written_whole_and_leave_nothing_behind(tmp_path: Path) -> None:
    spec = small_spec()
    report = build_report(spec, "cpu", outcomes_of(spec, "cpu", _plain))
    paths = write_report(report, tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        f"demo/small.{form}" for form in ("md", "csv", "json")
    ]
    assert write_report(report, tmp_path) == paths
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == ["small.csv", "small.json", "small.md"]


def test_the_packages_import_nothing_heavy_until_a_function_is_asked_for() -> None:
    # a listing must answer in a second; torch, scipy and matplotlib take longer to import than that
    script = (
        "import sys, benchmark.report, benchmark.metrics; "
        "heavy = {'torch', 'scipy', 'pandas', 'matplotlib', 'statsmodels'} & set(sys.modules); "
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_an_unknown_name_of_the_package_says_which_there_are() -> None:
    with pytest.raises(AttributeError, match="build_report"):
        benchmark.report.buildreport  # noqa: B018
