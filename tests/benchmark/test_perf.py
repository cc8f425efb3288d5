"""The speed measurement compares like with like. No test asserts a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmark import perf
from benchmark.perf import MEASUREMENTS, Measurement


@pytest.fixture(autouse=True)
def _settings_restored() -> object:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def _without_real_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANNOBENCH_DATA", str(tmp_path))


def test_trainer_and_bare_loop_end_with_the_same_weights() -> None:
    """Same batches, model and optimiser: only then is the ratio the price of the Trainer."""
    torch.use_deterministic_algorithms(True)
    ours, reference = (side() for side in MEASUREMENTS["trainer"].prepare(300))
    assert isinstance(ours, torch.nn.Module) and isinstance(reference, torch.nn.Module)
    for (name, left), right in zip(ours.state_dict().items(), reference.state_dict().values(), strict=True):
        assert torch.equal(left, right), name


def test_the_reference_items_are_torchvisions() -> None:
    images = perf.cifar_images(4)
    items = perf._PillowCifar10(images, lambda picture: torch.tensor(picture.getpixel((3, 5))))
    pixel, label = items[2]
    assert len(items) == 4 and label == 0
    assert torch.equal(pixel, images[2, :, 5, 3].long())


@pytest.mark.parametrize("at_most", [True, False])
def test_ratios_point_the_way_their_target_says(at_most: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours takes 2 ticks and the reference 6, in whatever order they run."""
    now = [0.0]
    monkeypatch.setattr(perf.time, "perf_counter", lambda: now[0])

    def side(ticks: float) -> perf.Run:
        return lambda: now.__setitem__(0, now[0] + ticks)

    chosen = Measurement("thing", limit=3.0, at_most=at_most, prepare=lambda _: (side(2), side(6)), items=10)
    outcome = perf.measure("thing", chosen, rounds=3)
    assert outcome.ratio == pytest.approx(1 / 3 if at_most else 3)
    assert outcome.met
    assert (outcome.ours_seconds, outcome.reference_seconds) == ([2.0] * 3, [6.0] * 3)
    assert ("times as slow" if at_most else "times as fast") in perf.describe(outcome)


def test_the_command_prints_lines_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "perf.json"
    assert perf.main(["loader-randaugment", "--items", "300", "--rounds", "1", "--json", str(report)]) == 0
    written = json.loads(report.read_text())
    assert [entry["name"] for entry in written["measurements"]] == ["loader-randaugment"]
    assert written["threads"] == 1
    assert "target: at least 3.00" in capsys.readouterr().out


def test_an_unknown_measurement_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        perf.main(["trainr"])
    assert stopped.value.code == 2
    assert "'trainr'; there are: trainer, loader" in capsys.readouterr().err
