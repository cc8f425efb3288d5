"""Few-shot tasks of miniImageNet: 100 ImageNet classes, 600 images each, at 84x84.

The images may not be passed on, so there is nothing to download; they are read, under ``mini_imagenet`` in the data
folder, from either of

- parquet, as the hub's library writes it: ``train.parquet``, ``validation.parquet`` and ``test.parquet`` with
  ``image.bytes`` and ``label``;
- folders of class folders: ``train/<class>/*``, ``val/<class>/*`` and ``test/<class>/*``.

learn2learn's copy is a Python pickle and is not read: nothing is unpickled here. Two splits:

- ``ravi``: 64 / 16 / 20 classes, as the three parts of the files are (Ravi and Larochelle, ICLR 2017);
- ``paper``: 70 / 10 / 20, as Kumagai et al. (arXiv 2506.10259) count them. Which classes they took is not known: here
  all classes are dealt at random, the same whatever the seeds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from datamodules.cifar10_images import DECODER, Arrays, cached
from datamodules.digits_episodes import SIMULATED_NOTE
from datamodules.episodes import EpisodicData, EpisodicDataModule
from datamodules.few_shot_images import IMAGENET_MEAN, IMAGENET_STD, RESIZER, decoded, fixed_split, pool_of
from datamodules.few_shot_regimes import SIMULATED
from datamodules.files import DataDamaged, DataNotFound, data_root, sha256_of
from datamodules.names import unknown_name

Split = Literal["paper", "ravi"]
#: split -> classes of each part
SPLITS: Mapping[str, tuple[int, int, int]] = {"paper": (70, 10, 20), "ravi": (64, 16, 20)}
#: accepted names of the parts
_PARTS = (("train",), ("val", "validation"), ("test",))
_ENDINGS = (".jpg", ".jpeg", ".png")


class MiniImageNet(EpisodicDataModule):
    """Few-shot tasks of miniImageNet.

    Args:
        regime: who annotates target tasks.
        split: ``paper`` or ``ravi``, see :mod:`datamodules.mini_imagenet`.
        size: images are resized to ``size`` x ``size`` pixels.
        shared: arguments of :class:`EpisodicDataModule`.

    Raises:
        UnknownName: for an unknown regime.
        ValueError: for an unknown split or a size below 1.
    """

    name = "mini_imagenet"
    regimes: ClassVar[Mapping[str, str]] = SIMULATED
    #: split -> classes of each part; a generated twin has its own
    splits: ClassVar[Mapping[str, tuple[int, int, int]]] = SPLITS

    def __init__(self, regime: str, *, split: Split = "paper", size: int = 84, **shared: Any) -> None:
        super().__init__(regime, **shared)
        if split not in self.splits:
            raise ValueError(unknown_name("split", split, self.splits, where=f"data set {self.name!r}"))
        if size < 1:
            raise ValueError(f"size is {size}; images need at least 1 pixel")
        self.split = split
        self.size = size

    def load(self) -> EpisodicData:
        """Reads all images (decoded once, then cached).

        Raises:
            DataNotFound: a part is not there; says where it was looked for.
            DataDamaged: a part cannot be read, or has another number of classes than the split.
        """
        read = [_read_part(path, self.size) for path in part_paths(self.root)]
        names, places = np.unique(np.concatenate([labels for _, labels in read]), return_inverse=True)
        images, classes = torch.cat([found for found, _ in read]), torch.from_numpy(places)
        parts = self._parts(classes, [len(labels) for _, labels in read])
        train, val, test = (pool_of(images, classes, part) for part in parts)
        return EpisodicData(
            train,
            val,
            test,
            class_names=tuple(names.tolist()),
            notes=(SIMULATED_NOTE,),
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
        )

    def digest(self) -> str:
        """SHA-256 (hex) of the files' digests, the decoder, the split and the size. Decodes no image."""
        files = "+".join(part_digest(path) for path in part_paths(self.root))
        text = f"{files};decoder {DECODER}.{RESIZER};split {self.split};size {self.size}"
        return hashlib.sha256(text.encode()).hexdigest()

    # --- within -------------------------------------------------------------------------------

    def _parts(self, classes: Tensor, lengths: list[int]) -> list[Tensor]:
        """Class ids of each part under the split."""
        expected = self.splits[self.split]
        laid_out = [part.unique() for part in classes.split(lengths)]
        found = tuple(len(part) for part in laid_out)
        n_classes = len(classes.unique())
        if self.split == "ravi" and (found != expected or n_classes != sum(expected)):
            raise DataDamaged(
                f"{self._folder}: the parts have {found} classes, {n_classes} in all; the split 'ravi' has {expected}, "
                "none of them in two parts. Remedy: put the parts of Ravi and Larochelle's split there, or take "
                "split='paper'"
            )
        if n_classes != sum(expected):
            raise DataDamaged(f"{self._folder}: there are {n_classes} classes; miniImageNet has {sum(expected)}")
        return laid_out if self.split == "ravi" else fixed_split(classes.unique(), expected)

    @property
    def _folder(self) -> Path:
        return data_root(self.root) / "mini_imagenet"


def part_paths(root: str | Path | None) -> list[Path]:
    """Parquet file or folder of each part.

    Raises:
        DataNotFound: one is not there; lists accepted names.
    """
    folder = data_root(root) / "mini_imagenet"
    found = []
    for names in _PARTS:
        choices = [folder / f"{name}.parquet" for name in names] + [folder / name for name in names]
        path = next((choice for choice in choices if choice.exists()), None)
        if path is None:
            raise DataNotFound(
                f"mini_imagenet: no {names[0]} part found. Looked for: {', '.join(map(str, choices))} (a file in "
                "parquet with columns image and label, or a folder of class folders). Its images may not be passed on: "
                "make it from ImageNet, or use tiny_imagenet_fewshot, which stands in for it"
            )
        found.append(path)
    return found


def part_digest(path: Path) -> str:
    """SHA-256 (hex) of a parquet file, or of the names and bytes of a folder's images.

    A folder is read once per process for the same class folders and times of their change: a table asks for each of
    its cells.
    """
    if path.is_file():
        return sha256_of(path)
    return _folder_digest(path, tuple((at.name, at.stat().st_mtime_ns) for at in sorted(path.iterdir())))


@lru_cache(maxsize=8)
def _folder_digest(path: Path, state: tuple[tuple[str, int], ...]) -> str:
    total = hashlib.sha256()
    for file in _image_files(path):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        total.update(f"{file.parent.name}/{file.name} {content}\n".encode())
    return total.hexdigest()


def _read_part(path: Path, size: int) -> tuple[Tensor, np.ndarray]:
    """Images ``[N, 3, size, size]`` uint8 and the names ``[N]`` of their classes."""
    images, labels = cached(part_digest(path), f"mini{size}-{RESIZER}", lambda: _decode_part(path, size))
    return torch.from_numpy(images), labels


def _decode_part(path: Path, size: int) -> Arrays:
    try:
        coded, labels = _from_folder(path) if path.is_dir() else _from_parquet(path)
        images = np.empty((len(coded), 3, size, size), dtype=np.uint8)
        for row, image in enumerate(coded):
            images[row] = decoded(image if isinstance(image, bytes) else image.read_bytes(), size)
    except Exception as error:
        raise DataDamaged(
            f"{path} cannot be read as images and classes ({type(error).__name__}: {error}). Remedy: copy it again"
        ) from None
    return images, np.array(labels, dtype=np.str_)


def _from_folder(path: Path) -> tuple[Sequence[Path | bytes], list[str]]:
    files = _image_files(path)
    return files, [file.parent.name for file in files]


def _image_files(path: Path) -> list[Path]:
    return [file for file in sorted(path.glob("*/*")) if file.suffix.lower() in _ENDINGS]


def _from_parquet(path: Path) -> tuple[Sequence[Path | bytes], list[str]]:
    import json

    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=["image", "label"])
    labels = table["label"].to_pylist()
    noted = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
    names = noted.get("info", {}).get("features", {}).get("label", {}).get("names")
    coded = [image["bytes"] for image in table["image"].to_pylist()]
    return coded, [str(names[label]) if names and isinstance(label, int) else str(label) for label in labels]
