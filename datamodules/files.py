"""Where data files lie, how they are fetched and whether they are what they should be. Imports no torch.

Every known file has a SHA-256 in :mod:`datamodules.catalogue`, independent of the server it comes from. Nothing
here opens a file's content: reading belongs to the data modules.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from datamodules.catalogue import DATA, KnownFile, Part
from datamodules.names import unknown_name

Status = Literal["ok", "differs", "missing", "empty", "truncated"]


class DataError(Exception):
    """Data that cannot be used; the message says which file, what is wrong and what to do."""


class DataNotFound(DataError, FileNotFoundError):
    """A file that is not there: the message lists accepted file names, the folder and the source."""


class DataDamaged(DataError, ValueError):
    """A file that is empty, truncated or not what its name says."""


@dataclass(frozen=True)
class Located:
    """Files found for one part: which of its options, and their paths in the order stated there."""

    option: str
    paths: tuple[Path, ...]


@dataclass(frozen=True)
class FileState:
    """One file as :func:`verify` or :func:`prepare` found it.

    Attributes:
        path: where it lies, or where it should lie if missing.
        status: ``ok``, ``differs``, ``missing``, ``empty`` or ``truncated``.
        detail: one sentence: which copy it is, or expected and found digest, or the source.
    """

    path: Path
    status: Status
    detail: str


def data_root(root: str | Path | None = None) -> Path:
    """The folder with the data: ``root``, else ``$ANNOBENCH_DATA``, else ``~/.cache/annobench``."""
    return Path(root or os.environ.get("ANNOBENCH_DATA") or "~/.cache/annobench").expanduser()


def cache_root() -> Path:
    """The folder for decoded images: ``$ANNOBENCH_CACHE``, else ``~/.cache/annobench/decoded``."""
    return Path(os.environ.get("ANNOBENCH_CACHE") or "~/.cache/annobench/decoded").expanduser()


def parts_of(dataset: str) -> tuple[Part, ...]:
    """The parts of ``dataset``; ValueError lists near names."""
    if dataset not in DATA:
        raise ValueError(unknown_name("data set", dataset, DATA))
    return DATA[dataset]


def sha256_of(path: Path) -> str:
    """SHA-256 (hex) of a file, computed once per process for the same path, size and time of change."""
    stat = path.stat()
    return _sha256(str(path), stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=256)
def _sha256(path: str, size: int, changed_ns: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def locate(dataset: str, role: str, root: str | Path | None = None) -> Located:
    """The files of one part of a data set, under the first option of which all are there.

    Args:
        dataset: name of the data set.
        role: the part: ``images``, ``labels``, ``workers``, ``features``.
        root: folder with the data; see :func:`data_root`.

    Raises:
        DataNotFound: where no option is complete; lists file names, folder and source.
        DataDamaged: where a file is empty.
    """
    part = next(part for part in parts_of(dataset) if part.role == role)
    folder = data_root(root)
    found = _complete_option(part, folder)
    if found is None:
        raise DataNotFound(_not_found(dataset, part, folder))
    for file, path in zip(part.options[found.option], found.paths, strict=True):
        if path.stat().st_size == 0:
            raise DataDamaged(damage(path, "is empty (0 bytes)", file.sha256))
    return found


def damage(path: Path, what: str, expected: str) -> str:
    """One message for a file that cannot be used: path, what is wrong, expected SHA-256, remedy."""
    if not expected:
        return f"{path} {what}. Remedy: correct that place, or copy the file there as its authors gave it out"
    return (
        f"{path} {what}. Expected SHA-256: {expected}; found: {sha256_of(path)}. "
        "Remedy: delete it and run `annobench data prepare` for this data set, or copy the published file there"
    )


def describe_damage(dataset: str, role: str, path: Path, what: str) -> DataDamaged:
    """The error for a file of a known part that cannot be read or holds something else.

    A file shorter than the published one is called truncated.
    """
    part = next(part for part in parts_of(dataset) if part.role == role)
    files = [file for option in part.options.values() for file in option]
    known = next((file for file in files if any(path.match(accepted) for accepted in file.accepted)), files[0])
    if _is_cut_short(path, known):
        what = f"{what} (it has {path.stat().st_size} bytes of the published {known.size}: truncated)"
    return DataDamaged(damage(path, what, known.sha256))


def verify(dataset: str, root: str | Path | None = None) -> list[FileState]:
    """Every file of ``dataset`` against its known digests, in the option that is there (else the first)."""
    folder = data_root(root)
    states = []
    for part in parts_of(dataset):
        found = _complete_option(part, folder)
        option = found.option if found else next(iter(part.options))
        states += [_state(file, folder, part) for file in part.options[option]]
    return states


def prepare(
    dataset: str, root: str | Path | None = None, *, mirror: str | None = None, progress: bool | None = None
) -> list[FileState]:
    """Fetches what is missing, empty or truncated and verifies all of it.

    A file that is there and merely differs (another encoding, an edited copy) is left alone and reported.
    A download arrives under a temporary name and is moved into place only if its SHA-256 is the known one,
    so that an interrupted one leaves nothing behind; the next call fetches only what is still missing.

    Args:
        dataset: name of the data set.
        root: folder for the data; see :func:`data_root`.
        mirror: base URL that serves the files under the same paths as the data folder; default
            ``$ANNOBENCH_MIRROR``, else every file's own source.
        progress: show a progress bar; default: where standard error is a terminal.

    Raises:
        DataNotFound: a file that cannot be fetched: no address, no network, no right to write.
        DataDamaged: a download whose SHA-256 is not the known one.
    """
    folder = data_root(root)
    base = mirror or os.environ.get("ANNOBENCH_MIRROR") or ""
    show = sys.stderr.isatty() if progress is None else progress
    for part in parts_of(dataset):
        found = _complete_option(part, folder)
        option = found.option if found else next(iter(part.options))
        for file in part.options[option]:
            if _state(file, folder, part).status in ("missing", "empty", "truncated"):
                _fetch(dataset, part, file, folder, base, show)
    return verify(dataset, root)


def data_list(root: str | Path | None = None) -> list[dict[str, object]]:
    """One entry a data set: name, whether it is here, folder, files looked for, sources and licences."""
    folder = data_root(root)
    return [
        {
            "name": name,
            "status": _presence(parts, folder),
            "folder": str(folder),
            "parts": [
                {
                    "role": part.role,
                    "files": {option: [file.path for file in files] for option, files in part.options.items()},
                    "source": part.source,
                    "licence": part.licence,
                }
                for part in parts
            ],
        }
        for name, parts in DATA.items()
    ]


# --- within ---------------------------------------------------------------------------------------


def _presence(parts: tuple[Part, ...], folder: Path) -> str:
    if not parts:
        return "embedded"
    return "present" if all(_complete_option(part, folder) for part in parts) else "missing"


def _find(file: KnownFile, folder: Path) -> Path | None:
    return next((folder / path for path in file.accepted if (folder / path).is_file()), None)


def _complete_option(part: Part, folder: Path) -> Located | None:
    for option, files in part.options.items():
        paths = [_find(file, folder) for file in files]
        present = tuple(path for path in paths if path is not None)
        if len(present) == len(files):
            return Located(option, present)
    return None


def _not_found(dataset: str, part: Part, folder: Path) -> str:
    choices = "; or ".join(
        ", ".join(" (or ".join(file.accepted) + ")" * len(file.also) for file in files)
        for files in part.options.values()
    )
    downloadable = all(file.url for file in next(iter(part.options.values())))
    fetch = (
        f"run `annobench data prepare {dataset}`, or put them there by hand" if downloadable else "put it there by hand"
    )
    return (
        f"{dataset}: no {part.role} found. Looked in {folder} for: {choices}. Source: {part.source}. "
        f"Remedy: {fetch}, or point ANNOBENCH_DATA at the folder that has them"
    )


def _state(file: KnownFile, folder: Path, part: Part) -> FileState:
    path = _find(file, folder)
    if path is None:
        return FileState(folder / file.path, "missing", f"source: {part.source}")
    size = path.stat().st_size
    if size == 0:
        return FileState(path, "empty", f"0 bytes; expected SHA-256 {file.sha256 or 'unknown'}")
    if not file.sha256:
        return FileState(path, "ok", "is there; no SHA-256 of it is published")
    found = sha256_of(path)
    if found == file.sha256:
        return FileState(path, "ok", "has its known SHA-256")
    if found in file.copies:
        return FileState(path, "ok", file.copies[found])
    expected = f"expected SHA-256 {file.sha256}, found {found}"
    if _is_cut_short(path, file):
        return FileState(path, "truncated", f"{size} of {file.size} bytes; {expected}")
    return FileState(path, "differs", expected)


#: bytes that stand near the end of every whole file of a format
_END_MARKS = {".parquet": b"PAR1", ".pt": b"PK\x05\x06", ".zip": b"PK\x05\x06", ".npz": b"PK\x05\x06"}


def _is_cut_short(path: Path, file: KnownFile) -> bool:
    """Shorter than published and without its format's end mark. An edited text file is never called so."""
    size = path.stat().st_size
    if size >= file.size or path.suffix == ".csv":
        return False
    mark = _END_MARKS.get(path.suffix)
    with path.open("rb") as stream:
        stream.seek(-min(64, size), os.SEEK_END)
        return mark is None or mark not in stream.read()


def _fetch(dataset: str, part: Part, file: KnownFile, folder: Path, base: str, progress: bool) -> None:
    import pooch
    import requests

    url = f"{base.rstrip('/')}/{file.path}" if base else file.url
    if not url:
        raise DataNotFound(_not_found(dataset, part, folder))
    target = _find(file, folder) or folder / file.path
    pooch.get_logger().setLevel("WARNING")
    try:
        pooch.retrieve(
            url,
            known_hash=f"sha256:{file.sha256}",
            fname=target.name,
            path=target.parent,
            downloader=pooch.HTTPDownloader(progressbar=progress, timeout=60),
        )
    except requests.RequestException as error:
        raise DataNotFound(f"{url} could not be downloaded ({error}). {_not_found(dataset, part, folder)}") from None
    except OSError as error:
        raise DataNotFound(
            f"cannot write {target} ({error}). Remedy: point ANNOBENCH_DATA at a folder that you may write to"
        ) from None
    except ValueError as error:
        raise DataDamaged(
            f"{url} sent a file whose SHA-256 is not the known {file.sha256} ({error}); it was thrown away. "
            f"Remedy: try again, or take the file from {part.source} and put it at {target}"
        ) from None
