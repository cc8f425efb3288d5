"""Results on disk: one folder a cell, written whole or not at all.

Layout under the results folder::

    cells/<dataset>/<method>/<regime>-s<seed>-<digest>/   result.json, weights.pt
    failures/<digest>.json                                the last failure of a cell; never a result
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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchmark.result import Result
from benchmark.spec import Cell


class Store:
    """The results folder ``root``; made when the first thing is written."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)

    def folder(self, cell: Cell, digest: str) -> Path:
        """Where the result of ``cell`` lies or would lie."""
        return self.root / "cells" / cell.dataset / cell.method / f"{cell.regime}-s{cell.seed}-{digest}"

    def load(self, cell: Cell, digest: str, warn: Callable[[str], None] = lambda _: None) -> Result | None:
        """The result of ``cell``, or None if there is none.

        A record that cannot be read is moved to ``quarantine/`` and said through ``warn``: the cell counts
        as missing, and the others are not touched.
        """
        folder = self.folder(cell, digest)
        path = folder / "result.json"
        try:
            result = Result.model_validate_json(path.read_text(encoding="utf-8"))
            if result.digest != digest:
                raise ValueError(f"it says digest {result.digest}")
            return result
        except FileNotFoundError:
            if folder.exists():
                self._quarantine(folder, "result.json is missing", warn)
            return None
        except (ValidationError, ValueError, OSError) as error:
            self._quarantine(folder, str(error).splitlines()[0], warn)
            return None

    def save(self, result: Result, write_weights: Callable[[Path], None] | None = None) -> Path:
        """Writes ``result`` (and the weights, by ``write_weights(path)``) in one step; returns its folder."""
        target = self.folder(result.cell, result.digest)
        temporary = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.tmp"
        temporary.mkdir(parents=True)
        try:
            if write_weights is not None:
                write_weights(temporary / "weights.pt")
            _write_synced(temporary / "result.json", result.model_dump_json(indent=1))
            if target.exists():
                shutil.rmtree(target)
            os.rename(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._failure_path(result.digest).unlink(missing_ok=True)
        return target

    def save_failure(self, cell: Cell, digest: str, error: str, trace: str) -> None:
        """Records that ``cell`` failed: ``error`` is one line, ``trace`` the whole traceback."""
        path = self._failure_path(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"cell": cell.model_dump(), "error": error, "trace": trace, "at": _now()}
        temporary = path.with_suffix(f".{uuid.uuid4().hex[:8]}.tmp")
        _write_synced(temporary, json.dumps(record, indent=1))
        os.replace(temporary, path)

    def failure(self, digest: str) -> dict[str, Any] | None:
        """The last failure of a cell (keys ``cell, error, trace, at``), or None."""
        try:
            record = json.loads(self._failure_path(digest).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (json.JSONDecodeError, OSError):
            return {"error": "the record of this failure cannot be read", "trace": ""}
        return record if isinstance(record, dict) else None

    @contextmanager
    def lock(self, digest: str) -> Iterator[None]:
        """Held while a cell is being worked on; the system releases it when the process dies."""
        path = self.root / "locks" / digest
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def sweep(self, cell: Cell, digest: str) -> None:
        """Removes what a killed worker of ``cell`` left half written; call it under the cell's lock."""
        folder = self.folder(cell, digest)
        for leftover in folder.parent.glob(f".{folder.name}.*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)

    def log(self, event: str, **fields: Any) -> None:
        """Appends one JSON line to ``log.jsonl``."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "log.jsonl").open("a", encoding="utf-8") as handle:
            handle.write(json.dumps({"at": _now(), "event": event, **fields}) + "\n")

    def _failure_path(self, digest: str) -> Path:
        return self.root / "failures" / f"{digest}.json"

    def _quarantine(self, folder: Path, why: str, warn: Callable[[str], None]) -> None:
        kept = self.root / "quarantine" / f"{folder.name}-{uuid.uuid4().hex[:8]}"
        kept.parent.mkdir(parents=True, exist_ok=True)
        os.rename(folder, kept)
        warn(f"the record {folder} cannot be read ({why}); moved to {kept}, its cell will run again")


def _write_synced(path: Path, text: str) -> None:
    # fsync before the rename: after a power cut the name must not point at an empty file
    with path.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
