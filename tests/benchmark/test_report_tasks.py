"""Standard errors over target tasks: by hand, and silence where nothing was measured on tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmark.registry import method_class, methods, table_spec
from benchmark.report.notes import NEVER_TRAINED, fact_lines
from benchmark.report.tasks import task_accuracies, task_notes
from benchmark.result import Outcome
from tests.benchmark.fixtures_report import outcomes_of, small_spec

ARRAYS = {
    "r3_s10_em_accuracy": [1.0, 0.5, 0.75],
    "r3_s20_em_accuracy": [0.5, 0.5, 0.25],
    "r3_s50_em_accuracy": [0.0, 0.0, 0.0],  # a share beyond those of the mean
    "r5_s10_em_accuracy": [0.1, 0.1, 0.1],
}


def _outcomes(arrays: dict[str, list[float]]) -> list[Outcome]:
    spec = table_spec("meta-em/table1")
    return [
        replace(each, result=each.result and each.result.model_copy(update={"arrays": arrays}))
        for each in outcomes_of(spec, "cpu", lambda *_: {"r3_em_accuracy": 0.5}, seeds=1)
        if (each.row, each.column) in {("meta_em", "k1r3"), ("without", "k1r3")}
    ]


def test_tasks_are_averaged_over_the_shares_of_the_mean_and_no_others() -> None:
    spec = table_spec("meta-em/table1")
    outcome = _outcomes(ARRAYS)[0]
    assert task_accuracies(spec, outcome, "accuracy") == pytest.approx([0.75, 0.5, 0.5])


def test_the_note_gives_the_error_of_an_accuracy_and_of_a_paired_difference() -> None:
    (note,) = task_notes(table_spec("meta-em/table1"), _outcomes(ARRAYS))
    # the deviation of 0.75, 0.5, 0.5 is 0.1443, its error 0.0833; both rows hold the same values here
    assert "Over the 3 tasks" in note and "0.083 to 0.083" in note and "0.000 to 0.000" in note


def test_tables_without_tasks_say_nothing() -> None:
    spec = small_spec()
    assert task_notes(spec, outcomes_of(spec, "cpu", lambda *_: {"test_accuracy": 0.5})) == []


def test_methods_that_are_never_trained_are_said_to_have_no_epochs() -> None:
    untrained = {name for name in methods() if not getattr(method_class(name), "needs_training", True)}
    assert untrained == NEVER_TRAINED
    spec = table_spec("meta-em/table1")
    outcomes = outcomes_of(spec, "cpu", lambda *_: {"r3_em_accuracy": 0.5}, seeds=1)
    (epochs,) = [line for line in fact_lines(spec, "cpu", outcomes) if line.startswith("Epochs")]
    assert "Logistic" not in epochs and "5 in MAML" in epochs
