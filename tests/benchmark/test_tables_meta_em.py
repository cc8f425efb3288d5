"""The YAML of Meta-EM: rows resolve, rows of one network are one cell, values are the agreed averages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmark.claims.evaluate import evaluate_claims
from benchmark.registry import dataset_class, method_class, table_spec, tables
from benchmark.report.build import build_report
from benchmark.report.formats import render
from benchmark.resolve import resolve_arguments
from benchmark.result import Outcome
from benchmark.spec import Cell, canonical_json

NAME = "meta-em/table1"
PROFILES = ("paper", "cpu", "demo")


TABLES = sorted(name for name in tables() if name.startswith("meta-em/"))
#: what a metric is called after the adaptation's name; those of a whole network have no adaptation
OF_NETWORK = {"silhouette"}


def test_there_are_the_tables_and_figures_that_the_readme_names() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    named = re.search(r"\(`meta-em`\) \| 1 to (\d), figures 1 to (\d) \|", readme)
    assert named is not None
    n_tables, n_figures = (int(last) for last in named.groups())
    names = (*(f"fig{n + 1}" for n in range(n_figures)), *(f"table{n + 1}" for n in range(n_tables)))
    assert [f"meta-em/{name}" for name in names] == TABLES


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("profile", PROFILES)
def test_every_cell_resolves_and_every_row_shows_an_adaptation_that_exists(profile: str, name: str) -> None:
    spec = table_spec(name)
    shows = {row.name: row.prefix.removesuffix("_") for row in spec.rows}
    resolved: dict[str, object] = {}
    for planned in spec.plan(profile, seeds=1):
        cell = planned.cell
        method, data = method_class(cell.method), dataset_class(cell.dataset)
        key = canonical_json([cell.method, cell.method_args, cell.dataset, cell.regime, cell.data_args])
        if key not in resolved:
            resolve_arguments(method, cell.method_args, planned.row, skip={"data_info"})
            arguments = resolve_arguments(data, cell.data_args, planned.column, skip={"regime"})
            resolved[key] = data(cell.regime, **arguments)  # refuses shares and numbers that do not go together
        assert cell.regime in data.regimes
        if {metric.name for metric in spec.metrics} - OF_NETWORK:
            assert shows[planned.row] in method.adaptations  # type: ignore[union-attr]


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("profile", PROFILES)
def test_the_table_and_its_claims_are_shown_before_anything_ran(profile: str, name: str) -> None:
    spec = table_spec(name)
    outcomes = [Outcome(each.row, each.column, each.cell, "", "missing") for each in spec.plan(profile)]
    assert spec.title in render(build_report(spec, profile, outcomes), "md")
    verdicts = evaluate_claims(spec, profile, outcomes)
    assert len(verdicts) == len(spec.claims)
    assert {verdict.verdict for verdict in verdicts} <= {"not testable here"}


def test_what_the_issue_of_the_method_claims_is_a_claim() -> None:
    ids = {claim.id for name in TABLES for claim in table_spec(name).claims}
    assert ids >= {"pseudo-annotation-helps", "pseudo-annotation-shrinks", "falls-with-spammers", "order-holds-prds"}
    assert ids >= {"two-steps-against-three", "two-steps-against-five", "unseen-beats-prds", "costs-like-prototypical"}
    assert len({claim.id for claim in table_spec(NAME).claims}) == 15


@pytest.mark.parametrize("profile", PROFILES)
def test_figures_and_sensitivity_share_their_cells_with_table_1(profile: str) -> None:
    # tau = 0.1 stood in the cpu profile alone, and the rows' labels and notes were wrong elsewhere
    def keys(name: str) -> set[str]:
        return {canonical_json(_address(each.cell)) for each in table_spec(name).plan(profile, seeds=1)}

    one_shot = keys("meta-em/table1")
    assert keys("meta-em/fig1") <= one_shot
    assert len(keys("meta-em/fig2") - one_shot) == 4, "J = 1, 3, 5 and 10"
    assert len(keys("meta-em/fig3") - one_shot) == 2, "b = 1 and 100"
    assert len(keys("meta-em/table6") & one_shot) == 3, (
        "the method, without pseudo-annotation, the prototypical network"
    )


def _address(cell: Cell) -> dict[str, object]:
    method, data = method_class(cell.method), dataset_class(cell.dataset)
    method_args = resolve_arguments(method, cell.method_args, "row", skip={"data_info"})
    data_args = resolve_arguments(data, cell.data_args, "column", skip={"regime"})
    return {**cell.model_dump(), "method_args": method_args, "data_args": data_args}


def test_rows_of_one_network_and_columns_of_its_annotators_are_one_cell() -> None:
    plan = table_spec(NAME).plan("cpu", seeds=1)
    cells = {canonical_json(each.cell.model_dump()) for each in plan}
    assert (len(plan), len(cells)) == (18 * 9, 5 * 3), "five trainings for each number of shots"


def test_values_are_the_averages_that_the_sources_agree_on() -> None:
    found = {row.name: row.values for row in table_spec(NAME).rows if row.values}
    assert found == {
        "meta_em": {"average": {"accuracy": 0.892}},
        "without": {"average": {"accuracy": 0.758}},
        "prds": {"average": {"accuracy": 0.858}},
    }


def test_the_baselines_are_the_papers_thirteen() -> None:
    more = {"prmv_hard", "prds_tenth", "prds_one", "mamv_fractions", "meta_em"}
    rows = {row.name for row in table_spec(NAME).rows} - more
    thirteen = "lrmv lrds rfmv rfds cl cnal prmv prds mamv mads mcl mcnal without"
    assert rows == set(thirteen.split())
