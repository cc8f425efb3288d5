"""Figures: what is drawn is in the data beside it, and the same points give the same picture."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmark.report import figure_gain
from benchmark.report.figure_gain import Bin, bins_of
from benchmark.report.figures import draw, figure_records, write_figure
from benchmark.result import Outcome
from benchmark.spec import SpecError, TableSpec
from tests.benchmark.fixtures_report import outcomes_of, result_of, small_spec


def _plain(row: str, column: str, seed: int) -> dict[str, float | None]:
    base = {"first": 0.8, "second": 0.7}[row] - (0.1 if column == "hard" else 0.0)
    return {"test_accuracy": base + 0.01 * seed, "test_nll": 1 - base}


CURVES = {"form": "curves", "y": ["val_accuracy", "mean_skill"], "paper": {"mean_skill": {"end": 0.763}}}
SCATTER = {"form": "scatter", "x": "skill_true", "y": ["skill_estimated"]}


def _with_curves(profile: str, figure: dict[str, object]) -> tuple[object, list[Outcome]]:
    spec = small_spec(kind="figure", figure=figure)
    outcomes = []
    for outcome in outcomes_of(spec, profile, _plain):
        result = result_of(
            outcome.cell,
            {"test_accuracy": 0.5},
            curves={"val_accuracy": [0.1, None, 0.3], "mean_skill": [0.8, 0.7, 0.9]},
            arrays={"skill_true": [0.5, None, 0.7, 0.9, 0.2], "skill_estimated": [0.6, 0.4, 0.8, 0.9, 0.1]},
        )
        failed = outcome.row == "second" and outcome.column == "hard"
        status = "failed" if failed else "done"
        outcomes.append(
            Outcome(outcome.row, outcome.column, outcome.cell, "0", status, None if failed else result, "x" * failed)
        )
    return spec, outcomes


@pytest.mark.parametrize("figure", [CURVES, SCATTER], ids=["curves", "scatter"])
def test_figures_are_drawn_with_their_data_even_if_a_panel_lacks(figure: dict[str, object], tmp_path: Path) -> None:
    spec, outcomes = _with_curves("cpu", figure)
    picture, table, document = write_figure(spec, "cpu", outcomes, tmp_path)  # type: ignore[arg-type]
    assert picture.read_bytes().startswith(b"\x89PNG")
    points = json.loads(document.read_text())["points"]
    # 3 places with a result, 3 seeds; 2 + 3 epochs that have a value, or 4 annotators whose skills are known
    assert len(points) == 3 * 3 * (5 if figure is CURVES else 4)
    assert len(list(csv.DictReader(io.StringIO(table.read_text())))) == len(points)


def test_the_same_points_give_the_same_picture(tmp_path: Path) -> None:
    spec, outcomes = _with_curves("cpu", SCATTER)
    first, second = (
        write_figure(spec, "cpu", outcomes, tmp_path / name)[0].read_bytes()  # type: ignore[arg-type]
        for name in ("a", "b")
    )
    assert first == second


def test_a_figure_without_any_result_is_empty_panels(tmp_path: Path) -> None:
    spec, _ = _with_curves("cpu", CURVES)
    assert figure_records(spec, []) == []  # type: ignore[arg-type]
    assert write_figure(spec, "cpu", [], tmp_path)[0].stat().st_size > 0  # type: ignore[arg-type]


def test_a_table_is_not_drawn_and_a_figure_must_say_how(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="not a figure"):
        write_figure(small_spec(), "cpu", [], tmp_path)
    with pytest.raises(ValueError, match="kind is 'figure'"):
        small_spec(kind="figure")


# --- lines ------------------------------------------------------------------------------------

LINES = {"form": "lines", "x": "votes an item", "y": ["test_accuracy"]}
COLUMNS = [
    {"name": "few", "label": "K = 5", "regime": "aggre", "x": 5, "prefix": "few_"},
    {"name": "many", "label": "K = 500", "regime": "worst", "x": 500, "prefix": "many_"},
    {"name": "nowhere", "label": "not on the axis", "regime": "worst"},
]


def _line_spec(**changes: Any) -> TableSpec:
    rows = [
        {"name": "first", "label": "First", "method": "cross_entropy", "values": {"few": {"test_accuracy": 0.7}}},
        {"name": "second", "label": "Second", "method": "cross_entropy"},
    ]
    return small_spec(kind="figure", figure=LINES, columns=COLUMNS, rows=rows, references=[], **changes)


def test_lines_show_each_columns_own_metric_at_its_place(tmp_path: Path) -> None:
    spec = _line_spec()
    value = {"few_test_accuracy": 0.6, "many_test_accuracy": 0.9, "test_accuracy": 0.1}
    outcomes = outcomes_of(spec, "cpu", lambda row, column, seed: value)
    records = figure_records(spec, outcomes)
    assert {(each["x"], each["value"]) for each in records} == {(5.0, 0.6), (500.0, 0.9)}
    assert len(records) == 2 * 2 * 3, "rows, places and seeds; a column without x has no place"
    first, second = (write_figure(spec, "cpu", outcomes, tmp_path / name)[0].read_bytes() for name in "ab")
    assert first == second and first.startswith(b"\x89PNG")


@pytest.mark.parametrize("what", ["missing", {"few_test_accuracy": None}, {"few_test_accuracy": 0.5}])
@pytest.mark.parametrize("profile", ["cpu", "demo"])
def test_lines_are_drawn_whatever_lacks(what: Any, profile: str) -> None:
    spec = _line_spec()
    for seeds in (1, 3):
        outcomes = outcomes_of(spec, profile, lambda *_: what, seeds=seeds)
        assert draw(spec, profile, outcomes).startswith(b"\x89PNG")


def test_the_papers_values_are_markers_on_its_own_data_alone() -> None:
    with_paper, without = _line_spec(), _line_spec(profiles={"cpu": {**_stand_in(), "is_papers_data": False}})
    seen = []
    for spec in (with_paper, without):
        outcomes = outcomes_of(spec, "cpu", lambda *_: {"few_test_accuracy": 0.6, "many_test_accuracy": 0.9})
        seen.append(draw(spec, "cpu", outcomes))
    assert seen[0] != seen[1]


def _stand_in() -> dict[str, Any]:
    return {"dataset": "cifar10n", "seeds": 3, "train": {"max_epochs": 2}}


# --- gain -------------------------------------------------------------------------------------

GAIN = {"form": "gain", "x": "distance", "y": ["nll"], "reference": "second"}


def _gain_outcomes(items: int = 40, seeds: int = 3, slope: float = 1.0) -> tuple[TableSpec, list[Outcome]]:
    """The first row's loss is lower than the second's by ``slope`` times the distance, in the first column."""
    spec = small_spec(kind="figure", figure=GAIN)
    outcomes = []
    for each in outcomes_of(spec, "cpu", lambda *_: {}, seeds=seeds):
        distance = np.random.default_rng(each.cell.seed).random(items)
        distance[: items // 2] = 0.0
        lower = slope * distance if each.row == "first" else 0.0 * distance
        arrays = {"distance": distance.tolist(), "nll": (1.0 - lower).tolist()}
        status = "failed" if each.column == "hard" else "done"
        result = None if status == "failed" else result_of(each.cell, {}, arrays=arrays)
        outcomes.append(Outcome(each.row, each.column, each.cell, each.digest, status, result))  # type: ignore[arg-type]
    return spec, outcomes


def test_gain_is_how_much_lower_than_the_reference_item_by_item(tmp_path: Path) -> None:
    spec, outcomes = _gain_outcomes()
    picture, table, document = write_figure(spec, "cpu", outcomes, tmp_path)
    assert picture.read_bytes().startswith(b"\x89PNG")
    lines = list(csv.DictReader(io.StringIO(table.read_text())))
    assert len(lines) == 3 * 40 and {line["row"] for line in lines} == {"first"}
    assert all(float(line["gain"]) == pytest.approx(float(line["distance"])) for line in lines)
    (found, empty) = json.loads(document.read_text())["summary"]
    assert found["mean"] == pytest.approx(1.0) and empty == {
        "row": "first",
        "column": "hard",
        "spearman": {},
        "mean": None,
    }


def test_many_items_are_written_as_bins_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, outcomes = _gain_outcomes()
    monkeypatch.setattr(figure_gain, "MOST_ITEMS", 100)
    records = figure_records(spec, outcomes)
    assert sum(record["items"] for record in records) == 3 * 40
    assert len(records) < 3 * 40 and {record["seed"] for record in records} == {0, 1, 2}


def test_bins_never_part_items_at_the_same_place_and_hold_every_item() -> None:
    rng = np.random.default_rng(0)
    seeds = {seed: [(0.0, 1.0)] * 30 + [(float(x), 2.0) for x in rng.random(70)] for seed in range(2)}
    found = bins_of(seeds)
    assert sum(sum(each.counts) for each in found) == 200
    assert found[0] == Bin(0.0, 0.0, 0.0, (1.0, 1.0), (30, 30))
    assert all(each.start < each.centre <= each.end for each in found[1:])
    starts, ends = [each.start for each in found[1:]], [each.end for each in found[:-1]]
    assert starts == ends, "each bin starts where the one before ends"


def test_results_of_other_items_make_no_gain() -> None:
    spec, outcomes = _gain_outcomes()
    changed = []
    for each in outcomes:
        if each.result is not None and each.row == "second":
            arrays = {**each.result.arrays, "distance": [0.5] * 40}
            result = each.result.model_copy(update={"arrays": arrays})
            each = Outcome(each.row, each.column, each.cell, each.digest, "done", result)
        changed.append(each)
    assert figure_records(spec, changed) == []
    assert draw(spec, "cpu", changed).startswith(b"\x89PNG")


# --- pairs ------------------------------------------------------------------------------------

PAIRS = {
    "form": "pairs",
    "y": ["loss_barrier", "cka"],
    "pairs": [
        {"label": "First and second", "first": "first", "second": "second"},
        {"label": "First with itself", "first": "first", "second": "first", "across": True},
    ],
    "paper": {"cka": {"hard": 0.92}},
}


def _pairs() -> list[dict[str, Any]]:
    here = {"column": "clean", "reason": ""}
    record = {"pair": "First and second", "probe": "loss_barrier", "first_seed": 0, "second_seed": 0, "value": 2.05}
    across = {"pair": "First with itself", "probe": "cka", "first_seed": 0, "second_seed": 1, "value": 0.9}
    lacking = {**across, "second_seed": 2, "value": float("nan"), "reason": "no weights"}
    return [{**here, **each} for each in (record, across, lacking)]


def test_pairs_are_drawn_and_written_as_given(tmp_path: Path) -> None:
    spec = small_spec(kind="figure", figure=PAIRS)
    picture, table, document = write_figure(spec, "cpu", [], tmp_path, pairs=_pairs())
    assert picture.read_bytes().startswith(b"\x89PNG")
    points = json.loads(document.read_text())["points"]
    assert points[:2] == _pairs()[:2]
    assert (points[2]["value"], points[2]["reason"]) == (None, "no weights"), "a reader sees why a value lacks"
    assert len(list(csv.DictReader(io.StringIO(table.read_text())))) == 3


def test_pairs_that_were_not_probed_are_empty_panels() -> None:
    assert draw(small_spec(kind="figure", figure=PAIRS), "demo", []).startswith(b"\x89PNG")


def test_spearman_of_the_gain_is_scipys() -> None:
    spec, outcomes = _gain_outcomes(seeds=1)
    rng = np.random.default_rng(1)
    noisy = []
    for each in outcomes:
        if each.result is not None and each.row == "first":
            arrays = {**each.result.arrays, "nll": rng.random(40).tolist()}
            result = each.result.model_copy(update={"arrays": arrays})
            each = Outcome(each.row, each.column, each.cell, each.digest, "done", result)
        noisy.append(each)
    points = figure_records(spec, noisy)
    expected = stats.spearmanr([each["distance"] for each in points], [each["gain"] for each in points]).statistic
    assert figure_gain.gain_summary(spec, noisy)[0]["mean"] == pytest.approx(expected)


def test_the_data_file_of_a_large_scatter_holds_evenly_spaced_points() -> None:
    figure = {"form": "scatter", "x": "distance", "y": ["nll"]}
    spec = small_spec(kind="figure", figure=figure)
    cell = spec.plan("cpu", seeds=1)[0].cell
    many = [float(number) for number in range(2_500)]
    result = result_of(cell, {}, arrays={"distance": many, "nll": many})
    records = figure_records(spec, [Outcome("first", "easy", cell, "0", "done", result)])
    assert [each["number"] for each in records] == list(range(0, 2_500, 3))


# --- map --------------------------------------------------------------------------------------

MAP = {"form": "map", "x": "map_x", "y": ["map_y"], "colour": "map_class"}


def test_a_map_shows_the_lowest_seed_that_has_a_result(tmp_path: Path) -> None:
    spec = small_spec(kind="figure", figure=MAP, references=[])
    outcomes = []
    for each in outcomes_of(spec, "cpu", lambda row, column, seed: "missing" if seed == 0 else {"test_accuracy": 0.5}):
        arrays = {"map_x": [1.0, 2.0, None], "map_y": [3.0, 4.0, 5.0], "map_class": [0.0, 7.0, 7.0]}
        known = each.result and each.result.model_copy(update={"arrays": arrays})
        outcomes.append(replace(each, result=known))
    records = figure_records(spec, outcomes)
    assert {each["seed"] for each in records} == {1}
    here = [each for each in records if (each["row"], each["column"]) == ("first", "easy")]
    assert [(each["x"], each["y"], each["class"]) for each in here] == [(1.0, 3.0, 0), (2.0, 4.0, 7)]
    assert write_figure(spec, "cpu", outcomes, tmp_path)[0].read_bytes().startswith(b"\x89PNG")
    assert draw(spec, "cpu", []).startswith(b"\x89PNG"), "also without any result"


def test_a_map_needs_a_colour_and_nothing_else_takes_one() -> None:
    for figure in ({**MAP, "colour": ""}, {**LINES, "colour": "map_class"}):
        with pytest.raises(ValueError, match="colour"):
            small_spec(kind="figure", figure=figure, references=[])
