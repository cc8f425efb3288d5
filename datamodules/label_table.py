"""Tables with one row an item and one column an annotator, as STREET and AMER come."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from datamodules.files import describe_damage, locate

_NUMBERED = re.compile(r"\((\d+)\)")


class LabelTable(NamedTuple):
    """A table as it was read.

    Attributes:
        path: the file.
        names: name of each item.
        labels: each annotator's labels ``[N, R]`` int64, -1 where there is none.
    """

    path: Path
    names: list[str]
    labels: Tensor


def read_label_table(
    dataset: str, root: str | Path | None, columns: Sequence[str], scale: Mapping[str, int]
) -> LabelTable:
    """The part ``labels`` of ``dataset``: a CSV with a column ``name`` and one an annotator.

    Args:
        dataset: its name.
        root: folder with the data.
        columns: the annotators' columns, in order.
        scale: what may stand in them -> its class. An empty place, ``nan`` too, means no label; whole numbers may
            be written as 2 or 2.0, words in any case.

    Raises:
        DataNotFound: the file is not there.
        DataDamaged: it is empty or no table, a column is missing, an item has no name or comes twice, or a label is
            not on the scale; names the line and the column.
    """
    path = locate(dataset, "labels", root).paths[0]
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False, skipinitialspace=True)
    except Exception as error:
        what = f"cannot be read as a table ({type(error).__name__}: {error})"
        raise describe_damage(dataset, "labels", path, what) from None
    absent = [name for name in ("name", *columns) if name not in table.columns]
    if absent:
        what = f"has no column {', '.join(absent)}; it has {', '.join(map(str, table.columns))}"
        raise describe_damage(dataset, "labels", path, what)
    names = [str(name).strip() for name in table["name"]]
    _check_names(dataset, path, names)
    if not names:
        raise describe_damage(dataset, "labels", path, "has no row below its header")
    labels = np.stack([_classes(dataset, path, name, table[name], scale) for name in columns], axis=1)
    return LabelTable(path, names, torch.from_numpy(labels))


def find_items(dataset: str, table: LabelTable, folder: Path, endings: Sequence[str]) -> list[Path]:
    """The file of each item of ``table`` in ``folder``: its name as it stands, or with one of ``endings``.

    A name with a number in brackets may be that of a file with the number after an underscore, ``photo(7)`` that of
    ``photo_7``: the released scripts rename so.

    Raises:
        DataDamaged: an item has no file, one that another item has too, or a name that leads out of the folder; names
            the line.
    """
    lines: dict[Path, int] = {}
    for row, name in enumerate(table.names):
        names = dict.fromkeys((name, _NUMBERED.sub(r"_\1", name)))
        choices = [folder / f"{called}{ending}" for called in names for ending in ("", *endings)]
        path = next((choice for choice in choices if choice.is_file()), None)
        if path is None or not path.resolve().is_relative_to(folder.resolve()):
            what = f"line {row + 2}: no file of {name!r} in {folder} (with or without {', '.join(endings)})"
            raise describe_damage(dataset, "labels", table.path, what)
        if path in lines:
            what = f"lines {lines[path]} and {row + 2} are both of the file {path.name}"
            raise describe_damage(dataset, "labels", table.path, what)
        lines[path] = row + 2
    return list(lines)


def _check_names(dataset: str, path: Path, names: list[str]) -> None:
    seen: dict[str, int] = {}
    for row, name in enumerate(names):
        if not name:
            raise describe_damage(dataset, "labels", path, f"line {row + 2} has no name")
        if name in seen:
            what = f"lines {seen[name] + 2} and {row + 2} are both of {name!r}"
            raise describe_damage(dataset, "labels", path, what)
        seen[name] = row


def _classes(dataset: str, path: Path, column: str, values: pd.Series, scale: Mapping[str, int]) -> np.ndarray:
    classes = np.full(len(values), -1, dtype=np.int64)
    for row, value in enumerate(values):
        text = str(value).strip().lower().removesuffix(".0")
        if text in ("", "nan"):
            continue
        if text not in scale:
            what = f"line {row + 2}, column {column}: {value!r} is none of {', '.join(scale)}"
            raise describe_damage(dataset, "labels", path, what)
        classes[row] = scale[text]
    return classes
