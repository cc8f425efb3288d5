"""What several commands do with a table: survey its cells, run what is missing, report."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmark.progress import say
from benchmark.result import FAILED, MISSING, Outcome
from benchmark.spec import SpecError, TableSpec
from benchmark.store import Store
from datamodules.names import unknown_name

if TYPE_CHECKING:
    from benchmark.report.model import Report


def survey_table(spec: TableSpec, profile: str, store: Store, **narrowed: Any) -> list[Outcome]:
    """The state in the store of each cell of ``spec`` under ``profile``, ``narrowed`` as for its plan; runs nothing."""
    from benchmark.grid import survey

    return survey(spec.plan(profile, **narrowed), store, warn=say)


def run_table(
    spec: TableSpec, profile: str, store: Store, options: argparse.Namespace, **narrowed: Any
) -> list[Outcome]:
    """Surveys, runs what is missing, and returns the state of every planned cell."""
    from benchmark.grid import GridOptions, default_jobs, run_grid
    from benchmark.progress import GridProgress

    outcomes = survey_table(spec, profile, store, **narrowed)
    missing = {at.digest for at in outcomes if at.status in (MISSING, FAILED)}
    if not missing:
        return outcomes
    jobs = min(options.jobs or default_jobs(gpu_count()), len(missing))
    store.require_writable()
    say(f"{spec.table}, profile {profile}: {len(missing)} cell(s) to run, {jobs} at a time; results in {store.root}")
    grid = GridOptions(jobs, options.executor, options.fail_fast, num_workers=options.workers)
    with GridProgress(len(missing)) as progress:
        return run_grid(outcomes, store, grid, progress)


def report_of(spec: TableSpec, profile: str, outcomes: Sequence[Outcome], pairs: Sequence[dict[str, Any]]) -> Report:
    """The report of a table, with the audit of each data set in it and, on the paper's data, its claims' verdicts."""
    from benchmark.audits import audit_notes
    from benchmark.claims import claim_notes, evaluate_claims
    from benchmark.report import build_report

    notes = audit_notes({at.cell.dataset for at in outcomes})
    if spec.profile(profile).is_papers_data:
        notes += claim_notes(evaluate_claims(spec, profile, outcomes, pairs))
    return build_report(spec.under(profile), profile, outcomes, notes, printed=spec.columns)


def pairs_of_table(
    spec: TableSpec, outcomes: Sequence[Outcome], store: Store, *, compute: bool, failed: list[str] | None = None
) -> list[dict[str, Any]]:
    """What the probes say of pairs of trained models; computed once, if asked to, and kept in the store.

    A line for each that failed is added to ``failed``.
    """
    if spec.figure is None or spec.figure.form != "pairs":
        return []
    from benchmark.pairs import probe_pairs

    def tell(text: str) -> None:
        say(f"{spec.table}: {text}")

    lost: list[str] = [] if failed is None else failed
    return probe_pairs(spec, outcomes, store, on_progress=tell, on_failure=lost.append, compute=compute)


def check_executor(name: str) -> None:
    """Raises SpecError, with near names, unless there is an executor ``name``."""
    from benchmark.grid import EXECUTORS

    if name not in EXECUTORS:
        raise SpecError(unknown_name("executor", name, EXECUTORS))


def gpu_count() -> int:
    """GPUs that torch sees."""
    import torch

    return torch.cuda.device_count()
