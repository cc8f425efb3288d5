"""Nothing half written, nothing lost."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from benchmark.result import Result
from benchmark.spec import Cell, TrainArgs
from benchmark.store import Store, StoreError

CELL = Cell(method="m", dataset="d", regime="r", seed=0, train=TrainArgs(max_epochs=1), profile="demo")


def result(digest: str = "abc", accuracy: float = 0.5) -> Result:
    return Result(digest=digest, cell=CELL, metrics={"test_accuracy": accuracy, "undefined": float("nan")})


def test_what_was_saved_is_loaded_and_nan_comes_back_as_none(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(result(), write_weights=lambda path: path.write_bytes(b"weights"))  # type: ignore[arg-type, return-value]
    loaded = store.load(CELL, "abc")
    assert loaded is not None
    assert loaded.metrics == {"test_accuracy": 0.5, "undefined": None}
    assert (store.folder(CELL, "abc") / "weights.pt").read_bytes() == b"weights"


def test_a_failure_while_writing_leaves_no_folder_behind(tmp_path: Path) -> None:
    def full_disk(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("no space left on device")

    store = Store(tmp_path)
    with pytest.raises(OSError, match="no space"):
        store.save(result(), write_weights=full_disk)
    assert store.load(CELL, "abc") is None
    assert list((tmp_path / "cells").rglob("*.*")) == []


@pytest.mark.parametrize("damage", ["", "{", '{"digest": "abc"}', '{"digest": "other"}'])
def test_one_damaged_record_is_set_aside_and_the_others_stay(tmp_path: Path, damage: str) -> None:
    # mteb#3916: one malformed record made the whole cache unusable
    store, said = Store(tmp_path), []
    store.save(result("abc"))
    store.save(result("def"))
    (store.folder(CELL, "abc") / "result.json").write_text(damage)
    assert store.load(CELL, "abc", said.append) is None
    assert "will run again" in said[0]
    assert len(list((tmp_path / "quarantine").iterdir())) == 1
    assert store.load(CELL, "def") is not None
    store.save(result("abc"))
    assert store.load(CELL, "abc") is not None


def test_a_result_that_appears_while_it_is_looked_for_is_not_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `status` in the moment in which a worker moved its folder into place took the new result for half of one
    store, whole, late = Store(tmp_path), Path.read_text, []

    def read(path: Path, **arguments: str) -> str:
        if not late:
            late.append(path)
            store.save(result())
            raise FileNotFoundError(path)
        return whole(path, **arguments)

    monkeypatch.setattr(Path, "read_text", read)
    assert store.load(CELL, "abc") is not None
    assert not (tmp_path / "quarantine").exists()


def test_a_record_that_may_not_be_read_is_not_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # too many open files, a wrong owner: what is wrong is not the record
    store = Store(tmp_path)
    store.save(result())
    with monkeypatch.context() as patch:

        def refused(path: Path, **_: str) -> str:
            raise PermissionError(13, "Permission denied", str(path))

        patch.setattr(Path, "read_text", refused)
        with pytest.raises(StoreError, match=r"result.json cannot be read \(Permission denied\)"):
            store.load(CELL, "abc")
    assert store.load(CELL, "abc") is not None


def test_a_failure_is_never_a_result_and_success_removes_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save_failure(CELL, "abc", "RuntimeError: cold", "Traceback ...")
    assert store.load(CELL, "abc") is None
    failure = store.failure("abc")
    assert failure is not None and failure["error"] == "RuntimeError: cold"
    store.save(result())
    assert store.failure("abc") is None


def _save_for_ever(root: Path) -> None:
    store = Store(root)
    while True:
        with store.lock("abc"):
            store.sweep(CELL, "abc")
            store.save(result(), write_weights=lambda path: path.write_bytes(os.urandom(100_000)))  # type: ignore[arg-type, return-value]


def test_killing_a_writer_at_any_moment_leaves_a_whole_result_or_none(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for delay in (0.005, 0.011, 0.017, 0.03, 0.05):
        writer = context.Process(target=_save_for_ever, args=(tmp_path,))
        writer.start()
        time.sleep(delay)
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        store, said = Store(tmp_path), []
        loaded = store.load(CELL, "abc", said.append)
        assert said == []
        assert loaded is None or (store.folder(CELL, "abc") / "weights.pt").stat().st_size == 100_000
        with store.lock("abc"):
            store.sweep(CELL, "abc")
        assert not list((tmp_path / "cells").rglob("*.tmp"))


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"", b"[]", b'{"error": 3}', b'{"cell": {}}'])
def test_a_damaged_failure_record_is_still_a_failure(tmp_path: Path, damage: bytes) -> None:
    # bytes that are not UTF-8, or an error that is no text, made a traceback of every command on the table
    store = Store(tmp_path)
    store.save_failure(CELL, "abc", "E: x", "trace")
    (tmp_path / "failures" / "abc.json").write_bytes(damage)
    assert store.failure("abc") == {"error": "the record of this failure cannot be read", "trace": ""}


def test_a_damaged_record_that_cannot_be_moved_away_is_missing_and_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # another user's results folder: reading it must not depend on the right to tidy it up
    store, said = Store(tmp_path), []
    store.save(result("abc"))
    (store.folder(CELL, "abc") / "result.json").write_text("{")

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rename", denied)
    assert store.load(CELL, "abc", said.append) is None
    assert "nor moved away (Permission denied)" in said[0]


def test_a_results_folder_that_cannot_be_used_says_what_to_do(tmp_path: Path) -> None:
    # a file in its place gave "[Errno 20] Not a directory: .../quarantine"
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is not a folder; name another results folder"):
        Store(tmp_path / "file")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "locks").write_text("")
    with pytest.raises(StoreError, match="odd cannot be written .*make room"):
        Store(tmp_path / "odd").require_writable()
    store = Store(tmp_path / "good")
    store.require_writable()
    assert not list(store.root.rglob(".*"))


def test_a_log_that_cannot_be_written_does_not_end_a_grid(tmp_path: Path) -> None:
    # a full disk: the line of the log raised in the parent, and all cells that were still to run were lost
    (tmp_path / "log.jsonl").mkdir()
    Store(tmp_path).log("cell")
