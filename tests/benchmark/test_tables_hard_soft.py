"""The YAML of hard against soft labels: rows resolve, values are the fact sheet's, cells are shared as meant."""

from __future__ import annotations

import pytest

from benchmark.claims.evaluate import evaluate_claims
from benchmark.registry import dataset_class, method_class, table_spec, tables
from benchmark.report.build import build_report
from benchmark.report.formats import render
from benchmark.resolve import resolve_arguments, resolve_encoder
from benchmark.result import Outcome
from benchmark.spec import Cell
from datamodules.regimes import is_regime

NAMES = tuple(f"hard-soft/{kind}{number}" for kind in ("fig", "table") for number in (1, 2, 3, 4))
PROFILES = ("paper", "cpu", "demo")
PLACES = [(name, profile) for name in NAMES for profile in PROFILES]

# copied from the note of the paper: soft NLL, accuracy, calibration error, entropy correlation
MAIN = {
    "majority": (0.7284, 0.8570, 0.0704, 0.2902),
    "label_smoothing": (0.6263, 0.8590, 0.0598, 0.2117),
    "mixup": (0.5526, 0.8824, 0.0977, 0.2499),
    "mixup_one": (0.5526, 0.8824, 0.0977, 0.2499),
    "soft": (0.5096, 0.8687, 0.0185, 0.3909),
    "sls": (0.5052, 0.8695, 0.0186, 0.3946),
}
# soft NLL at K = 5, 10, 25, 50
SPARSE = {
    "soft": (0.5860, 0.5785, 0.5388, 0.5628),
    "sls": (0.5599, 0.5485, 0.5169, 0.5291),
    "multipass": (0.5649, 0.5371, 0.5117, 0.5241),
    "deterministic": (0.5555, 0.5388, 0.5077, 0.5231),
}
# soft NLL, accuracy, entropy correlation, largest eigenvalue, trace
ABLATION = {
    "soft": (0.5096, 0.8687, 0.3909, 242.2, 4946.0),
    "sls": (0.5052, 0.8695, 0.3946, 104.9, 1633.9),
    "multipass": (0.4942, 0.8714, 0.4000, 103.8, 1571.4),
    "deterministic": (0.4921, 0.8724, 0.3963, 101.6, 1581.6),
    "shuffled_sls": (2.2973, 0.1199, -0.006, 18.4, 33.9),
}


def test_all_tables_of_the_paper_are_there() -> None:
    assert set(NAMES) == {name for name in tables() if name.startswith("hard-soft/")}


@pytest.mark.parametrize(("name", "profile"), PLACES)
def test_every_cell_resolves_to_arguments_that_exist(name: str, profile: str) -> None:
    for planned in table_spec(name).plan(profile, seeds=1):
        cell = planned.cell
        method, data = method_class(cell.method), dataset_class(cell.dataset)
        resolve_arguments(method, cell.method_args, planned.row, skip={"data_info"})
        resolve_arguments(data, cell.data_args, planned.column, skip={"regime"})
        resolve_encoder(cell.encoder)
        assert is_regime(cell.regime, data.regimes)


@pytest.mark.parametrize(("name", "profile"), PLACES)
def test_every_table_and_its_claims_are_shown_before_anything_ran(name: str, profile: str) -> None:
    spec = table_spec(name)
    outcomes = [Outcome(each.row, each.column, each.cell, "", "missing") for each in spec.plan(profile)]
    assert spec.title in render(build_report(spec.under(profile), profile, outcomes), "md")
    verdicts = evaluate_claims(spec, profile, outcomes)
    assert len(verdicts) == len(spec.claims)
    assert {verdict.verdict for verdict in verdicts} <= {"not testable here"}


def test_values_of_table_1_are_the_main_comparisons_at_both_epochs() -> None:
    names = ("test_soft_nll", "test_accuracy", "test_ece", "test_entropy_correlation")
    for row in table_spec("hard-soft/table1").rows:
        printed = dict(zip(names, MAIN.get(row.name, ()), strict=False))
        expected = {"images": {**printed, "best_test_soft_nll": printed["test_soft_nll"]}} if printed else {}
        assert row.values == expected


def test_values_of_table_2_are_the_sparse_scans_at_both_epochs() -> None:
    for row in table_spec("hard-soft/table2").rows:
        expected = {
            f"k{k}": {"test_soft_nll": value, "best_test_soft_nll": value}
            for k, value in zip((5, 10, 25, 50), SPARSE[row.name], strict=True)
        }
        assert row.values == expected


def test_values_of_table_3_are_the_ablations_with_the_hessian_at_the_best_epoch_alone() -> None:
    names = ("test_soft_nll", "test_accuracy", "test_entropy_correlation", "hessian_top_eigenvalue", "hessian_trace")
    for row in table_spec("hard-soft/table3").rows:
        printed = dict(zip(names, ABLATION[row.name], strict=True))
        assert row.values == {"last": {name: printed[name] for name in names[:3]}, "best": printed}


def test_no_other_table_prints_a_value_that_the_note_does_not_have() -> None:
    assert not any(row.values for row in table_spec("hard-soft/table4").rows)
    (stale,) = table_spec("hard-soft/fig1").rows
    assert stale.values == {"e1": {"test_soft_nll": 0.5027}, "e50": {"test_soft_nll": 0.6689}}
    figure = table_spec("hard-soft/fig3").figure
    assert figure is not None
    assert sorted(value for found in figure.paper.values() for value in found.values()) == [
        0.804,
        0.887,
        0.901,
        0.920,
        2.05,
    ]


@pytest.mark.parametrize("name", NAMES)
def test_only_the_real_data_counts_as_the_papers(name: str) -> None:
    profiles = table_spec(name).profiles
    assert {key: (at.dataset, at.is_papers_data) for key, at in profiles.items()} == {
        "paper": ("cifar10h", True),
        "cpu": ("cifar10h", True),
        "demo": ("digits_votes", False),
    }


def _cells(name: str, profile: str, row: str, column: str) -> list[Cell]:
    return [each.cell for each in table_spec(name).plan(profile) if (each.row, each.column) == (row, column)]


@pytest.mark.parametrize("profile", ["cpu", "demo"])
@pytest.mark.parametrize("row", ["soft", "sls", "multipass"])
def test_figures_share_the_cells_of_the_tables(profile: str, row: str) -> None:
    assert _cells("hard-soft/fig3", profile, row, "full") == _cells("hard-soft/table1", profile, row, "images")
    column = {"cpu": "gtsrb", "demo": "photographs"}[profile]
    assert _cells("hard-soft/fig2", profile, row, "full") == _cells("hard-soft/table4", profile, row, column)


def test_columns_of_last_and_best_epoch_and_of_each_outside_set_are_one_cell() -> None:
    assert _cells("hard-soft/table3", "cpu", "sls", "last") == _cells("hard-soft/table3", "cpu", "sls", "best")
    assert _cells("hard-soft/table4", "cpu", "sls", "svhn") == _cells("hard-soft/table4", "cpu", "sls", "gtsrb")


def test_every_claim_about_soft_nll_is_made_at_the_last_and_at_the_best_epoch() -> None:
    for name in ("hard-soft/table1", "hard-soft/table2"):
        claims = {claim.id: claim.test["metric"] for claim in table_spec(name).claims}
        last = {ident for ident in claims if not ident.endswith("-best")}
        assert {f"{ident}-best" for ident in last} == claims.keys() - last
        assert {claims[ident] for ident in last} == {"test_soft_nll"}
        assert {claims[ident] for ident in claims.keys() - last} == {"best_test_soft_nll"}


def test_the_paper_profile_is_the_papers_protocol() -> None:
    (cell, *_) = _cells("hard-soft/table1", "paper", "sls", "images")
    assert (cell.train.max_epochs, cell.train.precision, cell.data_args["batch_size"]) == (200, "32-true", 128)
    args = resolve_arguments(method_class(cell.method), cell.method_args, "sls", skip={"data_info"})
    assert (args["backbone"], args["optimiser"], args["schedule"]) == ("resnet18", "sgd", "cosine")
    assert (args["lr"], args["momentum"], args["weight_decay"]) == (0.1, 0.9, 5e-4)
    assert len(_cells("hard-soft/table1", "paper", "sls", "images")) == 10
    assert len(_cells("hard-soft/table2", "paper", "sls", "k5")) == 5
