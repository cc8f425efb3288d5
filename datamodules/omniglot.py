"""Few-shot tasks of Omniglot: 1,623 handwritten characters of 50 alphabets, 20 drawings of each.

Source: Lake et al., "Human-level concept learning through probabilistic program induction", Science 2015,
https://github.com/brendenlake/omniglot. Images are read from the official archives without unpacking them, resized
to 28x28, ink is 1 and paper 0. Characters are not rotated. Two splits:

- ``paper``: 764 / 100 / 100 characters of the background set, as Kumagai et al. (arXiv 2506.10259) count them.
  Which characters they took is not known: here they are drawn at random, the same whatever the seeds.
- ``standard``: 864 characters of the background set to learn from, 100 for validation, and the evaluation set.

>>> Omniglot("hammer-spammer", split="paper").info  # doctest: +SKIP
DataInfo(n_classes=4, n_annotators=7, input_shape=(1, 28, 28))
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from datamodules.cifar10_images import DECODER, Arrays, cached, guarded
from datamodules.digits_episodes import SIMULATED_NOTE
from datamodules.episodes import EpisodicData, EpisodicDataModule
from datamodules.few_shot_images import RESIZER, decoded, fixed_split, pool_of
from datamodules.few_shot_regimes import SIMULATED
from datamodules.files import locate, sha256_of
from datamodules.names import unknown_name

Split = Literal["paper", "standard"]
SPLITS = ("paper", "standard")


class Omniglot(EpisodicDataModule):
    """Few-shot tasks of Omniglot.

    Args:
        regime: who annotates target tasks.
        split: ``paper`` or ``standard``, see :mod:`datamodules.omniglot`.
        size: images have ``size`` x ``size`` pixels.
        shared: arguments of :class:`EpisodicDataModule`.

    Raises:
        UnknownName: for an unknown regime.
        ValueError: for an unknown split or a size below 1.
    """

    name = "omniglot"
    regimes: ClassVar[Mapping[str, str]] = SIMULATED
    #: characters of the background and of the evaluation archive
    characters: ClassVar[tuple[int, int]] = (964, 659)
    #: drawings of each
    drawings: ClassVar[int] = 20
    #: characters of the parts under the split ``paper``; the last two are also held out of ``standard``'s sources
    paper_split: ClassVar[tuple[int, int, int]] = (764, 100, 100)

    def __init__(self, regime: str, *, split: Split = "paper", size: int = 28, **shared: Any) -> None:
        super().__init__(regime, **shared)
        if split not in SPLITS:
            raise ValueError(unknown_name("split", split, SPLITS, where=f"data set {self.name!r}"))
        if size < 1:
            raise ValueError(f"size is {size}; images need at least 1 pixel")
        self.split = split
        self.size = size

    def load(self) -> EpisodicData:
        """Reads the archives (decoded once, then cached).

        Raises:
            DataNotFound: an archive is not there; says where it was looked for.
            DataDamaged: an archive is empty, truncated or holds other characters than the published one.
        """
        background = self._read(0)
        if self.split == "paper":
            parts = fixed_split(background[1].unique(), self.paper_split)
            train, val, test = (pool_of(*background, part) for part in parts)
        else:
            held_out = self.paper_split[1]
            sizes = (self.characters[0] - held_out, held_out)
            train, val = (pool_of(*background, part) for part in fixed_split(background[1].unique(), sizes))
            images, classes = self._read(1)
            test = pool_of(images, classes, classes.unique())
        return EpisodicData(train, val, test, notes=(SIMULATED_NOTE,))

    def digest(self) -> str:
        """SHA-256 (hex) of the archives' digests, the decoder and the split. Reads no image."""
        paths = locate(self.name, "images", self.root).paths[: 1 if self.split == "paper" else 2]
        files = "+".join(sha256_of(path) for path in paths)
        text = f"{files};decoder {DECODER}.{RESIZER};size {self.size};split {self.split}"
        return hashlib.sha256(text.encode()).hexdigest()

    # --- within -------------------------------------------------------------------------------

    def _read(self, number: int) -> tuple[Tensor, Tensor]:
        """Images ``[N, 1, size, size]`` and classes ``[N]`` of one archive; those of the second follow the first's."""
        path = locate(self.name, "images", self.root).paths[number]

        def read() -> Arrays:
            return read_archive(path, self.size, self.characters[number], self.drawings)

        key = f"omniglot-{self.size}-{RESIZER}"
        images, labels = cached(sha256_of(path), key, lambda: guarded(read, self.name, path, "an archive of Omniglot"))
        offset = self.characters[0] if number else 0
        return torch.from_numpy(images), torch.from_numpy(labels) + offset


def read_archive(path: Path, size: int, n_characters: int, n_drawings: int) -> Arrays:
    """Images ``[N, 1, size, size]`` uint8 (ink 255) and characters ``[N]`` in the order of their folders.

    Raises:
        ValueError: for another number of characters or drawings than expected.
        zipfile.BadZipFile: if it is no whole archive.
    """
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".png") and not _is_hidden(name))
        folders = [name.rsplit("/", 1)[0] for name in names]
        characters, labels, counts = np.unique(folders, return_inverse=True, return_counts=True)
        if len(characters) != n_characters or (counts != n_drawings).any():
            raise ValueError(
                f"{len(names)} drawings of {len(characters)} characters; the published one has {n_drawings} of each of "
                f"{n_characters}"
            )
        images = np.empty((len(names), 1, size, size), dtype=np.uint8)
        for row, name in enumerate(names):
            # white paper, black ink: turned round, so that nothing is 0
            images[row] = 255 - decoded(archive.read(name), size, "L")
    return images, labels.astype(np.int64)


def _is_hidden(name: str) -> bool:
    """What some systems put into archives beside the files."""
    return name.startswith("__MACOSX") or name.rsplit("/", 1)[-1].startswith(".")
