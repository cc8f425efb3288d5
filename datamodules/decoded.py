"""Many files of images or clips as one array: decoded once, then read back from disk."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from datamodules.files import cache_root

#: raised whenever decoding changes a value
DECODER = "2"
Decode = Callable[[Path], np.ndarray]


def content_digest(files: Sequence[Path]) -> str:
    """SHA-256 (hex) over names and contents of ``files``, in order.

    It is remembered beside the decoded arrays, for as long as paths, sizes and times of change stay what they are:
    thousands of files are not read again for every cell.
    """
    place = cache_root() / f"contents-{_listing(files)[:24]}.json"
    try:
        return str(json.loads(place.read_text())["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    whole = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            whole.update(f"{path.name}:{hashlib.file_digest(stream, 'sha256').hexdigest()};".encode())
    found = whole.hexdigest()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _replace(place, lambda part: part.write_text(json.dumps({"sha256": found})))
    except OSError:
        return found
    return found


def decoded(files: Sequence[Path], form: str, shape: tuple[int, ...], decode: Decode) -> Tensor:
    """Items ``[N, *shape]`` uint8, one a file, memory-mapped from a file that is written on first use.

    The array arrives under a temporary name and is moved into place when the last file is decoded: a file that
    cannot be read, or an interruption, leaves nothing behind.

    Args:
        files: one an item, in order.
        form: what is done to a file, e.g. ``image-224``; part of the entry's name.
        shape: shape of one item.
        decode: reads one file as an array of that shape.

    Raises:
        Exception: whatever ``decode`` raises.
        OSError: the folder for decoded arrays (``$ANNOBENCH_CACHE``) cannot be written.
    """
    stem = f"{content_digest(files)[:24]}-{form}-v{DECODER}-pillow{version('pillow')}"
    place = cache_root() / f"{stem}.npy"
    wanted = (len(files), *shape)
    entry = _read(place, wanted)
    if entry is None:
        place.parent.mkdir(parents=True, exist_ok=True)
        _replace(place, lambda part: _write(part, files, wanted, decode))
        entry = np.load(place, mmap_mode="c", allow_pickle=False)
    return torch.from_numpy(entry)


def _write(place: Path, files: Sequence[Path], shape: tuple[int, ...], decode: Decode) -> None:
    array = np.lib.format.open_memmap(place, mode="w+", dtype=np.uint8, shape=shape)
    for row, path in enumerate(files):
        array[row] = decode(path)
    array.flush()


def _read(place: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    try:
        # copy-on-write: pages are read only where they are used
        array = np.load(place, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return array if array.shape == shape and array.dtype == np.uint8 else None


def _replace(place: Path, write: Callable[[Path], object]) -> None:
    handle, name = tempfile.mkstemp(dir=place.parent, prefix=place.name, suffix=".part")
    os.close(handle)
    part = Path(name)
    try:
        write(part)
        os.replace(part, place)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _listing(files: Sequence[Path]) -> str:
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps(stats).encode()).hexdigest()
