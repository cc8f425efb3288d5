"""The grid: runs what is missing, survives what fails, and gives the same numbers however it was run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmark import grid
from benchmark.evaluate import evaluate
from benchmark.grid import GridOptions, run_grid, survey
from benchmark.resolve import build_data, resolve
from benchmark.result import Outcome
from benchmark.spec import SpecError, TableSpec
from benchmark.store import Store
from benchmark.worker import visible_device
from tests.benchmark.conftest import tiny_spec

pytestmark = pytest.mark.usefixtures("plugin")


class Recorder:
    """A listener that remembers which cells ran."""

    def __init__(self) -> None:
        self.ran: list[Outcome] = []

    def started(self, outcome: Outcome) -> None: ...

    def epoch(self, outcome: Outcome, done: int, total: int) -> None: ...

    def encoding(self, outcome: Outcome, done: int, total: int) -> None: ...

    def finished(self, outcome: Outcome) -> None:
        self.ran.append(outcome)


def run(spec: TableSpec, store: Store, **options: object) -> tuple[list[Outcome], list[Outcome]]:
    """All outcomes of ``spec`` after running it, and the cells that ran."""
    recorder = Recorder()
    settings = GridOptions(**{"jobs": 2, **options})  # type: ignore[arg-type]
    return run_grid(survey(spec.plan("demo"), store), store, settings, recorder), recorder.ran


def metrics(outcomes: Sequence[Outcome]) -> dict[tuple[str, str, int], dict[str, float | None]]:
    return {(at.row, at.column, at.cell.seed): at.result.metrics for at in outcomes if at.result is not None}


def test_a_second_run_and_swapped_rows_execute_no_cell(tmp_path: Path) -> None:
    # benchopt#806: the cache was missed when the order of solvers changed
    store = Store(tmp_path)
    spec = tiny_spec("linear", "linear_next")
    _, first = run(spec, store)
    _, again = run(spec, store)
    _, swapped = run(tiny_spec("linear_next", "linear"), store)
    assert (len(first), len(again), len(swapped)) == (4, 0, 0)


def test_a_change_executes_exactly_the_cells_it_touches(tmp_path: Path) -> None:
    store = Store(tmp_path)
    document = tiny_spec("linear", "linear_next", columns=("noisy", "other")).model_dump()
    _, first = run(TableSpec.model_validate(document), store)
    assert len(first) == 8
    document["rows"][0]["args"] = {"learning_rate": 0.2}
    _, argument = run(TableSpec.model_validate(document), store)
    assert {(at.row, at.column) for at in argument} == {("linear", "noisy"), ("linear", "other")}
    document["columns"][1]["data"] = {"changed_label": True}
    _, data = run(TableSpec.model_validate(document), store)
    assert {(at.row, at.column) for at in data} == {("linear", "other"), ("linear_next", "other")}


def test_the_version_of_a_method_is_part_of_its_address_and_the_profile_is_not() -> None:
    cell = tiny_spec("linear").plan("demo")[0].cell
    assert resolve(cell).digest == resolve(cell.model_copy(update={"profile": "cpu"})).digest
    assert resolve(cell).digest != resolve(cell.model_copy(update={"method": "linear_next"})).digest
    default = cell.model_copy(update={"method_args": {"learning_rate": 0.1}})
    assert resolve(cell).digest == resolve(default).digest, "a default said aloud is the same cell"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method_args": {"learning_rat": 1}}, "unknown argument of method 'linear': 'learning_rat'; did you mean"),
        ({"method_args": {"learning_rate": "fast"}}, "method 'linear'.*learning_rate"),
        ({"data_args": {"batchsize": 3}}, "unknown argument of data set 'blobs': 'batchsize'; did you mean batch_size"),
        ({"data_args": {"split_seed": 3}}, "unknown argument of data set 'blobs': 'split_seed'"),
        ({"regime": "noise"}, "unknown regime of data set 'blobs': 'noise'; did you mean noisy"),
        ({"protocols": ("concensus",)}, "unknown protocol: 'concensus'; did you mean consensus"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, object], message: str) -> None:
    cell = tiny_spec("linear").plan("demo")[0].cell
    with pytest.raises(SpecError, match=message):
        resolve(cell.model_copy(update=change))


def test_failures_are_rows_with_a_traceback_and_never_stop_the_others(tmp_path: Path) -> None:
    # benchopt#875, hydra#2284: a failing cell must be seen when it happens, and must not count as a result
    store = Store(tmp_path)
    outcomes, ran = run(tiny_spec("broken", "killed", "diverging", "linear", "needs_images"), store)
    status = {at.row: at.status for at in outcomes}
    assert status == {
        "broken": "failed", "killed": "failed", "diverging": "failed", "linear": "done", "needs_images": "n/a",
    }  # fmt: skip
    reasons = {at.row: at.reason for at in outcomes}
    assert reasons["broken"] == "RuntimeError: the oven is cold"
    assert "killed by signal 9" in reasons["killed"]
    assert reasons["diverging"].startswith("NotFinite: training ended with NaN or infinite values in layer")
    assert reasons["needs_images"] == "needs_images needs images; blobs has none"
    failure = store.failure(next(at.digest for at in outcomes if at.row == "broken"))
    assert failure is not None and "Traceback" in failure["trace"] and "training_step" in failure["trace"]
    _, retried = run(tiny_spec("broken", "linear"), store)
    assert {at.row for at in retried} == {"broken"}, "a failure is tried again, a result is not"
    assert len(ran) == 8


@pytest.mark.parametrize("executor", ["local", "inline"])
def test_a_failure_that_cannot_be_recorded_is_a_failure_all_the_same(tmp_path: Path, executor: str) -> None:
    # on a full disk or without the right to write, the cell was "missing" and its error was lost
    (tmp_path / "failures").write_text("a file where a folder should be")
    outcomes, _ = run(tiny_spec("broken", "linear"), Store(tmp_path), executor=executor)
    assert {at.row: at.status for at in outcomes} == {"broken": "failed", "linear": "done"}
    assert {at.reason.partition(" (this")[0] for at in outcomes} == {"RuntimeError: the oven is cold", ""}


@pytest.mark.parametrize("executor", ["local", "inline"])
def test_a_method_that_exits_fails_its_cell_alone(tmp_path: Path, executor: str) -> None:
    # inline, a plugin's sys.exit(0) ended the grid with status 0 and nothing done
    outcomes, _ = run(tiny_spec("quits", "linear"), Store(tmp_path), executor=executor)
    assert {(at.row, at.status, at.reason) for at in outcomes} == {
        ("quits", "failed", "SystemExit: 0"),
        ("linear", "done", ""),
    }


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C as on a terminal: a shell that starts the tests in the background lets them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_interrupting_an_inline_run_is_no_failure(tmp_path: Path) -> None:
    # Lightning makes exit(1) of Ctrl-C and ignores the signal from then on
    store = Store(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(tiny_spec("interrupted"), store, executor="inline")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert {at.status for at in survey(tiny_spec("interrupted").plan("demo"), store)} == {"missing"}


def test_a_worker_takes_its_gpu_from_those_left_visible() -> None:
    # with CUDA_VISIBLE_DEVICES=2,3 the first two jobs ran on the GPUs 0 and 1, which belong to somebody else
    assert [visible_device(index, "2, 3") for index in (0, 1)] == ["2", "3"]
    assert visible_device(1, None) == visible_device(1, "") == "1"


def test_fail_fast_stops_at_the_first_failure(tmp_path: Path) -> None:
    for executor in ("local", "inline"):
        outcomes, ran = run(
            tiny_spec("broken", "linear"), Store(tmp_path / executor), jobs=1, fail_fast=True, executor=executor
        )
        assert len(ran) == 1
        assert sum(at.status == "missing" for at in outcomes) == 3


def test_the_same_cell_gives_the_same_bits_however_it_is_run(tmp_path: Path) -> None:
    # in other processes, in another order, after other cells, with loader workers, in this process
    forward, _ = run(tiny_spec("linear", "linear_next"), Store(tmp_path / "a"))
    backward, _ = run(tiny_spec("linear_next", "linear"), Store(tmp_path / "b"), jobs=1)
    workers, _ = run(tiny_spec("linear"), Store(tmp_path / "c"), num_workers=2)
    inline, _ = run(tiny_spec("linear_next", "linear"), Store(tmp_path / "d"), executor="inline")
    assert metrics(forward) == metrics(backward) == metrics(inline)
    assert metrics(workers).items() <= metrics(forward).items()


def test_saved_weights_give_the_reported_number(tmp_path: Path) -> None:
    # pytorch-lightning#6074: a checkpoint under SWA held other weights than those that were measured
    store = Store(tmp_path)
    outcome = run(tiny_spec("linear"), store)[0][0]
    resolved = resolve(outcome.cell)
    datamodule = build_data(outcome.cell, resolved.dataset, resolved.data_args)
    method = resolved.method(datamodule.info, **resolved.method_args)
    method.load_state_dict(torch.load(store.folder(outcome.cell, outcome.digest) / "weights.pt", weights_only=True))
    assert outcome.result is not None
    assert dict(evaluate(method, datamodule, outcome.cell.protocols).metrics) == outcome.result.metrics


def test_provenance_says_where_a_number_comes_from(tmp_path: Path) -> None:
    outcome = run(tiny_spec("linear"), Store(tmp_path))[0][0]
    assert outcome.result is not None
    found = outcome.result.provenance
    assert found["versions"]["torch"] == version("torch")
    assert found["profile"] == "demo" and found["threads"] == 1
    assert len(found["data_digest"]) == 64
    assert found["peak_memory_mib"] > 50 and found["seconds"]["train"] > 0
    assert found["hardware"] and found["method_args"] == {"learning_rate": 0.1}


SCRIPT = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from benchmark.grid import GridOptions
from benchmark.store import Store
from tests.benchmark.conftest import tiny_spec
from tests.benchmark.test_grid import run
if __name__ == "__main__":
    run(tiny_spec("slow", "linear", profiles={profiles!r}), Store(Path({root!r})))
"""
PROFILES = {"demo": {"dataset": "blobs", "seeds": 4, "train": {"max_epochs": 3}, "data": {"batch_size": 12}}}


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_a_grid_stopped_half_way_goes_on_and_ends_the_same(tmp_path: Path, plugin: Path, stop: signal.Signals) -> None:
    script = tmp_path / "half.py"
    here = str(Path(__file__).parents[2])
    root = tmp_path / "stopped"
    script.write_text(SCRIPT.format(path=[str(plugin), here], root=str(root), profiles=PROFILES))
    process = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.DEVNULL, start_new_session=True)
    # [!.]: a folder being written is hidden, and a stop may come before the rename that makes it a result
    while not list(root.glob("cells/*/*/[!.]*/result.json")):
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, stop)
    process.wait(timeout=120)
    store = Store(root)
    spec = tiny_spec("slow", "linear", profiles=PROFILES)
    kept = [at for at in survey(spec.plan("demo"), store) if at.status == "done"]
    assert 0 < len(kept) < 8
    resumed, ran = run(spec, store)
    assert len(ran) <= 8 - len(kept), "what was done is not run again"
    undisturbed, _ = run(spec, Store(tmp_path / "undisturbed"))
    assert metrics(resumed) == metrics(undisturbed) and len(metrics(resumed)) == 8
    assert not list(root.rglob("*.tmp"))


def test_the_last_word_of_a_worker_that_has_already_ended_is_not_lost() -> None:
    """Its end and its message may be noticed at once; then the message was read twice, and "failed: why" became
    "ended with status 0 before its cell was done"."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    ended, end = multiprocessing.Pipe(duplex=False)  # readable, as the sentinel of a process that has ended
    sender.send(("failed", "why"))
    sender.close()
    end.close()
    process = SimpleNamespace(sentinel=ended)
    outcome = Outcome("row", "column", tiny_spec("linear").plan("demo")[0].cell, "", "missing")
    at = grid._Running(process, receiver, ended, outcome, 0)
    assert grid._collect([at], Recorder()) == [at]
    assert at.message == ("failed", "why")


def _blas_threads(channel: Connection) -> None:
    import numpy as np
    from threadpoolctl import threadpool_info

    np.linalg.norm(np.ones((4, 4)) @ np.ones((4, 4)))
    channel.send([each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"])


def test_a_worker_computes_with_one_thread_whatever_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    # with as many threads as cores in each of two workers, logistic regressions of few-shot tasks took eight times
    # as long: a demo of two minutes took ten wherever OMP_NUM_THREADS was not set
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    context = grid._worker_context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_blas_threads, args=(sender,))
    process.start()
    found = receiver.recv()
    process.join()
    assert found and set(found) == {1}
    assert "OMP_NUM_THREADS" not in os.environ
