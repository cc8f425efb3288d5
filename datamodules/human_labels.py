"""The label files and worker tables of CIFAR-10N and CIFAR-100N, read without unpickling and checked.

Source: Wei et al., "Learning with Noisy Labels Revisited: A Study Using Real-World Human Annotations",
ICLR 2022, https://github.com/UCSC-REAL/cifar-10-100n.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datamodules.files import describe_damage, locate


@dataclass(frozen=True)
class Published:
    """What a label array must look like, counted on the published file.

    Attributes:
        noise: share of labels that differ from the clean ones.
        counts: labels a class; empty: only the number of classes is checked.
        noise_tolerance: largest difference of the share that is accepted (an edited label or a few).
        count_tolerance: largest difference of a class's count that is accepted.
    """

    noise: float
    counts: tuple[int, ...] = ()
    noise_tolerance: float = 0.001
    count_tolerance: int = 25


@dataclass(frozen=True)
class Workers:
    """Who labelled what.

    Attributes:
        ids: worker of each slot and item ``[S, N]`` int64, numbered 0..R-1 in the order of the file's ids.
        n_workers: number of workers R.
    """

    ids: Tensor
    n_workers: int


# --- labels ---------------------------------------------------------------------------------------


def read_labels(dataset: str, keys: Sequence[str], n_classes: int, root: str | Path | None) -> dict[str, Tensor]:
    """Label arrays ``[N]`` int64 of the official file of ``dataset``; other keys are not looked at.

    The file is a pickle of NumPy arrays. It is loaded with ``weights_only=True`` and exactly the constructors
    that an int64 array needs, so that it cannot run code.

    Raises:
        DataNotFound: the file is not there.
        DataDamaged: it is empty, truncated, holds other objects, lacks a key, or has labels that are no class.
    """
    path = locate(dataset, "labels", root).paths[0]
    document = _load_arrays(dataset, path)
    return {key: _labels(dataset, path, document, key, n_classes) for key in keys}


def _load_arrays(dataset: str, path: Path) -> Mapping[str, Any]:
    # files written with NumPy 1 and with NumPy 2 ask for the same function under two names
    reconstruct = np.empty(0).__reduce__()[0]
    names = [(reconstruct, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    allowed = [*names, np.ndarray, np.dtype, np.dtypes.Int64DType]
    try:
        with torch.serialization.safe_globals(allowed):  # type: ignore[arg-type]
            document = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        what = f"cannot be read as a table of labels ({type(error).__name__})"
        raise describe_damage(dataset, "labels", path, what) from None
    if not isinstance(document, Mapping):
        raise describe_damage(dataset, "labels", path, f"holds a {type(document).__name__}, not named label arrays")
    return document


def _labels(dataset: str, path: Path, document: Mapping[str, Any], key: str, n_classes: int) -> Tensor:
    if key not in document:
        raise describe_damage(dataset, "labels", path, f"has no {key!r}, only {sorted(document)}")
    array = np.asarray(document[key])
    if array.ndim != 1 or array.dtype.kind not in "iu":
        what = f"has {key!r} of shape {array.shape} and type {array.dtype}, not a list of class numbers"
        raise describe_damage(dataset, "labels", path, what)
    outside = np.flatnonzero((array < 0) | (array >= n_classes))
    if len(outside):
        what = f"has the label {array[outside[0]]} in {key!r}, item {outside[0]}; classes are 0 to {n_classes - 1}"
        raise describe_damage(dataset, "labels", path, what)
    return torch.from_numpy(array.astype(np.int64))


def check_published(
    dataset: str, key: str, labels: Tensor, clean: Tensor, n_classes: int, published: Published, root: str | Path | None
) -> None:
    """Holds noise rate and class counts of ``labels [N]`` against the published ones.

    Raises:
        DataDamaged: saying what was found and what is known. A few edited labels pass; another label set,
            another order or another version of the file does not.
    """
    if len(labels) != len(clean):
        _refuse(dataset, f"has {len(labels)} labels in {key!r} but {len(clean)} clean ones", root)
    noise = float((labels != clean).double().mean())
    if abs(noise - published.noise) > published.noise_tolerance:
        known = f"the published one has {100 * published.noise:.2f} %"
        _refuse(dataset, f"has a noise rate of {100 * noise:.2f} % in {key!r}; {known}", root)
    counts = torch.bincount(labels, minlength=n_classes)
    present = int((counts > 0).sum())
    if present != n_classes:
        _refuse(dataset, f"has {present} classes in {key!r}; the published one has {n_classes}", root)
    if not published.counts:
        return
    gap = (counts - torch.tensor(published.counts)).abs()
    if int(gap.max()) > published.count_tolerance:
        found = f"has {counts.tolist()} labels a class in {key!r}"
        _refuse(dataset, f"{found}; the published one has {list(published.counts)}", root)


def _refuse(dataset: str, what: str, root: str | Path | None) -> None:
    raise describe_damage(dataset, "labels", locate(dataset, "labels", root).paths[0], what)


# --- workers --------------------------------------------------------------------------------------


def read_workers(dataset: str, columns: Sequence[str], n_items: int, root: str | Path | None) -> Workers:
    """Workers of every item from the official table, whose rows cover the items ``a--b`` in PyTorch order.

    Args:
        dataset: ``cifar10n`` or ``cifar100n``.
        columns: the column with the worker's id of each slot.
        n_items: number of items N; the rows must cover each exactly once.
        root: folder with the data.

    Raises:
        DataNotFound: the table is not there.
        DataDamaged: it is empty, cut off, or lacks a column; names the row or column.
    """
    path = locate(dataset, "workers", root).paths[0]
    try:
        first, last, raw = _read_table(path, columns)
    except (KeyError, ValueError, IndexError, csv.Error) as error:
        raise describe_damage(dataset, "workers", path, f"cannot be read as a table of workers ({error})") from None
    length = last - first + 1
    covered = np.repeat(first, length) + np.arange(length.sum()) - np.repeat(length.cumsum() - length, length)
    if not np.array_equal(np.sort(covered), np.arange(n_items)):
        what = f"covers {len(np.unique(covered))} items in {len(first)} rows instead of each of {n_items} once"
        raise describe_damage(dataset, "workers", path, what)
    known, numbers = np.unique(raw, return_inverse=True)
    ids = np.empty((len(columns), n_items), dtype=np.int64)
    ids[:, covered] = np.repeat(numbers.reshape(raw.shape), length, axis=1)
    return Workers(torch.from_numpy(ids), len(known))


def _read_table(path: Path, columns: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First and last item ``[rows]`` and worker ids ``[S, rows]``."""
    with path.open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["Image-batch"]]
    if not rows:
        raise ValueError("no rows")
    bounds = []
    for number, row in enumerate(rows):
        if None in row.values():
            raise ValueError(f"row {number} is incomplete")
        bounds.append([int(part) for part in row["Image-batch"].split("--")])
        if len(bounds[-1]) != 2 or bounds[-1][1] < bounds[-1][0]:
            raise ValueError(f"row {number}: {row['Image-batch']!r} is not a range of items")
    first, last = np.array(bounds).T
    return first, last, np.array([[int(row[column]) for row in rows] for column in columns])
