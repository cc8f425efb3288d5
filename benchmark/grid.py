"""Many cells: which are missing, run them, survive what fails.

Cells run in worker processes, ``jobs`` at a time. What is in the store is not run again; a stopped grid goes
on where it was; a failed cell never stops the others (unless asked to) and is tried again by the next run.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, Protocol

from benchmark.resolve import ResolvedCell, resolve
from benchmark.result import DONE, FAILED, MISSING, NOT_APPLICABLE, Outcome
from benchmark.spec import PlannedCell
from benchmark.store import Store
from benchmark.worker import Job, one_line, process_main, work

EXECUTORS = ("local", "inline")
#: memory that a cell may need; bounds the default number of jobs
CELL_MEMORY_BYTES = 3 * 2**30


class Listener(Protocol):
    """Is told what happens while a grid runs."""

    def started(self, outcome: Outcome) -> None:
        """A cell begins."""

    def epoch(self, outcome: Outcome, done: int, total: int) -> None:
        """A cell has finished ``done`` of ``total`` epochs."""

    def encoding(self, outcome: Outcome, done: int, total: int) -> None:
        """A cell's encoder has encoded ``done`` of ``total`` items (of the training items, then of the test items)."""

    def finished(self, outcome: Outcome) -> None:
        """A cell is done or has failed; ``outcome.status`` and ``outcome.reason`` say which and why."""


@dataclass(frozen=True)
class GridOptions:
    """How to run cells; nothing here can change a number."""

    jobs: int = 1
    executor: str = "local"
    fail_fast: bool = False
    root: Path | None = None
    num_workers: int = 0


@dataclass
class _Running:
    process: Any
    channel: Connection
    lifeline: Connection
    outcome: Outcome
    slot: int
    message: tuple[Any, ...] | None = field(default=None)


def survey(
    planned: Iterable[PlannedCell],
    store: Store,
    root: Path | None = None,
    warn: Callable[[str], None] = lambda _: None,
) -> list[Outcome]:
    """The state of each planned cell in the store; runs nothing.

    Raises:
        SpecError, RegistryError, DataNotFound: as :func:`benchmark.resolve.resolve`.
    """
    return [_look_up(plan, resolve(plan.cell, root=root), store, warn) for plan in planned]


def run_grid(outcomes: Sequence[Outcome], store: Store, options: GridOptions, listener: Listener) -> list[Outcome]:
    """Runs the cells of ``outcomes`` that are missing or have failed; returns the new state of all.

    Raises:
        KeyboardInterrupt: after the workers have been ended; what was done is in the store.
    """
    todo: dict[str, Outcome] = {}
    for outcome in outcomes:
        if outcome.status in (MISSING, FAILED):
            todo.setdefault(outcome.digest, outcome)
    runner = _run_inline if options.executor == "inline" else _run_local
    ended = {at.digest: at for at in runner(list(todo.values()), store, options, listener)} if todo else {}
    return [_with_unrecorded(_refreshed(outcome, store), ended.get(outcome.digest)) for outcome in outcomes]


def default_jobs(gpus: int) -> int:
    """One job a GPU; without one, a job a core as far as memory reaches (3 GiB each)."""
    if gpus:
        return gpus
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return cores
    return max(1, min(cores, memory // CELL_MEMORY_BYTES))


def _look_up(plan: PlannedCell, resolved: ResolvedCell, store: Store, warn: Callable[[str], None]) -> Outcome:
    outcome = Outcome(plan.row, plan.column, plan.cell, resolved.digest, MISSING)
    if resolved.not_applicable:
        return Outcome(
            plan.row, plan.column, plan.cell, resolved.digest, NOT_APPLICABLE, reason=resolved.not_applicable
        )
    return _refreshed(outcome, store, warn)


def _refreshed(outcome: Outcome, store: Store, warn: Callable[[str], None] = lambda _: None) -> Outcome:
    """``outcome`` as the store has it now."""
    if outcome.status == NOT_APPLICABLE:
        return outcome
    place = (outcome.row, outcome.column, outcome.cell, outcome.digest)
    result = store.load(outcome.cell, outcome.digest, warn)
    if result is not None:
        return Outcome(*place, DONE, result=result)
    failure = store.failure(outcome.digest)
    if failure is not None:
        return Outcome(*place, FAILED, reason=failure.get("error", "unknown error"))
    return Outcome(*place, MISSING)


def _job(outcome: Outcome, store: Store, options: GridOptions, gpu: int | None = None) -> Job:
    return Job(outcome.cell, outcome.digest, store.root, options.root, options.num_workers, gpu)


def _with_unrecorded(fresh: Outcome, ended: Outcome | None) -> Outcome:
    """``fresh``, or as it ``ended`` where it failed and not even that could be written."""
    if fresh.status == MISSING and ended is not None and ended.status == FAILED:
        return replace(fresh, status=FAILED, reason=ended.reason)
    return fresh


def _report(outcome: Outcome, store: Store, listener: Listener, error: str) -> Outcome:
    """Tells how a cell ended; ``error`` is what is known of it where the store has no record."""
    fresh = _refreshed(outcome, store)
    if fresh.status == MISSING:
        fresh = replace(fresh, status=FAILED, reason=f"{error} (this could not be recorded in {store.root})")
    store.log("cell", cell=outcome.cell.describe(), digest=outcome.digest, status=fresh.status, error=fresh.reason)
    listener.finished(fresh)
    return fresh


def _run_inline(todo: list[Outcome], store: Store, options: GridOptions, listener: Listener) -> list[Outcome]:
    """All in this process, one after another: for debuggers and profilers. Returns how each cell ended."""
    done: list[Outcome] = []
    for outcome in todo:
        listener.started(outcome)
        error = ""
        try:
            work(
                _job(outcome, store, options),
                on_epoch=partial(listener.epoch, outcome),
                on_encode=partial(listener.encoding, outcome),
            )
        except (Exception, SystemExit) as raised:
            error = one_line(raised)
        done.append(_report(outcome, store, listener, error))
        if done[-1].status == FAILED and options.fail_fast:
            break
    return done


def _run_local(todo: list[Outcome], store: Store, options: GridOptions, listener: Listener) -> list[Outcome]:
    """A process a cell, forked from a server that has imported torch once. Returns how each cell ended."""
    context = _worker_context()
    waiting = list(todo)
    running: list[_Running] = []
    done: list[Outcome] = []
    gpus = _gpu_count()
    jobs = min(options.jobs, len(todo))
    try:
        while waiting or running:
            free = sorted(set(range(jobs)) - {at.slot for at in running})
            for slot in free[: len(waiting)]:
                running.append(_start(context, waiting.pop(0), slot, gpus, store, options))
                listener.started(running[-1].outcome)
            for ended in _collect(running, listener):
                running.remove(ended)
                done.append(_settle(ended, store, listener))
                if done[-1].status == FAILED and options.fail_fast:
                    waiting.clear()
                    _end(running)
                    running.clear()
                    break
    finally:
        _end(running)
    return done


def _worker_context() -> ForkServerContext:
    """A server that has imported torch and this package once; each worker is forked from it, clean."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmark.worker"])
    # The server must import this package and not another "benchmark" or "models" in the current folder, which
    # Python would put first; and it must find it where it was found here.
    ours = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
    # A cell says how many threads torch may use; NumPy's and SciPy's libraries take all cores each, and workers side
    # by side then wait for one another. They read this once, when they are loaded.
    ours |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    return context


def _start(
    context: ForkServerContext, outcome: Outcome, slot: int, gpus: int, store: Store, options: GridOptions
) -> _Running:
    receiver, sender = context.Pipe(duplex=False)
    theirs, ours = context.Pipe(duplex=False)
    job = _job(outcome, store, options, gpu=slot % gpus if gpus else None)
    process = context.Process(target=process_main, args=(job, sender, theirs), name=outcome.cell.describe())
    process.start()
    sender.close()
    theirs.close()
    return _Running(process, receiver, ours, outcome, slot)


def _collect(running: list[_Running], listener: Listener) -> list[_Running]:
    """Waits for news; passes epochs on and returns the workers that have ended."""
    by_object: dict[Any, _Running] = {}
    for at in running:
        by_object[at.process.sentinel] = at
        if at.message is None:
            by_object[at.channel] = at
    ended = []
    for ready in wait(list(by_object)):
        at = by_object[ready]
        if ready is at.channel:
            if at.message is None:  # else its end was seen first, and its last word taken below
                _receive(at, listener)
            continue
        while at.message is None:  # what it sent before it ended; the closed pipe says when that is all
            _receive(at, listener)
        ended.append(at)
    return ended


def _receive(at: _Running, listener: Listener) -> None:
    try:
        message = at.channel.recv()
    except (EOFError, OSError):
        at.message = ("gone",)
        return
    if message[0] == "epoch":
        listener.epoch(at.outcome, message[1], message[2])
    elif message[0] == "encode":
        listener.encoding(at.outcome, message[1], message[2])
    else:
        at.message = message


def _settle(ended: _Running, store: Store, listener: Listener) -> Outcome:
    """Records a death that the worker could not record itself, and reports how the cell ended."""
    ended.process.join()
    ended.lifeline.close()
    ended.channel.close()
    outcome = ended.outcome
    why = ended.message[1] if ended.message and ended.message[0] == "failed" else _death(ended.process.exitcode)
    if ended.message in (None, ("gone",)) and store.load(outcome.cell, outcome.digest) is None:
        with suppress(OSError):
            store.save_failure(outcome.cell, outcome.digest, why, f"{outcome.cell.describe()}: {why}")
    return _report(outcome, store, listener, why)


def _death(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        hint = "; signal 9 is often the system running out of memory: try fewer --jobs" if exit_code == -9 else ""
        return f"the worker process was killed by signal {-exit_code}{hint}"
    return f"the worker process ended with status {exit_code} before its cell was done"


def _end(running: list[_Running]) -> None:
    for at in running:
        at.process.kill()
    for at in running:
        at.process.join()
        at.lifeline.close()
        at.channel.close()


def _gpu_count() -> int:
    import torch

    return torch.cuda.device_count()
