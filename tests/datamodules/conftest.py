"""A tiny copy of CIFAR-10N's files in the published formats, so that its tests run without any download."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from datamodules.cifar10n import RANDOM, Cifar10N
from datamodules.human_labels import Published

N_TRAIN, N_TEST, N_WORKERS = 200, 40, 12


@dataclass(frozen=True)
class Twin:
    """The files, the arrays that they hold, and a data module that expects them."""

    root: Path
    labels: dict[str, np.ndarray]
    pixels: np.ndarray
    workers: np.ndarray
    module: type[Cifar10N]

    def write_images(self, split: str, labels: np.ndarray | None = None, kind: str = "PNG") -> Path:
        """The parquet file of a split, images coded as ``kind``."""
        pixels = self.pixels[:N_TRAIN] if split == "train" else self.pixels[N_TRAIN:]
        own = self.labels["clean_label"] if split == "train" else np.arange(N_TEST) % 10
        rows = [{"bytes": _coded(image, kind), "path": None} for image in pixels]
        image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        schema = pa.schema([("img", image), ("label", pa.int64())])
        path = self.root / "cifar10" / f"{split}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"img": rows, "label": own if labels is None else labels}, schema=schema), path)
        return path

    def write_labels(self, **changed: Any) -> Path:
        """The label file; keywords replace or add entries, None leaves one out."""
        path = self.root / "cifar10n" / "CIFAR-10_human.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        entries = {**self.labels, **changed}
        torch.save({key: value for key, value in entries.items() if value is not None}, path)
        return path

    def write_workers(self, n_rows: int | None = None) -> Path:
        """The table of workers, or its first rows."""
        path = self.root / "cifar10n" / "side_info_cifar10N.csv"
        columns = [f"{what}{slot}{end}" for slot in (1, 2, 3) for what, end in _COLUMNS]
        with path.open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["Image-batch", *columns])
            for row, ids in enumerate(self.workers[:n_rows]):
                writer.writerow([f"{10 * row}--{10 * row + 9}", *(cell for worker in ids for cell in (worker, 60))])
        return path

    def edited(self, key: str, item: int, label: int | None = None) -> np.ndarray:
        """A copy of one label array in which one label is another one."""
        array = self.labels[key].copy()
        array[item] = (array[item] + 1) % 10 if label is None else label
        return array


_COLUMNS = (("Worker", "-id"), ("Work-time-in-seconds-", ""))


def _coded(image: np.ndarray, kind: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0)).save(stream, kind)
    return stream.getvalue()


def _random_labels(random: np.random.Generator) -> dict[str, np.ndarray]:
    clean = np.arange(N_TRAIN) % 10
    noisy = np.stack([np.where(random.random(N_TRAIN) < 0.2, random.integers(0, 10, N_TRAIN), clean) for _ in range(3)])
    wrong = noisy != clean
    first_wrong = noisy[wrong.argmax(0), np.arange(N_TRAIN)]
    votes = np.stack([np.bincount(column, minlength=10) for column in noisy.T])
    return {
        "clean_label": clean,
        "aggre_label": votes.argmax(1),
        "worse_label": np.where(wrong.any(0), first_wrong, clean),
        **dict(zip(RANDOM, noisy, strict=True)),
    }


def _published(labels: Mapping[str, np.ndarray]) -> dict[str, Published]:
    clean = labels["clean_label"]
    return {
        key: Published(float((values != clean).mean()), tuple(np.bincount(values, minlength=10)), 0.011, 2)
        for key, values in labels.items()
    }


@pytest.fixture
def twin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Twin:
    """A fresh twin with a cache of its own."""
    monkeypatch.setenv("ANNOBENCH_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    labels = _random_labels(random)
    pixels = random.integers(0, 256, (N_TRAIN + N_TEST, 3, 32, 32), dtype=np.uint8)
    # every worker occurs, and none twice in a row
    workers = (np.arange(N_TRAIN // 10)[:, None] + np.array([0, 4, 8])) % N_WORKERS

    class TwinCifar10N(Cifar10N):
        published: ClassVar[Mapping[str, Published]] = _published(labels)

    made = Twin(tmp_path / "data", labels, pixels, workers, TwinCifar10N)
    for split in ("train", "test"):
        made.write_images(split)
    made.write_labels()
    made.write_workers()
    return made
