"""Known faults of this kind of software that concern a whole cell: the test set, uneven batches, memory."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor

from benchmark.evaluate import consensus, tendency
from benchmark.metrics import ECE
from benchmark.resolve import resolve
from benchmark.run import run_cell
from benchmark.spec import Cell
from datamodules.base import CrowdDataModule
from datamodules.digits import Digits
from datamodules.loader import BatchLoader
from models.base import CrowdModule

FAST: dict[str, dict[str, Any]] = {
    "cross_entropy": {"backbone": "small_cnn"},
    "annotator_transformer": {
        "backbone": "small_cnn",
        "setting": "as_released",
        "augmentation": "standard",
        "weak_augmentation": "weak_noflip",
        "strong_augmentation": "strong_noflip",
    },
}


# --- check 13: which set selects the model ----------------------------------------------------------


@pytest.mark.parametrize("selection", ["last", "best_noisy_validation"])
@pytest.mark.parametrize("method", sorted(FAST))
def test_the_test_set_is_read_once_and_only_after_training(
    method: str, selection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # cifar-10-100n#2, ELR#1: test accuracy was tracked each epoch and the best one reported
    events: list[str] = []
    fit, source, iterate = L.Trainer.fit, CrowdDataModule._test_source, BatchLoader.__iter__
    test_sources: list[Any] = []

    def noted_fit(self: L.Trainer, *args: Any, **kwargs: Any) -> None:
        fit(self, *args, **kwargs)
        events.append("trained")

    def noted_source(self: CrowdDataModule) -> Any:
        test_sources.append(source(self))
        return test_sources[-1]

    def noted_iterate(self: BatchLoader) -> Iterator[dict[str, Any]]:
        if any(self.source is known for known in test_sources):
            events.append("test set read")
        return iterate(self)

    monkeypatch.setattr(L.Trainer, "fit", noted_fit)
    monkeypatch.setattr(CrowdDataModule, "_test_source", noted_source)
    monkeypatch.setattr(BatchLoader, "__iter__", noted_iterate)
    cell = Cell(
        method=method,
        method_args=FAST[method],
        dataset="digits",
        regime="worst",
        data_args={"n_train": 80},
        seed=0,
        train={"max_epochs": 2, "selection": selection},  # type: ignore[arg-type]
        profile="demo",
    )
    result = run_cell(resolve(cell)).result
    assert result.metrics["test_accuracy"] is not None
    assert events == ["trained", "test set read"]


# --- checks 19 and 20: uneven batches and ranks -----------------------------------------------------


class Shifted(CrowdModule):
    """Predicts from the first pixel, so that right and wrong do not fall evenly on batches."""

    def predict_consensus(self, x: Tensor) -> Tensor:
        scores = torch.arange(10.0).sub(10 * x.flatten(1).mean(1, keepdim=True)).abs().neg()
        return scores.log_softmax(-1)


def test_accuracy_does_not_depend_on_how_the_items_fall_into_batches() -> None:
    # pytorch-lightning#2924: a small last batch was weighted like a full one
    found = []
    for size in (540, 8, 7):
        data = Digits("aggre", eval_batch_size=size)
        data.setup()
        method = Shifted(data.info).eval()
        found.append({**consensus.measure(method, data).metrics, **tendency.measure(method, data).metrics})
    assert len(data.data.test_x) % 8 and len(data.val_items) % 8
    for name, value in found[0].items():
        assert [one[name] for one in found] == pytest.approx([value] * 3, abs=1e-12), name
    predicted = Shifted(data.info).predict_consensus(torch.cat([batch["x"] for batch in data.test_dataloader()]))
    truth = data.data.test_labels
    assert truth is not None
    assert found[0]["test_accuracy"] == pytest.approx(float((predicted.argmax(1) == truth).double().mean()), abs=1e-7)


def _of_rank(rank: int, folder: str, probabilities: Tensor, target: Tensor, answers: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=4)
    metric = ECE(n_bins=3, binning="equal_mass")
    metric.update(probabilities[rank::4], target[rank::4])
    answers.put(float(metric.compute()))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks processes that share torch's state")
def test_ten_items_on_four_ranks_are_measured_like_ten_on_one(tmp_path: Path) -> None:
    # pytorch-lightning#7929: a distributed sampler repeats items until all ranks have as many. Cells train on one
    # device and no loader here is sampled, so only the metrics can meet ranks: of 3, 3, 2 and 2 items.
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.randn(10, 4, generator=generator).softmax(-1)
    target = torch.randint(4, (10,), generator=generator)
    alone = ECE(n_bins=3, binning="equal_mass")
    alone.update(probabilities, target)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    ranks = [
        context.Process(target=_of_rank, args=(rank, str(tmp_path), probabilities, target, answers))
        for rank in range(4)
    ]
    for process in ranks:
        process.start()
    found = [answers.get(timeout=60) for _ in ranks]
    for process in ranks:
        process.join(timeout=60)
    assert found == pytest.approx([float(alone.compute())] * 4, abs=1e-7)


# --- memory ----------------------------------------------------------------------------------------

_CELL = """
import json, sys
from benchmark.resolve import resolve
from benchmark.run import run_cell
from benchmark.spec import Cell
trained = run_cell(resolve(Cell.model_validate_json(sys.argv[1])))
print(json.dumps([trained.result.provenance["peak_memory_mib"], len(trained.datamodule.data.x)]))
"""


def test_a_cell_on_all_of_cifar10n_stays_far_below_three_gib(real_data: Path) -> None:
    # all images are loaded and all test images predicted; how many of them are trained on moves no peak
    cell = {
        "method": "annotator_transformer",
        "method_args": {"backbone": "small_cnn", "setting": "as_released", "estimation_annotators": 16},
        "dataset": "cifar10n",
        "regime": "aggre",
        "data_args": {"n_train": 600},
        "seed": 0,
        "train": {"max_epochs": 1},
        "profile": "cpu",
    }
    done = subprocess.run([sys.executable, "-c", _CELL, json.dumps(cell)], capture_output=True, text=True, check=True)
    peak, n_items = json.loads(done.stdout.splitlines()[-1])
    assert n_items == 50_000
    assert 200 < peak < 2048
