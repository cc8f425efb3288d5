"""STREET and AMER as their authors lay them out, small and generated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from datamodules.amer import EMOTIONS
from datamodules.street import LEVELS, PERSPECTIVES

N_ITEMS, N_FRAMES = 20, 6
STREET_COLUMNS = [f"{prefix}_{number}" for prefix in PERSPECTIVES.values() for number in range(1, 11)]
AMER_COLUMNS = [f"discrete{number}" for number in range(1, 14)]
#: changes the rows of the table of labels, the head included, before they are written
Change = Callable[[list[list[str]]], object]


def street(root: Path, change: Change | None = None) -> Path:
    """Photos of one grey each, so that a photo shows its number; returns ``root``."""
    folder = root / "street" / "images"
    folder.mkdir(parents=True)
    for row in range(N_ITEMS):
        Image.fromarray(np.full((12, 10, 3), 10 * row, dtype=np.uint8)).save(folder / f"item{row:02d}.png")
    _write_table(root / "street" / "labels.csv", STREET_COLUMNS, LEVELS, change)
    return root


def amer(root: Path, change: Change | None = None) -> Path:
    """Clips of six grey frames, each darker than the next; returns ``root``."""
    folder = root / "amer" / "videos"
    folder.mkdir(parents=True)
    for row in range(N_ITEMS):
        write_clip(folder / f"item{row:02d}.mp4", N_FRAMES)
    _write_table(root / "amer" / "discrete-multi-annotator.csv", AMER_COLUMNS, (*EMOTIONS, ""), change)
    return root


def write_clip(path: Path, n_frames: int) -> None:
    """A clip of ``n_frames`` grey frames; skips the test where PyAV is missing."""
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        for number in range(n_frames):
            pixels = np.full((32, 32, 3), 40 * number, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


def _write_table(path: Path, columns: Sequence[str], values: Sequence[str], change: Change | None) -> None:
    cells = np.random.default_rng(0).choice(values, (N_ITEMS, len(columns)))
    rows = [["name", *columns], *([f"item{row:02d}", *cells[row].tolist()] for row in range(N_ITEMS))]
    if change is not None:
        change(rows)
    path.write_text("\n".join(",".join(row) for row in rows) + "\n")
