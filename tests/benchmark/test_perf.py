"""The speed measurement compares like with like. No test asserts a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmark import perf, perf_data, perf_maths
from benchmark.perf import MEASUREMENTS, Measurement
from datamodules.annotations import Annotations


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


def test_a_reference_that_does_a_share_of_the_work_is_charged_for_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(perf.time, "perf_counter", lambda: now[0])

    def side(ticks: float) -> perf.Run:
        return lambda: now.__setitem__(0, now[0] + ticks)

    sides = (side(2), side(3))
    chosen = Measurement("thing", limit=50.0, at_most=False, prepare=lambda _: sides, items=700, reference_items=7)
    outcome = perf.measure("thing", chosen, rounds=1)
    assert outcome.ratio == pytest.approx(150) and outcome.met
    assert outcome.reference_seconds == [pytest.approx(300)]
    fewer = perf.measure("thing", chosen, rounds=1, items=5)  # the reference works on all of them
    assert fewer.reference_seconds == [pytest.approx(3)]


def test_a_side_of_a_few_milliseconds_is_timed_over_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    # DIC takes 2 ms; taken for the 10 ms that another clock tells apart, it was called 54 times as fast, not 300 times
    now = [0.0]
    monkeypatch.setattr(perf.time, "perf_counter", lambda: now[0])

    def side(seconds: float) -> perf.Run:
        return lambda: now.__setitem__(0, now[0] + seconds)

    sides = (side(0.002), side(0.6))
    chosen = Measurement("thing", limit=100.0, at_most=False, prepare=lambda _: sides, items=10, own_runs=50)
    outcome = perf.measure("thing", chosen, rounds=3)
    assert outcome.ratio == pytest.approx(300) and outcome.met
    assert outcome.ours_seconds == [pytest.approx(0.002)] * 3 and outcome.reference_seconds == [pytest.approx(0.6)] * 3


def test_both_sides_of_dawid_skene_end_with_the_same_posteriors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many steps without smoothing: only then is the ratio one of speed.

    Workers with one or two labels, as 747 have on 200 items, would end elsewhere: to crowd-kit, labels that a worker
    never gave do not exist.
    """
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(10, (200, 1), generator=generator)
    right = torch.rand(200, 5, generator=generator) < 0.7
    labels = torch.where(right, truth, torch.randint(10, (200, 5), generator=generator))
    monkeypatch.setattr(perf_maths, "cifar10n_annotations", lambda count: Annotations.from_dense(labels[:count], 10))
    ours, theirs = (side() for side in MEASUREMENTS["dawid-skene"].prepare(200))
    assert isinstance(ours, torch.Tensor)
    found = torch.tensor(theirs.sort_index()[list(range(10))].to_numpy())  # type: ignore[attr-defined]
    torch.testing.assert_close(ours, found, rtol=0, atol=1e-6)


def test_where_cifar10n_is_not_found_random_annotations_stand_in() -> None:
    annotations = perf_data.cifar10n_annotations(50)
    assert (annotations.n_items, annotations.n_annotators, annotations.n_classes) == (50, 747, 10)
    assert torch.equal(torch.bincount(annotations.items), torch.full((50,), 3))


@pytest.mark.parametrize(("count", "looped"), [(10, 10), (130, 50)])
def test_the_loop_over_few_shot_tasks_is_given_those_it_is_charged_for(
    count: int, looped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rounded share of 0.01 gave the loop 1 of 10 tasks, and charged it for 100."""
    frames: list[object] = []
    monkeypatch.setattr(perf_maths, "_crowd_kit", frames.append)
    ours, reference = MEASUREMENTS["dawid-skene-tasks"].prepare(count)
    reference()
    assert len(frames) == looped == min(count, MEASUREMENTS["dawid-skene-tasks"].reference_items or count)
    posteriors = ours()
    assert isinstance(posteriors, torch.Tensor) and posteriors.shape == (count, 20, 4)


def test_both_sides_of_few_shot_tasks_end_with_the_same_posteriors() -> None:
    ours, theirs = (side() for side in MEASUREMENTS["dawid-skene-tasks"].prepare(4))
    assert isinstance(ours, torch.Tensor) and isinstance(theirs, list)
    for own, table in zip(ours, theirs, strict=True):
        found = torch.tensor(table.sort_index()[list(range(4))].to_numpy())
        torch.testing.assert_close(own, found, rtol=0, atol=1e-6)


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
