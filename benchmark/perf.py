"""What the conveniences cost: ``python -m benchmark.perf`` measures ours against plain PyTorch and prints ratios.

Both sides of a measurement run alternately in one process, so that another load on the machine meets both; the
ratio is the median over the rounds, or that of the fastest runs where the limit is close to 1. A measurement is
an entry of :data:`MEASUREMENTS`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import CIFAR10

from benchmark.perf_data import PerfData, cifar_images
from benchmark.perf_maths import LOOPED_TASKS, Run, dawid_skene_tasks, dawid_skene_whole, dic, em
from benchmark.provenance import hardware
from benchmark.run import train
from benchmark.spec import TrainArgs
from datamodules.cifar10_images import MEAN, STD
from models.base import CrowdModule
from models.cross_entropy.module import CrossEntropy
from models.label_delivery.module import LabelDelivery


@dataclass(frozen=True)
class Measurement:
    """One comparison of ours with a reference.

    Attributes:
        title: what is compared.
        limit: the target of the ratio.
        at_most: True: the ratio is ours/reference ("times as slow") and must stay below the limit; False:
            reference/ours ("times as fast") and must reach it.
        prepare: makes both sides (ours, reference) from a number of items; what it does is not timed.
        items: items an epoch.
        epochs: epochs that one run of a side stands for.
        rounds: pairs of runs unless the command line says otherwise.
        fastest: the ratio is that of each side's fastest run, not the median over pairs: for a limit so close
            to 1 that another load on the machine, which only ever adds time, would decide.
        reference_items: how many of the items the reference works on, where all of them would take it many
            minutes; its seconds are scaled up to all. None: all.
        own_runs: how often ours runs in a row in a round, where one run takes too few milliseconds to be timed; its
            seconds are those of one run.
    """

    title: str
    limit: float
    at_most: bool
    prepare: Callable[[int], tuple[Run, Run]]
    items: int
    epochs: int = 1
    rounds: int = 3
    fastest: bool = False
    reference_items: int | None = None
    own_runs: int = 1


@dataclass(frozen=True)
class Outcome:
    """Seconds of each round and what follows from them.

    ``ratio`` is of elapsed time and decides whether the target is met; ``cpu_ratio`` is of CPU time, workers
    included, which another load on the machine hardly moves.
    """

    name: str
    title: str
    items: int
    epochs: int
    ours_seconds: list[float]
    reference_seconds: list[float]
    ratios: list[float]
    ratio: float
    cpu_ratio: float
    limit: float
    at_most: bool
    met: bool


# --- the Trainer against a bare loop --------------------------------------------------------------

_EPOCHS = 2


def _trainer(count: int) -> tuple[Run, Run]:
    """Two epochs of plain cross-entropy with the small CPU network, each with its validation pass."""
    images = cifar_images(count)

    def make() -> tuple[CrossEntropy, PerfData]:
        data = PerfData(images)
        data.setup()
        torch.manual_seed(0)
        return CrossEntropy(data.info, backbone="small_cnn", lr=0.01, schedule="constant"), data

    def ours() -> CrossEntropy:
        method, data = make()
        train(method, data, TrainArgs(max_epochs=_EPOCHS), lambda done, total: None)
        return method

    def reference() -> CrossEntropy:
        method, data = make()
        optimiser = torch.optim.SGD(method.parameters(), lr=0.01)
        for epoch in range(_EPOCHS):
            _bare_epoch(method, data, optimiser, epoch)
        return method

    return ours, reference


def _bare_epoch(method: CrossEntropy, data: PerfData, optimiser: torch.optim.Optimizer, epoch: int) -> None:
    method.train()
    batches = data.train_dataloader()
    batches.epoch = lambda: epoch  # the data module asks its Trainer, and here is none
    for batch in batches:
        loss = F.cross_entropy(method(batch["x"]), batch["aggregated"])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    method.eval()
    hits = torch.zeros(())
    with torch.no_grad():
        for batch in data.val_dataloader():
            predicted = method(batch["x"]).argmax(1, keepdim=True)
            hits += (predicted == batch["labels"]).sum()


# --- delivered labels against plain cross-entropy -------------------------------------------------

#: CIFAR-10H has a mean of 51.1 votes an image
_VOTES_PER_ITEM = 51


def _delivery(delivery: str) -> Callable[[int], tuple[Run, Run]]:
    """The same epochs as for the Trainer, both sides by the runner; items also have 51 votes in their batches."""

    def prepare(count: int) -> tuple[Run, Run]:
        data = PerfData(cifar_images(count), _VOTES_PER_ITEM, val_fraction=0.05)
        data.setup()

        def side(method: Callable[..., CrowdModule], **method_args: Any) -> Run:
            def run() -> CrowdModule:
                torch.manual_seed(0)
                made = method(data.info, backbone="small_cnn", lr=0.01, schedule="constant", **method_args)
                train(made, data, TrainArgs(max_epochs=_EPOCHS), lambda done, total: None)
                return made

            return run

        ours = side(LabelDelivery, delivery=delivery, momentum=0.0, weight_decay=0.0)
        return ours, side(CrossEntropy)

    return prepare


# --- the loader against torchvision's -------------------------------------------------------------


class _PillowCifar10(CIFAR10):
    """torchvision's CIFAR-10 over images in memory; items are made by its own ``__getitem__``."""

    def __init__(self, images: Tensor, transform: Callable[[Image.Image], Tensor]) -> None:
        self.data = images.permute(0, 2, 3, 1).contiguous().numpy()
        self.targets = [0] * len(images)
        self.transform, self.target_transform = transform, None


def _loaders(count: int, policy: str, pillow: list[Any]) -> tuple[Run, Run]:
    images = cifar_images(count)
    data = PerfData(images)
    data.setup()
    data.request({"x": policy}, {})
    transform = transforms.Compose([*pillow, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    pictures = _PillowCifar10(data.data.x[data.train_items], transform)
    reference: DataLoader[Any] = DataLoader(pictures, 128, shuffle=True, num_workers=2)
    return lambda: _exhaust(data.train_dataloader()), lambda: _exhaust(reference)


def _exhaust(batches: Any) -> None:
    for _ in batches:
        pass


def _crop_flip_loaders(count: int) -> tuple[Run, Run]:
    crop = transforms.RandomCrop(32, padding=4, padding_mode="reflect")
    return _loaders(count, "crop_flip", [crop, transforms.RandomHorizontalFlip()])


def _strong_loaders(count: int) -> tuple[Run, Run]:
    cut = transforms.RandomResizedCrop(32, (0.5, 1.0), interpolation=transforms.InterpolationMode.BICUBIC)
    return _loaders(count, "resized_crop_randaugment", [cut, transforms.RandAugment(2, 9)])


MEASUREMENTS: dict[str, Measurement] = {
    "trainer": Measurement(
        "the runner's Trainer against a bare PyTorch loop (small_cnn, batches of 128, with validation)",
        limit=1.10,
        at_most=True,
        prepare=_trainer,
        items=8_000,
        epochs=_EPOCHS,
    ),
    "loader": Measurement(
        "the loader against torchvision's CIFAR10 with Pillow and 2 workers (crop, flip)",
        limit=3.0,
        at_most=False,
        prepare=_crop_flip_loaders,
        items=50_000,
    ),
    "loader-randaugment": Measurement(
        "the loader against torchvision's CIFAR10 with Pillow and 2 workers (RandomResizedCrop, RandAugment)",
        limit=3.0,
        at_most=False,
        prepare=_strong_loaders,
        items=20_000,
    ),
    "em": Measurement(
        "EM's forward and backward over 16 episodes at once against a loop over them (items: of support sets)",
        limit=8.0,
        at_most=False,
        prepare=em,
        items=32_000,
    ),
    "dawid-skene": Measurement(
        "Dawid-Skene on CIFAR-10N's three annotations an image against crowd-kit's, 10 steps each",
        limit=6.0,
        at_most=False,
        prepare=dawid_skene_whole,
        items=50_000,
    ),
    "dawid-skene-tasks": Measurement(
        "Dawid-Skene on few-shot tasks at once against crowd-kit's in a loop (10 steps; items: tasks of 20 x 7 labels)",
        limit=50.0,
        at_most=False,
        prepare=dawid_skene_tasks,
        items=10_000,
        reference_items=LOOPED_TASKS,
    ),
    "dic": Measurement(
        "DIC over 30 annotators and 16 classes against a loop over pairs with scikit-learn",
        limit=100.0,
        at_most=False,
        prepare=dic,
        items=1_280,
        own_runs=200,
    ),
    **{
        f"delivery-{name}": Measurement(
            f"label_delivery ({name}) against cross_entropy (small_cnn, 51 votes an item, the same loader and Trainer)",
            limit=1.02,
            at_most=True,
            prepare=_delivery(name),
            items=8_000,
            epochs=_EPOCHS,
            rounds=7,
            fastest=True,
        )
        for name in ("soft", "sls", "multipass")
    },
}


# --- measuring ------------------------------------------------------------------------------------


def measure(name: str, measurement: Measurement, rounds: int | None = None, items: int | None = None) -> Outcome:
    """Runs both sides ``rounds`` times in turn, after one short run of each to warm up.

    Args:
        name: key of the measurement.
        measurement: what to run.
        rounds: pairs of runs; the order within a pair alternates. None: the measurement's own number.
        items: items an epoch; None: the measurement's own number.
    """
    count = items or measurement.items
    for side in measurement.prepare(min(count, 1_000)):
        side()
    sides = measurement.prepare(count)
    elapsed: tuple[list[float], list[float]] = ([], [])
    cpu: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds or measurement.rounds):
        for place in (0, 1) if number % 2 == 0 else (1, 0):
            runs = 1 if place else measurement.own_runs
            started, cpu_started = time.perf_counter(), _cpu_seconds()
            for _ in range(runs):
                sides[place]()
            # of the work that the seconds are to stand for
            share = min(1.0, (measurement.reference_items or count) / count) if place else float(runs)
            elapsed[place].append((time.perf_counter() - started) / share)
            cpu[place].append((_cpu_seconds() - cpu_started) / share)
    ratios, ratio = _ratios(elapsed, measurement.at_most), _ratio(elapsed, measurement)
    met = ratio <= measurement.limit if measurement.at_most else ratio >= measurement.limit
    return Outcome(
        name=name,
        title=measurement.title,
        items=count,
        epochs=measurement.epochs,
        ours_seconds=elapsed[0],
        reference_seconds=elapsed[1],
        ratios=ratios,
        ratio=ratio,
        cpu_ratio=_ratio(cpu, measurement),
        limit=measurement.limit,
        at_most=measurement.at_most,
        met=met,
    )


def _cpu_seconds() -> float:
    """CPU time of this process and of the workers that it has waited for."""
    # of this process in nanoseconds; os.times() counts in hundredths, too coarse for all but the workers
    return time.process_time() + sum(os.times()[2:4])


def _ratio(seconds: tuple[list[float], list[float]], measurement: Measurement) -> float:
    if measurement.fastest:
        seconds = ([min(seconds[0])], [min(seconds[1])])
    return statistics.median(_ratios(seconds, measurement.at_most))


def _ratios(seconds: tuple[list[float], list[float]], at_most: bool) -> list[float]:
    tick = 1e-6  # no time at all must not be divided by
    pairs = zip(*seconds, strict=True)
    return [own / max(other, tick) if at_most else other / max(own, tick) for own, other in pairs]


def describe(outcome: Outcome) -> str:
    """A few plain lines for people."""
    kind, bound = ("slow", "at most") if outcome.at_most else ("fast", "at least")
    own, other = (
        statistics.median(seconds) / outcome.epochs for seconds in (outcome.ours_seconds, outcome.reference_seconds)
    )
    spread = f"{min(outcome.ratios):.2f} to {max(outcome.ratios):.2f} over {len(outcome.ratios)} rounds"
    return (
        f"{outcome.name}: {outcome.title}\n"
        f"  ours {own:.3g} s, reference {other:.3g} s an epoch of {outcome.items} items (medians)\n"
        f"  {outcome.ratio:.2f} times as {kind} ({spread}); target: {bound} {outcome.limit:.2f}, "
        f"{'met' if outcome.met else 'missed'}\n"
        f"  {outcome.cpu_ratio:.2f} times by CPU time, workers included"
    )


def surroundings() -> dict[str, Any]:
    """Hardware, threads, versions and the load of the machine before the measurement."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "hardware": hardware(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "load_average": load,
    }


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmark.perf", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MEASUREMENTS)}; default: all")
    parser.add_argument("--rounds", type=int, help="pairs of runs (default: the measurement's own)")
    parser.add_argument("--items", type=int, help="items an epoch (default: the measurement's own)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of this process (default 1)")
    parser.add_argument("--json", type=Path, help="also write the outcome to this file")
    arguments = parser.parse_args(words)
    unknown = sorted(set(arguments.names) - set(MEASUREMENTS))
    if unknown:
        parser.error(f"unknown measurement {unknown[0]!r}; there are: {', '.join(MEASUREMENTS)}")
    if (arguments.rounds is not None and arguments.rounds < 1) or arguments.threads < 1:
        parser.error("--rounds and --threads must be at least 1")
    return arguments


def main(words: list[str] | None = None) -> int:
    """Measures, prints, writes; returns 0 also where a target is missed, because machines differ."""
    arguments = _arguments(words)
    torch.set_num_threads(arguments.threads)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    # the runner trains so; the bare loop must do the same work
    torch.use_deterministic_algorithms(True)
    around = surroundings()
    print(", ".join(f"{key} {value}" for key, value in around.items() if value is not None), flush=True)
    outcomes = []
    for name in arguments.names or MEASUREMENTS:
        outcomes.append(measure(name, MEASUREMENTS[name], arguments.rounds, arguments.items))
        print(describe(outcomes[-1]), flush=True)
    if arguments.json:
        report = {**around, "measurements": [asdict(outcome) for outcome in outcomes]}
        temporary = arguments.json.with_name(f"{arguments.json.name}.part")
        temporary.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
