"""Cells that are tested at the last and at the best epoch, and cells whose items are seen through an encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from benchmark.registry import table_spec
from benchmark.resolve import resolve
from benchmark.run import Trained, build, held_out_soft_nll, run_cell
from benchmark.spec import Cell, SpecError, TrainArgs

LEADERBOARDS = Path(__file__).parents[2] / "leaderboards"


def cell(epochs: int = 6, selection: str = "last_and_best_votes", **changes: Any) -> Cell:
    method = {
        "delivery": "majority",
        "backbone": "linear",
        "schedule": "constant",
        "lr": 1.0,
        **changes.pop("args", {}),
    }
    return Cell(
        method="label_delivery",
        method_args=method,
        dataset="digits_votes",
        regime="votes=3",
        seed=0,
        train=TrainArgs(max_epochs=epochs, selection=selection),  # type: ignore[arg-type]
        protocols=("consensus", "distribution"),
        profile="demo",
        **changes,
    )


@pytest.fixture(scope="module")
def overfitted() -> Trained:
    """Hard labels and a large step: the soft likelihood gets worse while it trains."""
    return run_cell(resolve(cell()))


def test_best_epoch_is_the_one_with_the_lowest_soft_nll_on_held_out_votes(overfitted: Trained) -> None:
    curve = overfitted.result.curves["val_soft_nll"]
    lowest = min(value for value in curve if value is not None)
    assert len(curve) == 6
    assert overfitted.result.metrics["best_epoch"] == curve.index(lowest)
    assert curve.index(lowest) < 5, "the case shows nothing unless the best epoch is not the last"


def test_best_metrics_are_those_of_a_training_that_ends_there(overfitted: Trained) -> None:
    metrics = overfitted.result.metrics
    shorter = run_cell(resolve(cell(epochs=int(metrics["best_epoch"] or 0) + 1, selection="last"))).result.metrics
    assert {f"best_{name}": value for name, value in shorter.items()} == {
        name: value for name, value in metrics.items() if name.startswith("best_") and name != "best_epoch"
    }


def test_last_metrics_and_weights_are_those_of_a_training_without_selection(overfitted: Trained) -> None:
    plain = run_cell(resolve(cell(selection="last")))
    for name, value in plain.result.metrics.items():
        assert overfitted.result.metrics[name] == value
    weights = overfitted.method.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in plain.method.state_dict().items())


def test_held_out_votes_alone_decide(overfitted: Trained) -> None:
    """By hand: the mean of H(p, q) over the held-out items and their few votes."""
    data = overfitted.datamodule
    votes = data.val_annotations.votes()[data.val_items].double()
    with torch.no_grad():
        logits = [overfitted.method.predict_consensus(batch["x"]) for batch in data.val_dataloader()]
    expected = -(votes / votes.sum(1, keepdim=True) * torch.cat(logits).double()).sum(1).mean()
    assert held_out_soft_nll(overfitted.method, data) == pytest.approx(float(expected), rel=1e-6)


def test_an_encoder_changes_what_the_method_sees_and_the_address(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("ANNOBENCH_CACHE", str(tmp_path))
    plain, encoded = resolve(cell(epochs=1)), resolve(cell(epochs=1, encoder={"name": "patches", "features": 16}))
    other = resolve(cell(epochs=1, encoder={"name": "patches", "features": 8}))
    assert len({plain.digest, encoded.digest, other.digest}) == 3
    assert plain.data_digest == encoded.data_digest
    trained = run_cell(encoded)
    assert trained.datamodule.info.input_shape == (16 * 4,)
    again = run_cell(encoded)
    assert again.result.metrics == trained.result.metrics, "features from the cache are those that were computed"


def test_a_form_is_part_of_the_address_unless_it_is_the_first(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("ANNOBENCH_CACHE", str(tmp_path))
    encoder = {"name": "patches", "features": 16}
    unnamed = resolve(cell(epochs=1, encoder=encoder))
    flat, mean, tokens = (
        resolve(cell(epochs=1, encoder={**encoder, "form": form})) for form in ("flat", "mean", "tokens")
    )
    assert unnamed.digest == flat.digest, "cells made before there were forms keep their address"
    assert len({flat.digest, mean.digest, tokens.digest}) == 3
    shapes = [build(at)[1].info.input_shape for at in (flat, mean, tokens)]
    assert shapes == [(64,), (16,), (4, 16)]


def test_encoding_is_told_as_it_goes_and_only_the_first_time(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("ANNOBENCH_CACHE", str(tmp_path))
    encoded = resolve(cell(epochs=1, encoder={"name": "patches", "features": 8}))
    told: list[tuple[int, int]] = []
    _, data = build(encoded, on_encode=lambda done, of: told.append((done, of)))
    sizes = {len(data.data.x), len(data.data.test_x)}
    assert {of for _, of in told} == sizes and {(size, size) for size in sizes} <= set(told)
    told.clear()
    build(encoded, on_encode=lambda done, of: told.append((done, of)))
    assert not told


@pytest.mark.parametrize(
    ("encoder", "said"),
    [
        ({"features": 16}, "no name"),
        ({"name": "patchs"}, "patches"),
        ({"name": "patches", "centres": 3}, "centres"),
        ({"name": "patches", "form": "token"}, "form.*tokens"),
    ],
)
def test_a_wrong_encoder_is_named(encoder: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        resolve(cell(encoder=encoder))


@pytest.mark.parametrize(
    "table", ["lmnl/table1", "lmnl/table2", "lmnl/fig1", "hard-soft/table1", "hard-soft/table2", "hard-soft/table3"]
)
def test_committed_numbers_are_those_of_todays_cells(table: str, real_data: Path) -> None:
    """Each line of a committed table has the address that its cell has now: else it is of other code or data."""
    committed = pd.read_csv(LEADERBOARDS / f"{table}_cells.csv")
    today = {
        (plan.row, plan.column, plan.cell.seed): resolve(plan.cell, root=real_data).digest
        for plan in table_spec(table).plan("cpu")
    }
    found = {
        (line.row, column, line.seed): line.digest
        for line in committed.itertuples()
        for column in line.column.split(";")
    }
    assert found == today
