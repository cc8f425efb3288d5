"""One item with the attention on it: which item, what is kept of it, and how it is drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmark.evaluate import evaluate
from benchmark.evaluate.attention_examples import most_disputed, reduced
from benchmark.report.figures import write_figure
from benchmark.resolve import resolve
from benchmark.result import Outcome
from benchmark.run import build
from benchmark.spec import Cell
from datamodules.annotations import Annotations
from datamodules.street_sim import StreetSim
from tests.benchmark.fixtures_report import outcomes_of, result_of, small_spec

SMALL = {"init": "random", "hidden_size": 16, "layers": 2, "heads": 2, "feed_forward": 16, "lr": 0.001}
FIGURE = {"form": "attention", "y": ["example_weights"]}


def _measured(method: str, args: dict[str, Any], tmp_path: Path, monkeypatch: Any) -> Any:
    monkeypatch.setenv("ANNOBENCH_CACHE", str(tmp_path / "cache"))
    cell = Cell.model_validate(
        {
            "method": method,
            "method_args": args,
            "dataset": "street_sim",
            "regime": "full",
            "seed": 0,
            "train": {"max_epochs": 1},
            "profile": "demo",
            "encoder": {"name": "patches", "form": "tokens", "grid": 3, "features": 8, "patches": 200},
        }
    )
    torch.manual_seed(0)
    made, datamodule = build(resolve(cell))
    return evaluate(made, datamodule, ["attention_examples"]), made, datamodule


def _array(arrays: Any, name: str) -> np.ndarray:
    return np.array(arrays[f"example_{name}"]).reshape([int(size) for size in arrays[f"example_{name}_shape"]])


def test_the_item_is_kept_as_it_was_loaded_with_the_attention_on_its_features(tmp_path: Path, monkeypatch: Any) -> None:
    found, method, datamodule = _measured("qumatl", SMALL, tmp_path, monkeypatch)
    data = datamodule.data
    assert data.test_annotations is not None and data.test_regions is not None
    row = most_disputed(data.test_annotations)
    assert np.array_equal(_array(found.arrays, "image"), datamodule.as_loaded.test_x[row].numpy())
    assert np.array_equal(_array(found.arrays, "labels"), data.test_annotations.dense()[row].numpy())
    assert np.array_equal(_array(found.arrays, "regions"), data.test_regions[row].numpy())
    x = data.test_x[row : row + 1].float()
    with torch.no_grad():
        weights, answers = method.attention(x)[0], method.predict_annotators(x)[0].argmax(-1)
    assert np.allclose(_array(found.arrays, "weights"), weights.numpy(), atol=1e-6)
    assert np.array_equal(_array(found.arrays, "predictions"), answers.numpy())


def test_a_method_without_attention_keeps_a_note_and_nothing_else(tmp_path: Path, monkeypatch: Any) -> None:
    found, _, _ = _measured("padl", {}, tmp_path, monkeypatch)
    assert not found.arrays and not found.metrics
    assert any("has no attention" in note for note in found.notes)


def test_data_without_pictures_keeps_a_note_and_nothing_else() -> None:
    cell = {"method": "qumatl", "method_args": SMALL, "dataset": "cue_sim", "regime": "full", "seed": 0}
    made, datamodule = build(
        resolve(
            Cell.model_validate({**cell, "train": {"max_epochs": 1}, "profile": "demo", "protocols": ["annotators"]})
        )
    )
    found = evaluate(made, datamodule, ["attention_examples"])
    assert not found.arrays and "has no pictures" in found.notes[0]


def test_the_item_is_the_one_that_annotators_disagree_about_most() -> None:
    labels = torch.tensor([[0, 0, 0, 0], [0, 1, 2, -1], [1, 1, 2, 2], [2, 0, 1, 1], [0, 1, 2, 2]])
    assert most_disputed(Annotations.from_dense(labels, 3)) == 3
    several = StreetSim("full").data.test_annotations
    assert several is not None
    answers = several.dense()[most_disputed(several)]
    most = max(len(set(each)) for each in several.dense().tolist())
    assert len(set(answers.tolist())) == most


def test_a_large_picture_is_averaged_down_and_a_small_one_is_left_alone() -> None:
    small = torch.randint(256, (3, 64, 48), dtype=torch.uint8)
    assert torch.equal(reduced(small), small)
    frames = torch.arange(2 * 3 * 100 * 130, dtype=torch.float64).reshape(2, 3, 100, 130).remainder(251).to(torch.uint8)
    found = reduced(frames)
    assert found.shape == (2, 3, 20, 26) and found.dtype == torch.uint8
    expected = frames[1, 2, 5:10, 10:15].double().mean().round()
    assert int(found[1, 2, 1, 2]) == int(expected)


# --- the figure -----------------------------------------------------------------------------------


def _arrays(weights: Tensor, image: Tensor) -> dict[str, Any]:
    labels = torch.tensor([0, -1])
    kept = {"image": image, "weights": weights, "labels": labels, "predictions": torch.tensor([1, 0])}
    arrays: dict[str, Any] = {}
    for name, values in kept.items():
        arrays[f"example_{name}"] = [float(value) for value in values.flatten()]
        arrays[f"example_{name}_shape"] = [float(size) for size in values.shape]
    return arrays


def test_a_band_for_each_place_and_the_weights_beside_the_picture(tmp_path: Path) -> None:
    spec = small_spec(kind="figure", figure=FIGURE, protocols=["attention_examples"])
    weights = torch.eye(4)[:2]
    image, clip = torch.zeros(3, 8, 8), torch.full((4, 1, 8, 8), 200.0)
    frames = torch.full((2, 4, 3), 1 / 12)
    outcomes = []
    for outcome in outcomes_of(spec, "cpu", lambda *_: {"test_accuracy": 0.5}):
        arrays = _arrays(weights, image) if outcome.column == "easy" else _arrays(frames, clip)
        if outcome.row == "second":
            arrays = {}
        lacking = (outcome.row, outcome.column) == ("second", "hard") or outcome.cell.seed == 0
        result = None if lacking else result_of(outcome.cell, {"test_accuracy": 0.5}, arrays=arrays)
        status = "missing" if lacking else "done"
        outcomes.append(Outcome(outcome.row, outcome.column, outcome.cell, "0", status, result))  # type: ignore[arg-type]
    picture, _, document = write_figure(spec, "cpu", outcomes, tmp_path)
    first = picture.read_bytes()
    assert first.startswith(b"\x89PNG") and write_figure(spec, "cpu", outcomes, tmp_path)[0].read_bytes() == first
    points = json.loads(document.read_text())["points"]
    # the lowest seed with a result, of the row that has attention: 2 annotators x 4 tokens, or 4 frames
    assert {point["seed"] for point in points} == {1} and {point["row"] for point in points} == {"first"}
    assert len(points) == 2 * (2 * 4)
    bright = [point for point in points if point["column"] == "easy" and point["weight"] == 1]
    assert [(point["annotator"], point["token"]) for point in bright] == [(1, 0), (2, 1)]
    assert {point["weight"] for point in points if point["column"] == "hard"} == {0.25}
    assert {(point["annotator"], point["label"], point["predicted"]) for point in points} == {(1, 0, 1), (2, -1, 0)}


def test_a_figure_of_attention_needs_the_protocol_that_keeps_it() -> None:
    with pytest.raises(ValueError, match="attention_examples"):
        small_spec(kind="figure", figure=FIGURE, references=[])
