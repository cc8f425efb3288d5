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


@pytest.mark.parametrize("delivery", ["soft", "sls", "multipass"])
def test_delivery_and_plain_cross_entropy_differ_in_the_labels_alone(
    delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One label an item leaves nothing to deliver: then both sides must do the same work and end alike."""
    torch.use_deterministic_algorithms(True)
    monkeypatch.setattr(perf, "_VOTES_PER_ITEM", 1)
    ours, reference = (side() for side in MEASUREMENTS[f"delivery-{delivery}"].prepare(300))
    assert isinstance(ours, torch.nn.Module) and isinstance(reference, torch.nn.Module)
    own = ours.state_dict()
    for name, right in reference.state_dict().items():
        torch.testing.assert_close(own[name], right, rtol=1e-4, atol=1e-6, msg=name)


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


def test_the_fastest_runs_decide_where_a_limit_is_close_to_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour's load adds time to two of three rounds; the runs that it spared are the comparison."""
    now, load = [0.0], iter([5.0, 0.0, 0.0, 7.0, 0.0, 9.0])
    monkeypatch.setattr(perf.time, "perf_counter", lambda: now[0])

    def side(ticks: float, warm_up: list[bool]) -> perf.Run:
        def run() -> None:
            now[0] += ticks + (0.0 if warm_up else next(load))
            warm_up[:] = []

        return run

    # the short run of each side that warms up comes first
    sides = iter([(side(1, [True]), side(1, [True])), (side(101, []), side(100, []))])
    chosen = Measurement("thing", limit=1.02, at_most=True, prepare=lambda _: next(sides), items=10, fastest=True)
    outcome = perf.measure("thing", chosen)
    assert outcome.ratio == pytest.approx(1.01) and outcome.met
    assert len(outcome.ratios) == 3


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
