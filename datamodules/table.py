"""Checks and reading of annotation tables: what is wrong is named by row, with the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

COLUMNS = ("task", "worker", "label")


class AnnotationError(ValueError):
    """A table of annotations that cannot be used; the message names the row and the remedy."""


# --- triples ----------------------------------------------------------------------------------


def check_triples(
    items: Any, annotators: Any, labels: Any, n_items: int, n_annotators: int, n_classes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The triples as int64 tensors ``[n]``, ordered by item, then annotator.

    Args:
        items: item ids ``[n]``; tensor, array or list of whole numbers (annotators and labels likewise).
        annotators: annotator ids ``[n]``.
        labels: class ids ``[n]``.
        n_items: ids of items lie in ``[0, n_items)``; ``n_annotators`` and ``n_classes`` likewise.

    Raises:
        AnnotationError: for ids that are not whole, out of range or of other lengths, or a repeated pair.
    """
    sizes = {"item": n_items, "annotator": n_annotators, "label": n_classes}
    columns = {kind: _whole(kind, values) for kind, values in zip(sizes, (items, annotators, labels), strict=True)}
    lengths = {kind: len(column) for kind, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise AnnotationError(f"columns of lengths {lengths}; give one item, annotator and label a row")
    for kind, column in columns.items():
        _check_range(kind, column, sizes[kind])
    return _ordered(columns["item"], columns["annotator"], columns["label"], n_annotators)


def _whole(kind: str, values: Any) -> Tensor:
    if isinstance(values, np.ndarray) and not values.flags.writeable:
        values = values.copy()  # torch warns of memory that it may not write to
    try:
        column = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise AnnotationError(
            f"the {kind} column holds other things than numbers ({error}); give whole numbers, or read a table "
            "with names by Annotations.from_frame"
        ) from None
    if column.ndim != 1:
        raise AnnotationError(f"the {kind} column has shape {tuple(column.shape)}; it must have one axis")
    column = column.detach().cpu()
    if column.is_floating_point():
        broken = ~column.isfinite() | (column != column.round())
        if broken.any():
            row = int(broken.nonzero()[0])
            raise AnnotationError(
                f"row {row}: {kind} is {float(column[row])}, not a whole number; leave out what is missing"
            )
    return column.to(torch.int64)


def _check_range(kind: str, column: Tensor, size: int) -> None:
    outside = (column < 0) | (column >= size)
    if not outside.any():
        return
    row = int(outside.nonzero()[0])
    value = int(column[row])
    remedy = "leave out missing annotations" if value == -1 else "correct the row, or the number of them"
    raise AnnotationError(
        f"row {row}: {kind} is {value}; with {size} of them it must lie between 0 and {size - 1}; {remedy}"
    )


def _ordered(items: Tensor, annotators: Tensor, labels: Tensor, n_annotators: int) -> tuple[Tensor, Tensor, Tensor]:
    key = items * max(1, n_annotators) + annotators
    if bool((key[1:] > key[:-1]).all()):  # already in order: nothing is copied
        return items, annotators, labels
    key, order = key.sort(stable=True)
    repeated = (key[1:] == key[:-1]).nonzero()
    if len(repeated):
        first, second = int(order[repeated[0]]), int(order[repeated[0] + 1])
        raise AnnotationError(
            f"rows {first} and {second}: annotator {int(annotators[first])} labels item {int(items[first])} "
            "twice; keep one of the two"
        )
    return items[order], annotators[order], labels[order]


# --- tables -----------------------------------------------------------------------------------


def read_table(
    frame: Any,
    n_classes: int | None,
    classes: Sequence[Any] | None,
    items: Sequence[Any] | None,
    annotators: Sequence[Any] | None,
) -> dict[str, Any]:
    """The fields of ``Annotations`` from a table with the columns task, worker, label.

    Arguments and errors are those of ``Annotations.from_frame``. Rows are counted from 0, in the frame's
    order.
    """
    absent = [name for name in COLUMNS if name not in frame.columns]
    if absent:
        raise AnnotationError(
            f"no column {', '.join(absent)}; the table has {', '.join(map(str, frame.columns)) or 'none'}. "
            f"Rename its columns to {', '.join(COLUMNS)}"
        )
    doubled = [name for name in COLUMNS if list(frame.columns).count(name) > 1]
    if doubled:
        raise AnnotationError(f"two columns are called {', '.join(doubled)}; keep one, or rename the other")
    for name in COLUMNS:
        missing = np.flatnonzero(frame[name].isna().to_numpy())
        if len(missing):
            raise AnnotationError(f"row {missing[0]}: no {name}; delete the row, or fill it in")
    item_numbers, item_ids = _number("task", frame["task"], items)
    annotator_numbers, annotator_ids = _number("worker", frame["worker"], annotators)
    labels, size, class_ids = _classes(frame["label"], n_classes, classes)
    _check_repeated(frame, item_numbers, annotator_numbers)
    return {
        "items": torch.from_numpy(item_numbers),
        "annotators": torch.from_numpy(annotator_numbers),
        "labels": torch.from_numpy(labels),
        "n_items": len(item_ids),
        "n_annotators": len(annotator_ids),
        "n_classes": size,
        "item_ids": item_ids,
        "annotator_ids": annotator_ids,
        "class_ids": class_ids,
    }


def _number(column: str, values: Any, known: Sequence[Any] | None) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Numbers ``[n]`` of the values of a column, and the values in the order of their numbers."""
    if known is None:
        numbers, ids = pd.factorize(values, sort=True)
        return numbers.astype(np.int64), tuple(ids.tolist())
    index = pd.Index(list(known))
    if not index.is_unique:
        twice = index[index.duplicated()].tolist()[0]
        raise AnnotationError(f"{twice!r} is given twice as a {column}; list each once")
    numbers = index.get_indexer(pd.Index(values)).astype(np.int64)
    unknown = np.flatnonzero(numbers < 0)
    if len(unknown):
        row = int(unknown[0])
        what = "class" if column == "label" else column
        raise AnnotationError(
            f"row {row}: unknown {what} {_shown(values.iloc[row])}; there are {_some(index.tolist())}. "
            "Correct the row, or add it to them"
        )
    return numbers, tuple(index.tolist())


def _classes(
    values: Any, n_classes: int | None, classes: Sequence[Any] | None
) -> tuple[np.ndarray, int, tuple[Any, ...] | None]:
    """Class numbers ``[n]``, how many classes there are, and their names where labels are not 0..C-1."""
    if classes is not None and n_classes not in (None, len(classes)):
        raise AnnotationError(f"n_classes is {n_classes}, yet {len(classes)} classes are given; give one of them")
    values = values.infer_objects()  # whole numbers in an object column are numbers
    if classes is not None or not pd.api.types.is_numeric_dtype(values):
        numbers, ids = _number("label", values, classes)
        if n_classes is not None and len(ids) != n_classes:
            raise AnnotationError(
                f"{len(ids)} classes occur ({_some(list(ids))}) but n_classes is {n_classes}; "
                "give all of them, in order, as classes"
            )
        return numbers, len(ids), ids
    labels = _whole("label", values.to_numpy(dtype=np.float64 if values.dtype.kind == "f" else np.int64))
    size = n_classes if n_classes is not None else (int(labels.max()) + 1 if len(labels) else 1)
    _check_range("label", labels, size)
    return labels.numpy(), size, None


def _check_repeated(frame: Any, items: np.ndarray, annotators: np.ndarray) -> None:
    """Names the rows in the user's own ids, before the triples are put in order."""
    key = items * (int(annotators.max()) + 1 if len(annotators) else 1) + annotators
    order = key.argsort(kind="stable")
    repeated = np.flatnonzero(np.diff(key[order]) == 0)
    if len(repeated):
        first, second = int(order[repeated[0]]), int(order[repeated[0] + 1])
        raise AnnotationError(
            f"rows {first} and {second}: worker {_shown(frame['worker'].iloc[first])} labels task "
            f"{_shown(frame['task'].iloc[first])} twice; keep one of the two"
        )


def _shown(value: Any) -> str:
    """A value as its user wrote it: 5, not np.int64(5)."""
    return repr(value.item() if isinstance(value, np.generic) else value)


def _some(names: list[Any], most: int = 8) -> str:
    shown = ", ".join(repr(name) for name in names[:most]) or "none"
    return shown if len(names) <= most else f"{shown}, ... ({len(names)} in all)"
