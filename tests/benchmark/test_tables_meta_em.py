"""The YAML of Meta-EM: rows resolve, rows of one network are one cell, values are the agreed averages."""

from __future__ import annotations

import pytest

from benchmark.claims.evaluate import evaluate_claims
from benchmark.registry import dataset_class, method_class, table_spec
from benchmark.report.build import build_report
from benchmark.report.formats import render
from benchmark.resolve import resolve_arguments
from benchmark.result import Outcome
from benchmark.spec import canonical_json

NAME = "meta-em/table1"
PROFILES = ("paper", "cpu", "demo")


@pytest.mark.parametrize("profile", PROFILES)
def test_every_cell_resolves_and_every_row_shows_an_adaptation_that_exists(profile: str) -> None:
    spec = table_spec(NAME)
    prefixes = {row.name: row.prefix for row in spec.rows}
    for planned in spec.plan(profile, seeds=1):
        cell = planned.cell
        method, data = method_class(cell.method), dataset_class(cell.dataset)
        resolve_arguments(method, cell.method_args, planned.row, skip={"data_info"})
        resolve_arguments(data, cell.data_args, planned.column, skip={"regime"})
        assert cell.regime in data.regimes
        assert prefixes[planned.row].removesuffix("_") in method.adaptations  # type: ignore[union-attr]


@pytest.mark.parametrize("profile", PROFILES)
def test_the_table_and_its_claims_are_shown_before_anything_ran(profile: str) -> None:
    spec = table_spec(NAME)
    outcomes = [Outcome(each.row, each.column, each.cell, "", "missing") for each in spec.plan(profile)]
    assert spec.title in render(build_report(spec, profile, outcomes), "md")
    verdicts = evaluate_claims(spec, profile, outcomes)
    assert len(verdicts) == len(spec.claims) == 13
    assert {verdict.verdict for verdict in verdicts} == {"not testable here"}


def test_rows_of_one_network_and_columns_of_its_annotators_are_one_cell() -> None:
    plan = table_spec(NAME).plan("cpu", seeds=1)
    cells = {canonical_json(each.cell.model_dump()) for each in plan}
    assert (len(plan), len(cells)) == (17 * 9, 5 * 3), "five trainings for each number of shots"


def test_values_are_the_averages_that_the_sources_agree_on() -> None:
    found = {row.name: row.values for row in table_spec(NAME).rows if row.values}
    assert found == {
        "meta_em": {"average": {"accuracy": 0.892}},
        "without": {"average": {"accuracy": 0.758}},
        "prds": {"average": {"accuracy": 0.858}},
    }


def test_the_baselines_are_the_papers_thirteen() -> None:
    rows = {row.name for row in table_spec(NAME).rows} - {"prmv_hard", "prds_tenth", "prds_one", "meta_em"}
    thirteen = "lrmv lrds rfmv rfds cl cnal prmv prds mamv mads mcl mcnal without"
    assert rows == set(thirteen.split())
