"""The tables' YAML: every one loads, every row resolves, and the paper's values are the fact sheet's."""

from __future__ import annotations

import pytest

from benchmark.claims.evaluate import evaluate_claims
from benchmark.registry import dataset_class, method_class, table_spec, tables
from benchmark.report.build import build_report
from benchmark.report.formats import render
from benchmark.resolve import resolve_arguments
from benchmark.result import Outcome
from benchmark.spec import Cell, TableSpec
from datamodules.regimes import REGIMES

LMNL = ("lmnl/fig1", "lmnl/fig2", "lmnl/table1", "lmnl/table2")
PLACES = [(name, profile) for name in LMNL for profile in ("paper", "cpu", "demo")]

# copied from the report's tables: validation (noisy labels), test
TABLE1 = {
    "baseline": (0.53, 0.77),
    "iteration1": (0.70, 0.78),
    "iteration2": (0.70, 0.81),
    "iteration3": (0.76, 0.90),
    "iteration4": (0.77, 0.90),
}
TABLE2 = {"aggre": (0.77, 0.90), "rand1": (0.75, 0.68), "worst": (0.55, 0.80)}
# copied from the official leaderboard's picture, per cent: aggre, rand1, worst
OFFICIAL = {
    "Plain cross-entropy, ResNet-34": (87.77, 85.02, 77.69),
    "Co-teaching+": (90.61, 89.70, 83.26),
    "ELR+": (94.83, 94.43, 91.09),
    "DivideMix": (95.01, 95.16, 92.56),
    "ProMix (winner of the challenge)": (97.65, 97.39, 96.34),
}


def _spec(name: str) -> TableSpec:
    return table_spec(name)


def test_all_tables_of_the_paper_are_there() -> None:
    assert set(LMNL) <= set(tables())


@pytest.mark.parametrize(("name", "profile"), PLACES)
def test_every_row_resolves_to_arguments_that_its_method_takes(name: str, profile: str) -> None:
    for planned in _spec(name).plan(profile, seeds=1):
        cell = planned.cell
        method, data = method_class(cell.method), dataset_class(cell.dataset)
        resolve_arguments(method, cell.method_args, planned.row, skip={"data_info"})
        resolve_arguments(data, cell.data_args, planned.column, skip={"regime"})
        assert cell.regime in REGIMES[cell.dataset]


@pytest.mark.parametrize(("name", "profile"), PLACES)
def test_every_table_and_its_claims_are_shown_before_anything_ran(name: str, profile: str) -> None:
    spec = _spec(name)
    outcomes = [Outcome(each.row, each.column, each.cell, "", "missing") for each in spec.plan(profile)]
    assert spec.title in render(build_report(spec, profile, outcomes), "md")
    verdicts = evaluate_claims(spec, profile, outcomes)
    assert len(verdicts) == len(spec.claims) > 0
    assert {verdict.verdict for verdict in verdicts} == {"not testable here"}


def test_values_of_table_1_are_the_reports() -> None:
    found = {row.name: row.values["aggre"] for row in _spec("lmnl/table1").rows}
    assert found == {row: {"val_accuracy": val, "test_accuracy": test} for row, (val, test) in TABLE1.items()}


def test_values_of_table_2_are_the_reports_for_both_readings_of_it() -> None:
    expected = {column: {"val_accuracy": val, "test_accuracy": test} for column, (val, test) in TABLE2.items()}
    found = {row.name: row.values for row in _spec("lmnl/table2").rows}
    assert found == {"cross_entropy": {}, "as_reported": expected, "as_released": expected, "annobench": {}}


def test_reference_rows_are_the_official_leaderboards() -> None:
    found = {row.label: row.values for row in _spec("lmnl/table2").references}
    assert set(found) == set(OFFICIAL)
    for label, printed in OFFICIAL.items():
        for column, value in zip(("aggre", "rand1", "worst"), printed, strict=True):
            assert found[label][column] == {"test_accuracy": pytest.approx(value / 100)}
    (reference,) = _spec("lmnl/table1").references
    assert reference.values == {"aggre": {"test_accuracy": 0.8777}}


def test_points_of_figure_1_are_those_known_of_the_reports_curves() -> None:
    figure = _spec("lmnl/fig1").figure
    assert figure is not None
    assert list(figure.paper["mean_skill"].values()) == [0.848, 0.296, 0.763]
    assert list(figure.paper["val_accuracy"].values()) == [0.19, 0.581]
    assert all(not row.values for name in ("lmnl/fig1", "lmnl/fig2") for row in _spec(name).rows)


@pytest.mark.parametrize("name", LMNL)
def test_only_the_real_data_counts_as_the_papers(name: str) -> None:
    profiles = _spec(name).profiles
    assert {key: profile.is_papers_data for key, profile in profiles.items()} == {
        "paper": True,
        "cpu": True,
        "demo": False,
    }
    assert {key: profile.dataset for key, profile in profiles.items()} == {
        "paper": "cifar10n",
        "cpu": "cifar10n",
        "demo": "digits",
    }
    assert all(profile.seeds >= 3 for profile in profiles.values())


def _cells(name: str, profile: str, row: str, column: str = "aggre") -> list[Cell]:
    return [each.cell for each in _spec(name).plan(profile) if (each.row, each.column) == (row, column)]


@pytest.mark.parametrize("profile", ["cpu", "demo"])
def test_tables_share_the_cells_that_are_the_same(profile: str) -> None:
    final = _cells("lmnl/table2", profile, "as_reported")
    assert final == _cells("lmnl/table1", profile, "iteration3") == _cells("lmnl/fig1", profile, "as_reported")
    assert _cells("lmnl/table2", profile, "cross_entropy") == _cells("lmnl/table1", profile, "baseline")
    assert _cells("lmnl/table2", profile, "as_released") == _cells("lmnl/fig2", profile, "as_released")


def test_in_the_paper_profile_the_final_table_is_the_last_iteration() -> None:
    assert _cells("lmnl/table2", "paper", "as_reported") == _cells("lmnl/table1", "paper", "iteration4")


def test_permuted_columns_differ_from_theirs_in_the_permutation_alone() -> None:
    for profile in ("paper", "cpu", "demo"):
        for column in ("aggre", "differing"):
            plain = _cells("lmnl/fig2", profile, "as_released", column)
            permuted = _cells("lmnl/fig2", profile, "as_released", f"{column}_permuted")
            for one, other in zip(plain, permuted, strict=True):
                expected = {**one.data_args, "permute_annotators": True}
                assert other == one.model_copy(update={"data_args": expected})


#: tables where a profile says in a note that it sets an argument of a row otherwise
TOLD = {"lmnl/table1"}


@pytest.mark.parametrize("name", sorted(set(tables()) - TOLD))
def test_no_profile_sets_an_argument_that_a_row_or_column_is_about(name: str) -> None:
    """A profile's arguments win: rows with tau = 0, 0.1 and 1 once were the same cell, and the table looked sound."""
    spec = table_spec(name)
    for profile in spec.profiles.values():
        for row in spec.rows:
            assert not set(row.args) & set(profile.args.get(row.method, {})), row.name
            for column in spec.columns:
                assert not set(column.args) & set(profile.args.get(row.method, {})), column.name
