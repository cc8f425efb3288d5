"""AMER: film clips, the emotion in each named by thirteen people. Not released; read where you have it.

Laid out as QuMATL's scripts expect (arXiv 2503.15237; repository QuMAB): ``amer/discrete-multi-annotator.csv`` with the
columns ``name`` and ``discrete1`` ... ``discrete13``, each one of eight words or empty; clips in ``amer/videos``,
called ``<name>.mp4``.

At the released 96 frames of 224 pixels a clip takes 14.5 MB decoded, 5,207 of them 75 GB of the folder for decoded
arrays (``$ANNOBENCH_CACHE``): they stay on disk and are read where they are used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from datamodules.base import CrowdData
from datamodules.clips import read_clip, require_reader
from datamodules.regimes import REGIMES
from datamodules.released_table import ReleasedTable

#: in the order of the paper, by which ties of a majority are broken
EMOTIONS = ("worried", "happy", "neutral", "angry", "surprise", "sad", "other", "unknown")
N_ANNOTATORS = 13


class Amer(ReleasedTable):
    """AMER; items are clips ``[F, 3, size, size]``, which reach a method unscaled unless an encoder takes their place.

    Args:
        regime: ``full`` or ``drop=P``.
        frames: F, frames taken of each clip at equal distances; 96 as released.
        shared: arguments of :class:`ReleasedTable`.

    Raises:
        ValueError: for fewer than one frame.
    """

    name = "amer"
    regimes = REGIMES["amer"]
    items_folder = "videos"
    endings = (".mp4",)
    scale = {emotion: number for number, emotion in enumerate(EMOTIONS)}
    class_names = EMOTIONS

    def __init__(self, regime: str, *, frames: int = 96, **shared: Any) -> None:
        super().__init__(regime, **shared)
        if frames < 1:
            raise ValueError(f"frames is {frames}; take at least 1 frame of a clip")
        self.frames = frames

    def columns(self) -> tuple[str, ...]:
        """The thirteen columns."""
        return tuple(f"discrete{number}" for number in range(1, N_ANNOTATORS + 1))

    def load(self) -> CrowdData:
        """See :meth:`ReleasedTable.load`; also raises DataError where PyAV is not installed."""
        require_reader()
        return super().load()

    def item_shape(self) -> tuple[int, ...]:
        """``(frames, 3, size, size)``."""
        return (self.frames, 3, self.size, self.size)

    def decode(self, path: Path) -> np.ndarray:
        """The clip ``path``."""
        return read_clip(path, self.frames, self.size)
