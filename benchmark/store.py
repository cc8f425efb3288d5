"""Results on disk: one folder a cell, written whole or not at all.

Layout under the results folder::

    cells/<dataset>/<method>/<regime>-s<seed>-<digest>/   result.json, weights.pt
    failures/<digest>.json                                the last failure of a cell; never a result
    pairs/<digest>.json                                   what a probe found of two trained methods
    quarantine/                                           records that could not be read
    locks/<digest>                                        held by the worker of a cell
    log.jsonl                                             one line per event, for machines

A cell's folder appears by one rename, so a run killed at any moment leaves whole results only.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchmark.result import Result
from benchmark.spec import Cell


class StoreError(OSError):
    """A results folder that cannot be used; the message names it and says what to do."""


class Store:
    """The results folder ``root``; made when the first thing is written.

    Raises:
        StoreError: if ``root`` is something else than a folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        if self.root.exists() and not self.root.is_dir():
            raise StoreError(f"{self.root} is not a folder; name another results folder (--results)")

    def require_writable(self) -> None:
        """Raises StoreError if nothing can be written here: better said before a grid runs than after."""
        probe = self.root / "locks" / f".{uuid.uuid4().hex}"
        try:
            try:
                _write_synced(_made(probe), "probe")
            finally:
                probe.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(
                f"the results folder {self.root} cannot be written ({error.strerror or error}); "
                "make room or give the right to write there, or name another one (--results)"
            ) from error

    def folder(self, cell: Cell, digest: str) -> Path:
        """Where the result of ``cell`` lies or would lie."""
        return self.root / "cells" / cell.dataset / cell.method / f"{cell.regime}-s{cell.seed}-{digest}"

    def load(self, cell: Cell, digest: str, warn: Callable[[str], None] = lambda _: None) -> Result | None:
        """The result of ``cell``, or None if there is none.

        A record that holds no result is moved to ``quarantine/`` and said through ``warn``: the cell counts
        as missing, and the others are not touched.

        Raises:
            StoreError: the system does not let it be read; nothing is moved.
        """
        folder = self.folder(cell, digest)
        path = folder / "result.json"
        try:
            result = Result.model_validate_json(path.read_text(encoding="utf-8"))
            if result.digest != digest:
                raise ValueError(f"it says digest {result.digest}")
            return result
        except FileNotFoundError:
            if not folder.exists():
                return None
            if path.exists():  # a worker moved it into place in this very moment
                return self.load(cell, digest, warn)
            self._quarantine(folder, "result.json is missing", warn)
            return None
        except OSError as error:
            raise StoreError(
                f"{path} cannot be read ({error.strerror or error}); give the right to read it, or name another "
                "results folder (--results)"
            ) from error
        except (ValidationError, ValueError) as error:
            self._quarantine(folder, str(error).splitlines()[0], warn)
            return None

    def save(self, result: Result, write_weights: Callable[[Path], None] | None = None) -> Path:
        """Writes ``result`` (and the weights, by ``write_weights(path)``) in one step; returns its folder."""
        target = self.folder(result.cell, result.digest)
        unique = uuid.uuid4().hex[:8]
        temporary, replaced = (target.parent / f".{target.name}.{unique}{end}.tmp" for end in ("", "-old"))
        temporary.mkdir(parents=True)
        try:
            if write_weights is not None:
                write_weights(temporary / "weights.pt")
            _write_synced(temporary / "result.json", result.model_dump_json(indent=1))
            if target.exists():  # moved away whole: a kill while it is being removed must not leave half of it
                os.rename(target, replaced)
            os.rename(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.rmtree(replaced, ignore_errors=True)
        self._failure_path(result.digest).unlink(missing_ok=True)
        return target

    def save_failure(self, cell: Cell, digest: str, error: str, trace: str) -> None:
        """Records that ``cell`` failed: ``error`` is one line, ``trace`` the whole traceback."""
        record = {"cell": cell.model_dump(), "error": error, "trace": trace, "at": _now()}
        _replace(self._failure_path(digest), json.dumps(record, indent=1))

    def failure(self, digest: str) -> dict[str, Any] | None:
        """The last failure of a cell (keys ``cell, error, trace, at``), or None."""
        try:
            record = json.loads(self._failure_path(digest).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, OSError):
            record = None
        if isinstance(record, dict) and isinstance(record.get("error"), str):
            return record
        return {"error": "the record of this failure cannot be read", "trace": ""}

    def save_pair(self, digest: str, text: str) -> None:
        """Records what a probe found of two trained methods."""
        _replace(self._pair_path(digest), text)

    def load_pair(self, digest: str) -> str | None:
        """The text of that record, or None where it is absent or cannot be read: then it is made again."""
        try:
            return self._pair_path(digest).read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            return None

    @contextmanager
    def lock(self, digest: str) -> Iterator[None]:
        """Held while a cell is being worked on; the system releases it when the process dies."""
        with _made(self.root / "locks" / digest).open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def sweep(self, cell: Cell, digest: str) -> None:
        """Removes what a killed worker of ``cell`` left half written; call it under the cell's lock."""
        folder = self.folder(cell, digest)
        for leftover in folder.parent.glob(f".{folder.name}.*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)

    def log(self, event: str, **fields: Any) -> None:
        """Appends one JSON line to ``log.jsonl``; a full disk loses the line and nothing else."""
        line = json.dumps({"at": _now(), "event": event, **fields}) + "\n"
        with suppress(OSError), _made(self.root / "log.jsonl").open("a", encoding="utf-8") as handle:
            handle.write(line)

    def _failure_path(self, digest: str) -> Path:
        return self.root / "failures" / f"{digest}.json"

    def _pair_path(self, digest: str) -> Path:
        return self.root / "pairs" / f"{digest}.json"

    def _quarantine(self, folder: Path, why: str, warn: Callable[[str], None]) -> None:
        kept = self.root / "quarantine" / f"{folder.name}-{uuid.uuid4().hex[:8]}"
        try:
            os.rename(folder, _made(kept))
            warn(f"the record {folder} cannot be read ({why}); moved to {kept}, its cell will run again")
        except OSError as error:  # a folder of somebody else, or another process was faster
            warn(f"the record {folder} cannot be read ({why}), nor moved away ({error.strerror or error})")


def _made(path: Path) -> Path:
    """``path``, once the folder that it lies in is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _replace(path: Path, text: str) -> None:
    """Writes ``path`` in one step, whether or not it was there."""
    temporary = _made(path).with_suffix(f".{uuid.uuid4().hex[:8]}.tmp")
    try:
        _write_synced(temporary, text)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_synced(path: Path, text: str) -> None:
    # fsync before the rename: after a power cut the name must not point at an empty file
    with path.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
