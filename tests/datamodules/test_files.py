"""Where files lie, how they arrive, and what is said when they are missing or damaged."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from datamodules import files
from datamodules.catalogue import KnownFile, Part
from datamodules.files import DataDamaged, DataNotFound, data_list, locate, prepare, verify

CONTENT = b"task,worker,label\n" + b"1,2,3\n" * 50
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the address under which a local server offers it."""
    folder = tmp_path / "served"
    folder.mkdir()
    server = HTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> KnownFile:
    """A data set ``toy`` of one file whose content is known here."""
    file = KnownFile("toy/table.pt", DIGEST, len(CONTENT), "http://127.0.0.1:9/table.pt", also=("table.pt",))
    part = Part("labels", "https://example.org/toy", "CC0", {"published": (file,)})
    monkeypatch.setitem(files.DATA, "toy", (part,))
    monkeypatch.delenv("ANNOBENCH_MIRROR", raising=False)
    return file


def _put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_missing_file_is_named_with_folder_source_and_accepted_names(tmp_path: Path) -> None:
    # check 16 (dragen1860/MAML-Pytorch#58): a dead link must not end in a bare "file not found"
    with pytest.raises(DataNotFound) as caught:
        locate("cifar10n", "images", tmp_path)
    message = str(caught.value)
    for part in (str(tmp_path), "cifar10/train.parquet", "cifar10/plain_text/train-00000-of-00001.parquet"):
        assert part in message
    assert "cifar-10-binary.tar.gz" in message and "https://www.cs.toronto.edu" in message
    assert isinstance(caught.value, FileNotFoundError)


def test_file_without_an_address_says_so_instead_of_offering_a_download(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match="put it there by hand") as caught:
        prepare("labelme", tmp_path)
    assert "prepare labelme" not in str(caught.value)


def test_empty_file_is_refused_with_path_digest_and_remedy(tmp_path: Path, toy: KnownFile) -> None:
    # check 11 (UCSC-REAL/cifar-10-100n#1): the label files were once published with 0 bytes
    path = _put(tmp_path / toy.path, b"")
    with pytest.raises(DataDamaged) as caught:
        locate("toy", "labels", tmp_path)
    message = str(caught.value)
    assert str(path) in message and DIGEST in message and "prepare" in message


@pytest.mark.parametrize(
    ("content", "status"),
    [(CONTENT, "ok"), (b"", "empty"), (CONTENT[:40], "truncated"), (CONTENT.replace(b"3", b"4"), "differs")],
)
def test_verify_tells_damage_apart(tmp_path: Path, toy: KnownFile, content: bytes, status: str) -> None:
    _put(tmp_path / toy.path, content)
    (state,) = verify("toy", tmp_path)
    assert state.status == status
    assert status == "ok" or DIGEST in state.detail


def test_verify_reports_a_missing_file_with_its_source(tmp_path: Path, toy: KnownFile) -> None:
    (state,) = verify("toy", tmp_path)
    assert (state.status, state.path) == ("missing", tmp_path / toy.path)
    assert "https://example.org/toy" in state.detail


def test_an_accepted_other_path_is_found(tmp_path: Path, toy: KnownFile) -> None:
    path = _put(tmp_path / "table.pt", CONTENT)
    assert locate("toy", "labels", tmp_path).paths == (path,)


@pytest.mark.parametrize("before", [None, b"", CONTENT[:40]], ids=["missing", "empty", "truncated"])
def test_prepare_fetches_what_is_missing_or_damaged(
    tmp_path: Path, toy: KnownFile, served: tuple[Path, str], before: bytes | None
) -> None:
    folder, address = served
    _put(folder / toy.path, CONTENT)
    if before is not None:
        _put(tmp_path / toy.path, before)
    (state,) = prepare("toy", tmp_path, mirror=address, progress=False)
    assert state.status == "ok"
    assert (tmp_path / toy.path).read_bytes() == CONTENT


def test_prepare_leaves_an_edited_file_alone(tmp_path: Path, toy: KnownFile, served: tuple[Path, str]) -> None:
    # a user's own edit of a label file must never be overwritten by a download
    folder, address = served
    _put(folder / toy.path, CONTENT)
    edited = CONTENT.replace(b"3", b"4")
    path = _put(tmp_path / toy.path, edited)
    (state,) = prepare("toy", tmp_path, mirror=address, progress=False)
    assert state.status == "differs" and path.read_bytes() == edited


def test_mirror_can_be_named_by_the_environment(
    tmp_path: Path, toy: KnownFile, served: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = served
    _put(folder / toy.path, CONTENT)
    monkeypatch.setenv("ANNOBENCH_MIRROR", address + "/")
    assert prepare("toy", tmp_path, progress=False)[0].status == "ok"


def test_download_with_another_digest_is_thrown_away(tmp_path: Path, toy: KnownFile, served: tuple[Path, str]) -> None:
    folder, address = served
    _put(folder / toy.path, CONTENT[:40])
    with pytest.raises(DataDamaged, match=DIGEST):
        prepare("toy", tmp_path, mirror=address, progress=False)
    assert not [path for path in (tmp_path / "toy").rglob("*") if path.is_file()]


def test_no_network_says_what_to_put_where(tmp_path: Path, toy: KnownFile) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = free.getsockname()[1]
    with pytest.raises(DataNotFound) as caught:
        prepare("toy", tmp_path, mirror=f"http://127.0.0.1:{closed}", progress=False)
    message = str(caught.value)
    assert "could not be downloaded" in message and toy.path in message and str(tmp_path) in message


def test_unknown_data_set_lists_near_names() -> None:
    with pytest.raises(ValueError, match="cifar10n"):
        verify("cifar10m")


def test_list_covers_every_data_set_with_source_and_licence(tmp_path: Path) -> None:
    listed = {str(entry["name"]): entry for entry in data_list(tmp_path)}
    assert listed["digits"]["status"] == "embedded"
    assert listed["cifar10n"]["status"] == "missing"
    for entry in listed.values():
        for part in entry["parts"]:  # type: ignore[attr-defined]
            assert part["source"] and part["licence"]


def test_every_known_file_has_a_whole_sha256() -> None:
    unreleased = ("street", "amer")  # nobody can download these, so no digest is published
    for name, parts in files.DATA.items():
        for part in parts:
            for file in (file for option in part.options.values() for file in option):
                assert (file.sha256 == "") == (name in unreleased)
                for digest in (file.sha256, *file.copies) if file.sha256 else file.copies:
                    assert len(digest) == 64 and int(digest, 16)


def test_names_and_files_are_listed_without_torch() -> None:
    # `annobench list` must answer at once: importing torch alone takes seconds
    code = "import sys, datamodules.files, datamodules.regimes; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_real_files_are_the_published_ones(real_data: Path) -> None:
    for name in ("cifar10n", "cifar100n", "labelme"):
        assert {state.status for state in verify(name, real_data)} == {"ok"}


def test_folder_that_cannot_be_written_is_named(tmp_path: Path, toy: KnownFile, served: tuple[Path, str]) -> None:
    # data folders are often read-only; a file in the folder's place fails for every user alike, root included
    folder, address = served
    _put(folder / toy.path, CONTENT)
    blocked = _put(tmp_path / "blocked", b"not a folder")
    with pytest.raises(DataNotFound, match=r"cannot write .*ANNOBENCH_DATA"):
        prepare("toy", blocked, mirror=address, progress=False)
