"""Few-shot tasks of Tiny-ImageNet: the stand-in where miniImageNet cannot be had, and shown as such.

100 of its 200 classes, 200 training images of each at 64x64, in 64 / 16 / 20 classes to learn from, for validation and
to be tested on. Classes that miniImageNet has too are in the same part as in Ravi and Larochelle's split.

>>> TinyImageNetFewShot("hammer-spammer").info  # doctest: +SKIP
DataInfo(n_classes=4, n_annotators=7, input_shape=(3, 64, 64))
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from datamodules.cifar10_images import DECODER
from datamodules.digits_episodes import SIMULATED_NOTE
from datamodules.episodes import EpisodicData, EpisodicDataModule, Part
from datamodules.few_shot_images import IMAGENET_MEAN, IMAGENET_STD, RESIZER, parquet_images, pool_of
from datamodules.few_shot_regimes import SIMULATED
from datamodules.files import describe_damage, locate, sha256_of

STAND_IN_NOTE = "Tiny-ImageNet (100 classes at 64x64) stands in for miniImageNet; numbers are not comparable with its"


class TinyImageNetFewShot(EpisodicDataModule):
    """Few-shot tasks of Tiny-ImageNet.

    Args:
        regime: who annotates target tasks.
        size: images are resized to ``size`` x ``size`` pixels.
        shared: arguments of :class:`EpisodicDataModule`.
    """

    name = "tiny_imagenet_fewshot"
    regimes: ClassVar[Mapping[str, str]] = SIMULATED
    #: classes of each part
    sizes: ClassVar[Mapping[Part, int]] = {"train": 64, "val": 16, "test": 20}

    def __init__(self, regime: str, *, size: int = 64, **shared: Any) -> None:
        super().__init__(regime, **shared)
        if size < 1:
            raise ValueError(f"size is {size}; images need at least 1 pixel")
        self.size = size

    def load(self) -> EpisodicData:
        """Reads the file (decoded once, then cached).

        Raises:
            DataNotFound: it is not there; says where it was looked for.
            DataDamaged: it is empty, truncated or has other classes than it should.
        """
        path = locate(self.name, "images", self.root).paths[0]
        images, classes = parquet_images(path, self.name, self.size)
        parts = few_shot_parts(path, self.name, "images", self.sizes)
        train, val, test = (pool_of(images, classes, part) for part in parts.values())
        return EpisodicData(
            train,
            val,
            test,
            notes=(STAND_IN_NOTE, SIMULATED_NOTE),
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
        )

    def digest(self) -> str:
        """SHA-256 (hex) of the file's digest and the decoder. Reads no image."""
        path = locate(self.name, "images", self.root).paths[0]
        text = f"{sha256_of(path)};decoder {DECODER}.{RESIZER};size {self.size}"
        return hashlib.sha256(text.encode()).hexdigest()


def few_shot_parts(path: Path, dataset: str, role: str, sizes: Mapping[Part, int]) -> dict[Part, Tensor]:
    """Class ids of each part, ascending, as the column ``fewshot_split`` of ``path`` says.

    Raises:
        DataDamaged: there is no such column, a class is in two parts, or a part has another number of classes.
    """
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, columns=["label", "fewshot_split"])
        pairs = set(zip(table["label"].to_pylist(), table["fewshot_split"].to_pylist(), strict=True))
    except Exception as error:
        what = f"cannot be read as a few-shot split ({type(error).__name__}: {error})"
        raise describe_damage(dataset, role, path, what) from None
    parts = {part: sorted(label for label, of in pairs if of == part) for part in sizes}
    found = {part: len(labels) for part, labels in parts.items()}
    members = [label for labels in parts.values() for label in labels]
    if found != dict(sizes) or len(set(members)) != len(members):
        raise describe_damage(dataset, role, path, f"has classes {found}; it should have {dict(sizes)}, no class twice")
    return {part: torch.tensor(labels, dtype=torch.int64) for part, labels in parts.items()}
