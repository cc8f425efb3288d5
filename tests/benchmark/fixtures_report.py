"""A small table and outcomes with given numbers, for the tests of reports, claims and the gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmark.result import Outcome, Result
from benchmark.spec import Cell, TableSpec, digest_of

Numbers = Callable[[str, str, int], Mapping[str, float | None] | str]


def small_spec(**changes: Any) -> TableSpec:
    """Two rows, two columns, an accuracy and a loss; the first row has a paper value in the first column."""
    document: dict[str, Any] = {
        "table": "demo/small",
        "title": "A small table",
        "paper": {"key": "demo", "title": "A paper", "authors": "Someone", "year": 2020, "where": "Somewhere"},
        "metrics": [
            {"name": "test_accuracy", "label": "Accuracy"},
            {"name": "test_nll", "label": "Loss", "direction": "min"},
        ],
        "rows": [
            {
                "name": "first",
                "label": "First",
                "method": "cross_entropy",
                "values": {"easy": {"test_accuracy": 0.9}},
                "source": "Table 1",
                "note": "a note on the first row",
            },
            {"name": "second", "label": "Second", "method": "cross_entropy"},
        ],
        "columns": [
            {"name": "easy", "label": "Easy", "regime": "aggre"},
            {"name": "hard", "label": "Hard", "regime": "worst"},
        ],
        "references": [{"label": "Published", "source": "elsewhere", "values": {"easy": {"test_accuracy": 0.8777}}}],
        "profiles": {
            "cpu": {"dataset": "cifar10n", "seeds": 3, "train": {"max_epochs": 2}, "is_papers_data": True},
            "demo": {"dataset": "digits", "seeds": 3, "train": {"max_epochs": 1}},
        },
        "notes": ["a doubt about the source"],
        **changes,
    }
    return TableSpec.model_validate(document)


def result_of(cell: Cell, metrics: Mapping[str, float | None], **fields: Any) -> Result:
    """A result of ``cell`` with ``metrics``."""
    fields = {"notes": ("images are a copy",), "provenance": {"hardware": "a processor (2 cores)"}, **fields}
    return Result(digest="0", cell=cell, metrics=dict(metrics), **fields)


def outcomes_of(spec: TableSpec, profile: str, numbers: Numbers, seeds: int | None = None) -> list[Outcome]:
    """Outcomes of the planned cells; ``numbers(row, column, seed)`` gives metrics, or a status and reason.

    A text is ``"failed: why"``, ``"missing"`` or ``"n/a: why"``.
    """
    found = []
    for planned in spec.plan(profile, seeds=seeds):
        what = numbers(planned.row, planned.column, planned.cell.seed)
        if isinstance(what, str):
            status, _, reason = what.partition(": ")
            found.append(
                Outcome(planned.row, planned.column, planned.cell, "0", status, reason=reason)  # type: ignore[arg-type]
            )
        else:
            result = result_of(planned.cell, what)
            digest = digest_of(planned.cell.model_dump())
            found.append(Outcome(planned.row, planned.column, planned.cell, digest, "done", result))
    return found
