"""What a worker process does: one cell, from its JSON to its folder in the store.

Each cell gets a process of its own, so that a crash, a kill or running out of memory costs that cell alone
and nothing that ran before can change its bits.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from benchmark.resolve import resolve
from benchmark.run import run_cell
from benchmark.spec import Cell
from benchmark.store import Store


@dataclass(frozen=True)
class Job:
    """A cell and how to run it; plain values, so that it can be sent to a process.

    Attributes:
        cell: the cell.
        digest: its address in the store, as the parent computed it.
        results: the results folder.
        root: folder with the data, or None for the default.
        num_workers: loader processes.
        gpu: index of the GPU to use, or None.
    """

    cell: Cell
    digest: str
    results: Path
    root: Path | None = None
    num_workers: int = 0
    gpu: int | None = None


def work(
    job: Job,
    on_epoch: Callable[[int, int], None] = lambda done, total: None,
    on_encode: Callable[[int, int], None] | None = None,
) -> None:
    """Runs ``job`` and writes its result, unless somebody else has meanwhile; failures are recorded and raised."""
    store = Store(job.results)
    with store.lock(job.digest):
        if store.load(job.cell, job.digest) is not None:
            return
        store.sweep(job.cell, job.digest)
        try:
            resolved = resolve(job.cell, root=job.root)
            if resolved.digest != job.digest:
                raise RuntimeError(
                    f"the data or the code of {job.cell.describe()} changed while the grid was running; run it again"
                )
            trained = run_cell(
                resolved, root=job.root, num_workers=job.num_workers, on_epoch=on_epoch, on_encode=on_encode
            )
            state = {name: value.cpu() for name, value in trained.method.state_dict().items()}
            store.save(trained.result, write_weights=lambda path: torch.save(state, path))
        except (Exception, SystemExit) as error:
            with suppress(OSError):  # on a full disk the error itself still reaches the grid
                store.save_failure(job.cell, job.digest, one_line(error), traceback.format_exc())
            raise


def one_line(error: BaseException) -> str:
    """Type and message of ``error`` on one line."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def process_main(job: Job, channel: Connection, lifeline: Connection) -> None:
    """Entry point of a worker process: sends what was encoded and trained, then how it ended.

    Messages: ``("encode", done, total)``, ``("epoch", done, total)``, ``("done",)`` or ``("failed", line)``.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    if job.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible_device(job.gpu, os.environ.get("CUDA_VISIBLE_DEVICES"))
    message: tuple[Any, ...]
    try:
        work(
            job,
            on_epoch=lambda done, total: _tell(channel, ("epoch", done, total)),
            on_encode=lambda done, total: _tell(channel, ("encode", done, total)),
        )
        message = ("done",)
    except (Exception, SystemExit) as error:
        message = ("failed", one_line(error))
    _tell(channel, message)


def visible_device(index: int, visible: str | None) -> str:
    """Name of the GPU number ``index`` of those that the user left visible (``CUDA_VISIBLE_DEVICES``; None: all)."""
    names = [name.strip() for name in (visible or "").split(",") if name.strip()]
    return names[index] if names else str(index)


def _tell(channel: Connection, message: tuple[Any, ...]) -> None:
    """Sends ``message``; ends this process if nobody listens, which is no failure of the cell."""
    try:
        channel.send(message)
    except OSError:
        os._exit(1)


def _die_with_parent(lifeline: Connection) -> None:
    """Ends this process when the parent's end of ``lifeline`` closes: no orphan trains on after a ``kill -9``."""
    try:
        lifeline.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)
