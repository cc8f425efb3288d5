"""How far chance in the choice of target tasks moves a few-shot accuracy: standard errors over tasks."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from statistics import fmean, median, stdev

from benchmark.report.statistics import present
from benchmark.result import DONE, Outcome
from benchmark.spec import TableSpec

Places = dict[tuple[str, str, int], list[float]]


def task_notes(spec: TableSpec, outcomes: Sequence[Outcome]) -> list[str]:
    """One sentence on the standard errors over the target tasks of a seed; empty where nothing was measured on tasks.

    ± in a table is over training seeds. Rows are measured on the same tasks, so the error of a difference is that of
    the paired one.
    """
    found = {place: values for at in outcomes for place, values in _places(spec, at)}
    errors = [_error(values) for values in found.values()]
    if not errors:
        return []
    n_tasks = " or ".join(map(str, sorted({len(values) for values in found.values()})))
    text = (
        f"± is over training seeds, each with target tasks of its own. Over the {n_tasks} tasks of one seed the "
        f"standard error of an accuracy is {_range(errors)}"
    )
    paired = _paired(spec, found)
    if paired:
        text += f", that of its difference from the row compared with {_range(paired)}"
    return [f"{text}."]


def task_accuracies(spec: TableSpec, outcome: Outcome, metric: str) -> list[float] | None:
    """Accuracy of each target task behind ``metric`` in this place, over its shares of spammers; None without any."""
    if outcome.status != DONE or outcome.result is None:
        return None
    before = next(column.prefix for column in spec.columns if column.name == outcome.column)
    after = next(row.prefix for row in spec.rows if row.name == outcome.row) + metric
    pattern = re.compile(rf"{re.escape(before) or 'r[0-9]+_'}(?:s([0-9]+)_)?{re.escape(after)}")
    beyond = {str(round(100 * share)) for share in outcome.cell.data_args.get("shares_beyond", ())}
    arrays = [
        present(values)
        for name, values in outcome.result.arrays.items()
        if (match := pattern.fullmatch(name)) and match[1] not in beyond
    ]
    lengths = {len(values) for values in arrays}
    if len(lengths) != 1 or min(lengths) < 2:
        return None
    return [fmean(task) for task in zip(*arrays, strict=True)]


def _places(spec: TableSpec, outcome: Outcome) -> list[tuple[tuple[str, str, int], list[float]]]:
    found = []
    for metric in spec.metrics:
        values = task_accuracies(spec, outcome, metric.name)
        if values is not None:
            found.append(((outcome.row, f"{outcome.column}/{metric.name}", outcome.cell.seed), values))
    return found


def _paired(spec: TableSpec, found: Places) -> list[float]:
    if spec.compare is None:
        return []
    errors = []
    for (row, place, seed), values in found.items():
        reference = found.get((spec.compare.reference, place, seed))
        if row != spec.compare.reference and reference is not None and len(reference) == len(values):
            errors.append(_error([one - other for one, other in zip(values, reference, strict=True)]))
    return errors


def _error(values: Sequence[float]) -> float:
    return stdev(values) / math.sqrt(len(values))


def _range(errors: Sequence[float]) -> str:
    return f"{min(errors):.3f} to {max(errors):.3f} (median {median(errors):.3f})"
