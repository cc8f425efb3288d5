"""A user's Trainer with two processes (DDP over gloo on the CPU) ends with the same numbers as with one.

Every process is given every batch, so nothing is counted twice or left out; a metric whose processes see different
items is synchronised. The runner itself gives each cell one device.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

_SCRIPT = """
import json, logging, sys, warnings
from pathlib import Path
import lightning as L
import torch
from benchmark.metrics import DIC
from datamodules.cue_sim import CueSim
from models.annotator_heads.module import AnnotatorHeads
from models.qumatl.module import QuMATL

SMALL = dict(init="random", hidden_size=16, layers=2, heads=2, feed_forward=16, lr=0.002)


class Scored(L.LightningModule):
    # each process scores its own share of every test batch: 192 items in batches of 7, so shares are uneven
    def __init__(self, method):
        super().__init__()
        self.method, self.dic = method, DIC(10, 16)

    def test_step(self, batch, batch_idx):
        own = slice(self.global_rank, None, self.trainer.world_size)
        predicted = self.method.predict_annotators(batch["x"][own]).argmax(-1)
        self.dic.update(predicted, batch["labels"][own])
        self.log("dic", self.dic)


class SameDropout(L.Callback):
    # Lightning seeds anew when it starts processes, and only then
    def on_train_start(self, trainer, pl_module):
        torch.manual_seed(1)


def trainer(n, **more):
    strategy = "ddp" if n > 1 else "auto"
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    return L.Trainer(accelerator="cpu", devices=n, strategy=strategy, **quiet, **more)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    n, out = int(sys.argv[1]), Path(sys.argv[2])
    found = {}
    for name, make in {
        "heads": lambda info: AnnotatorHeads(info, lr=0.01),
        "qumatl": lambda info: QuMATL(info, **SMALL),
    }.items():
        L.seed_everything(0)
        data = CueSim("full", batch_size=200, eval_batch_size=7)
        method = make(data.info)
        data.request(method.train_views(), method.unlabeled_views())
        training = trainer(n, max_epochs=2, callbacks=[SameDropout()])
        training.fit(method, datamodule=data)
        accuracy = float(training.callback_metrics["val_accuracy"])
        scored = trainer(n).test(Scored(method.eval()), data.test_dataloader(), verbose=False)
        found[name] = {"val_accuracy": accuracy, "dic": scored[0]["dic"]}
        found[name]["weights"] = [float(each.double().sum()) for each in method.state_dict().values()]
    if training.is_global_zero:
        out.write_text(json.dumps({"processes": training.world_size, **found}))
"""


@pytest.fixture(scope="module")
def by_processes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """What one process found, and what two did."""
    folder = tmp_path_factory.mktemp("ddp")
    script = folder / "train.py"
    script.write_text(_SCRIPT)
    found = {}
    for n in (1, 2):
        out = folder / f"{n}.json"
        done = subprocess.run([sys.executable, str(script), str(n), str(out)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        found[n] = json.loads(out.read_text())
        assert found[n]["processes"] == n
    return found


@pytest.mark.parametrize("name", ["heads", "qumatl"])
def test_two_processes_end_with_the_numbers_of_one(name: str, by_processes: dict[int, dict[str, Any]]) -> None:
    one, two = by_processes[1][name], by_processes[2][name]
    assert two["val_accuracy"] == pytest.approx(one["val_accuracy"], abs=1e-6)
    assert two["dic"] == pytest.approx(one["dic"], abs=1e-6)
    assert torch.allclose(torch.tensor(two["weights"]), torch.tensor(one["weights"]), atol=1e-4)
