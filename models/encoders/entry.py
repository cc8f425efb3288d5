"""One array on disk that is filled chunk by chunk: resumable, checked, memory-mapped when read.

``tokens.npy`` is an ordinary .npy file at its full size from the start; ``progress.json`` is replaced after each
chunk and holds a checksum of every chunk that is there.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from datamodules.features import MappedTensor, open_mapped

#: rows ``[start, stop)`` -> their values ``[stop - start, ...]``
Compute = Callable[[int, int], np.ndarray]


class CacheUnwritable(Exception):
    """The folder of the cache cannot be written."""


def write_atomic(path: Path, content: bytes) -> None:
    """Replaces ``path`` in one step: whoever reads it sees the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock file ``path``; waits for who has it. The system releases it when the process dies.

    Raises:
        CacheUnwritable: if the file cannot be made.
    """
    with unwritable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("w")
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def unwritable(path: Path) -> Iterator[None]:
    """Turns what the system says about writing into :class:`CacheUnwritable`, naming ``path``."""
    try:
        yield
    except OSError as error:
        raise CacheUnwritable(f"cannot write {path} ({error.strerror or error})") from error


class Entry:
    """An array of known shape in its own folder.

    Args:
        folder: where it lies; named by all that its values depend on.
        shape: ``(N, ...)`` with N > 0.
        dtype: numpy's name of the values' type.
        chunk: rows computed and recorded at once. An entry that was begun keeps the chunks it was begun with.
    """

    def __init__(self, folder: Path, shape: tuple[int, ...], dtype: str, chunk: int) -> None:
        self.array, self.record, self.lock = folder / "tokens.npy", folder / "progress.json", folder / "lock"
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.header = _header(shape, self.dtype)
        self.row = int(np.prod(shape[1:])) * self.dtype.itemsize
        self.size = len(self.header) + shape[0] * self.row
        self.chunk = chunk
        #: checksum of each chunk that is on disk, None where it is not
        self.checksums: list[int | None] = [None] * -(-shape[0] // chunk)
        #: size and time of change of the file when it was last known to be whole
        self.stamp: list[int] | None = None

    def open(self) -> MappedTensor | None:
        """The array, memory-mapped (copy on write), or None if it is not whole or was changed since."""
        try:
            self._recall()
            if None in self.checksums or self.stamp != self._stamp():
                return None
            return open_mapped(self.array)
        except (OSError, ValueError):
            return None

    def complete(self, compute: Compute) -> MappedTensor:
        """The array, after computing the chunks that are missing or damaged.

        Only one process computes an entry at a time; the others wait for it.

        Raises:
            CacheUnwritable: if the folder cannot be written. What ``compute`` raises passes through, and the
                chunks before it are kept.
        """
        whole = self.open()
        if whole is not None:
            return whole
        with locked(self.lock):
            whole = self.open()
            if whole is None:
                self._fill(compute)
                whole = self.open()
        if whole is None:
            raise CacheUnwritable(f"{self.array} cannot be read back after it was written")
        return whole

    # --- within -----------------------------------------------------------------------------------

    def _fill(self, compute: Compute) -> None:
        with unwritable(self.array):
            self.array.touch()
            stream = self.array.open("r+b", buffering=0)
        with stream:
            with unwritable(self.array):
                _write(stream, 0, self.header)
                stream.truncate(self.size)
                self.checksums = [self._checked(stream, number) for number in range(len(self.checksums))]
            for number, known in enumerate(self.checksums):
                if known is None:
                    values = compute(*self._rows(number)).tobytes()
                    with unwritable(self.array):
                        _write(stream, self._offset(number), values)
                        self.checksums[number] = zlib.crc32(values)
                        self._note(None)
        with unwritable(self.record):
            self._note(self._stamp())

    def _rows(self, number: int) -> tuple[int, int]:
        return number * self.chunk, min((number + 1) * self.chunk, self.shape[0])

    def _offset(self, number: int) -> int:
        return len(self.header) + number * self.chunk * self.row

    def _checked(self, stream: BinaryIO | io.FileIO, number: int) -> int | None:
        """The recorded checksum of a chunk if the file still agrees with it, else None."""
        known = self.checksums[number]
        if known is None:
            return None
        start, stop = self._rows(number)
        stream.seek(self._offset(number))
        return known if zlib.crc32(stream.read((stop - start) * self.row) or b"") == known else None

    def _stamp(self) -> list[int]:
        stat = self.array.stat()
        return [stat.st_size, stat.st_mtime_ns]

    def _note(self, stamp: list[int] | None) -> None:
        record = {"chunk": self.chunk, "checksums": self.checksums, "stamp": stamp}
        write_atomic(self.record, json.dumps(record).encode())

    def _recall(self) -> None:
        """Takes over the record on disk; one that is damaged or of another form counts as absent."""
        try:
            record: Any = json.loads(self.record.read_bytes())
            chunk, checksums, stamp = record["chunk"], record["checksums"], record["stamp"]
            if not _is_record(chunk, checksums, self.shape[0]):
                return
        except (OSError, ValueError, TypeError, KeyError):
            return
        self.chunk, self.checksums, self.stamp = chunk, checksums, stamp


def _is_record(chunk: Any, checksums: Any, rows: int) -> bool:
    if not isinstance(chunk, int) or chunk < 1 or not isinstance(checksums, list):
        return False
    return len(checksums) == -(-rows // chunk) and all(known is None or isinstance(known, int) for known in checksums)


def _header(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    stream = io.BytesIO()
    description = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(stream, {"descr": description, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def _write(stream: io.FileIO | BinaryIO, offset: int, content: bytes) -> None:
    """Writes all of ``content``: an unbuffered write may take only a part of it."""
    stream.seek(offset)
    rest = memoryview(content)
    while rest:
        rest = rest[stream.write(rest) :]
