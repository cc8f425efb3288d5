"""A plugin made on the spot: methods that fail, die or take their time, and a small data set to run them on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmark import registry
from benchmark.spec import TableSpec

PLUGIN = """
METHODS = "not a class"
import os, signal, time
import torch
from datamodules.annotations import Annotations
from datamodules.base import CrowdData, CrowdDataModule
from datamodules.files import DataNotFound
from models.base import CrowdModule


class Blobs(CrowdDataModule):
    name = "blobs"
    regimes = {"noisy": "labels with noise", "other": "the same with more noise"}
    provides = frozenset({"annotator_ids"})
    embedded = True
    standard_augmentation = "none"
    audit_regime = "noisy"

    def __init__(self, regime, *, shift: float = 0.0, changed_label: bool = False, **kwargs):
        super().__init__(regime, **kwargs)
        self.shift, self.changed_label = shift, changed_label

    def load(self):
        generator = torch.Generator().manual_seed(self.annotation_seed)
        truth = torch.arange(121) % 3
        x = torch.randn(121, 4, generator=generator) + truth[:, None] + self.shift
        wrong = torch.rand(121, generator=generator) < (0.2 if self.regime == "noisy" else 0.4)
        labels = torch.where(wrong, (truth + 1) % 3, truth)
        if self.changed_label:
            labels[0] = (labels[0] + 1) % 3
        noted = Annotations(torch.arange(121), torch.arange(121) % 5, labels, 121, 5, 3)
        return CrowdData(x, noted, truth, x + 0.01, truth)


class Absent(Blobs):
    name = "absent"

    def load(self):
        raise DataNotFound("absent: no images found")


class Linear(CrowdModule):
    def __init__(self, data_info, *, learning_rate: float = 0.1):
        super().__init__(data_info)
        self.learning_rate = learning_rate
        self.layer = torch.nn.Linear(data_info.input_shape[0], data_info.n_classes)

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self.layer(batch["x"]), batch["labels"][:, 0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.learning_rate)

    def predict_consensus(self, x):
        return self.layer(x).log_softmax(-1)


class LinearNext(Linear):
    version = "2"


class Diverging(Linear):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * float("inf")


class Broken(Linear):
    def training_step(self, batch, batch_idx):
        raise RuntimeError("the oven is cold")


class Killed(Linear):
    def training_step(self, batch, batch_idx):
        os.kill(os.getpid(), signal.SIGKILL)


class Quits(Linear):
    def training_step(self, batch, batch_idx):
        raise SystemExit(0)


class Interrupted(Linear):
    def training_step(self, batch, batch_idx):
        signal.raise_signal(signal.SIGINT)
        return super().training_step(batch, batch_idx)


class Slow(Linear):
    def on_train_epoch_start(self):
        time.sleep(0.2)


class NeedsImages(Linear):
    needs = frozenset({"images"})
"""

METHODS = {
    "linear": "Linear",
    "linear_next": "LinearNext",
    "diverging": "Diverging",
    "broken": "Broken",
    "killed": "Killed",
    "slow": "Slow",
    "quits": "Quits",
    "interrupted": "Interrupted",
    "no_class": "METHODS",
    "wrong_class": "Blobs",
    "needs_images": "NeedsImages",
}


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder of an installed package ``bench_plugin``; worker processes find it too, by the search path."""
    folder = tmp_path / "site"
    metadata = folder / "bench_plugin-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "bench_plugin.py").write_text(PLUGIN)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: bench-plugin\nVersion: 1.0\n")
    methods = "\n".join(f"{name} = bench_plugin:{cls}" for name, cls in METHODS.items())
    (metadata / "entry_points.txt").write_text(
        f"[annobench.methods]\n{methods}\n\n[annobench.datamodules]\nblobs = bench_plugin:Blobs\n"
        "absent = bench_plugin:Absent\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    _forget()
    yield folder
    sys.modules.pop("bench_plugin", None)
    _forget()


def _forget() -> None:
    for cached in (registry.methods, registry.datasets, registry.tables):
        cached.cache_clear()


def tiny_spec(*methods: str, columns: tuple[str, ...] = ("noisy",), **changes: object) -> TableSpec:
    """A table on ``blobs`` with a row for each of ``methods``."""
    document = {
        "table": "tiny/table1",
        "title": "A tiny table",
        "paper": {"key": "tiny", "title": "Tiny", "authors": "Nobody", "year": 2026, "where": "nowhere"},
        "metrics": [{"name": "test_accuracy", "label": "Test"}],
        "rows": [{"name": method, "label": method, "method": method} for method in methods],
        "columns": [{"name": regime, "label": regime, "regime": regime} for regime in columns],
        "profiles": {"demo": {"dataset": "blobs", "seeds": 2, "train": {"max_epochs": 2}, "data": {"batch_size": 12}}},
    }
    return TableSpec.model_validate({**document, **changes})
