"""The YAML of QuMATL: rows resolve, tables share their cells, values are those printed."""

from __future__ import annotations

from statistics import fmean

import pytest

from benchmark.claims.evaluate import evaluate_claims
from benchmark.registry import dataset_class, method_class, table_spec, tables
from benchmark.report.build import build_report
from benchmark.report.formats import render
from benchmark.resolve import resolve_arguments, resolve_encoder
from benchmark.result import Outcome
from benchmark.spec import canonical_json
from datamodules.regimes import is_regime

TABLES = sorted(name for name in tables() if name.startswith("qumatl/"))
PROFILES = ("paper", "cpu", "demo")
ANNOTATORS = [f"accuracy_{number}" for number in range(1, 11)]


def test_there_are_the_papers_tables() -> None:
    figures = [f"qumatl/fig{number}" for number in range(3, 6)]
    assert [*figures, *(f"qumatl/table{number}" for number in range(2, 9))] == TABLES


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("profile", PROFILES)
def test_every_cell_resolves(profile: str, name: str) -> None:
    for planned in table_spec(name).plan(profile, seeds=1):
        cell = planned.cell
        method, data = method_class(cell.method), dataset_class(cell.dataset)
        resolve_arguments(method, cell.method_args, planned.row, skip={"data_info"})
        data(cell.regime, **resolve_arguments(data, cell.data_args, planned.column, skip={"regime"}))
        assert is_regime(cell.regime, data.regimes)
        # the two cues of table 8 are tokens already
        assert bool(cell.encoder) != (name == "qumatl/table8")
        if cell.encoder.get("name") == "patches":
            assert resolve_encoder(cell.encoder)[1] == "tokens"


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("profile", PROFILES)
def test_the_table_and_its_claims_are_shown_before_anything_ran(profile: str, name: str) -> None:
    spec = table_spec(name)
    outcomes = [Outcome(each.row, each.column, each.cell, "", "missing") for each in spec.plan(profile)]
    assert spec.title in render(build_report(spec.under(profile), profile, outcomes, printed=spec.columns), "md")
    assert {verdict.verdict for verdict in evaluate_claims(spec, profile, outcomes)} == {"not testable here"}


def test_only_the_papers_own_data_is_called_so_and_the_values_stand_apart_elsewhere() -> None:
    for name in TABLES:
        spec = table_spec(name)
        assert {profile: spec.profile(profile).is_papers_data for profile in PROFILES} == {
            "paper": name != "qumatl/table8",  # a question of the suite's own
            "cpu": False,
            "demo": False,
        }
        if not any(row.values for row in spec.rows) and not spec.references:
            continue  # nothing was printed
        text = render(build_report(spec.under("demo"), "demo", [], printed=spec.columns), "md")
        assert "values as printed" in text or "Published reference rows" in text, name


def test_tables_of_one_training_share_its_cells() -> None:
    def keys(name: str) -> set[str]:
        plan = table_spec(name).plan("cpu", seeds=1)
        return {canonical_json(each.cell.model_dump()) for each in plan}

    assert keys("qumatl/table2") == keys("qumatl/table4") == keys("qumatl/table6")
    assert len(keys("qumatl/table5") - keys("qumatl/table2")) == 3 * 6, "three ablations in six columns"


def test_printed_means_are_those_of_the_printed_annotators() -> None:
    spec = table_spec("qumatl/table2")
    values = {row.name: row.values for row in spec.rows if row.values}
    assert set(values) == {"qumatl", "base", "d_lema", "padl", "madl"}
    for row, by_column in values.items():
        assert set(by_column) == {"ha", "he", "sa", "li", "or"}
        for column, printed in by_column.items():
            mean = fmean(printed[name] for name in ANNOTATORS)
            # both are rounded to two digits
            assert printed["accuracy"] == pytest.approx(mean, abs=0.0101), (row, column)


def test_the_released_scoring_has_columns_of_its_own() -> None:
    for row in table_spec("qumatl/table3").rows:
        for printed in row.values.values():
            assert "accuracy" not in printed and "weighted_f1" not in printed, "the paper's are of the faulty scoring"
