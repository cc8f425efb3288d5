"""What each command of :mod:`benchmark.cli` does; every function takes the parsed options, returns the exit status."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark import registry
from benchmark.progress import say
from benchmark.result import DONE, FAILED, MISSING, NOT_APPLICABLE, Outcome
from benchmark.spec import SpecError, TableSpec
from benchmark.store import Store
from datamodules.names import unknown_name

if TYPE_CHECKING:
    from benchmark.report.model import Report

# --- names ------------------------------------------------------------------------------------------


def list_names(options: argparse.Namespace) -> int:
    """``annobench list``: names and where they come from."""
    if options.kind == "regimes":
        entries = registry.regimes()
    else:
        entries = list(getattr(registry, options.kind)().values())
    if options.json:
        _print_json([{"name": at.name, "source": at.source, "summary": at.summary} for at in entries])
    else:
        _print_columns([(at.name, at.source, at.summary) for at in entries])
    return 0


# --- tables -----------------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> int:
    """``annobench run``: what is missing of each table, then the tables."""
    from datamodules.files import DataError

    specs = [registry.table_with(name, options.methods) for name in options.tables]
    _check_executor(options.executor)
    complete = True
    for spec in specs:
        profile = options.profile or _default_profile(spec)
        store = Store(options.results)
        try:
            complete = _run_and_write(spec, profile, store, options) and complete
        except DataError as error:
            # data that one table lacks must not keep the others from being made
            if len(specs) == 1 or options.fail_fast:
                raise
            say(f"{spec.table}: left out; {error}")
            complete = False
    return 0 if complete else 1


def _run_and_write(spec: TableSpec, profile: str, store: Store, options: argparse.Namespace) -> bool:
    """Runs what is missing of one table and writes it; whether all of it is done."""
    outcomes = _run_table(
        spec, profile, store, options, seeds=options.seeds, methods=options.methods, columns=options.columns
    )
    beside = _beside(spec, profile, store, outcomes, options.seeds)
    failed = _write_and_print(spec, profile, [*outcomes, *beside], options)
    return _tell_incomplete(outcomes, options) and not failed


def table(options: argparse.Namespace) -> int:
    """``annobench table``: a table from the store."""
    from benchmark.report import render

    spec = registry.table_with(options.table, options.methods)
    profile = options.profile or _default_profile(spec)
    store = Store(options.results)
    outcomes = _survey(spec, profile, store, seeds=options.seeds, methods=options.methods)
    outcomes += _beside(spec, profile, store, outcomes, options.seeds)
    pairs = _pairs(spec, outcomes, store, compute=False)
    print(render(_report(spec, profile, outcomes, pairs), options.format), end="")
    return 0


def status(options: argparse.Namespace) -> int:
    """``annobench status``: how far a table is."""
    spec = registry.table_with(options.table, options.methods)
    profile = options.profile or _default_profile(spec)
    outcomes = _survey(spec, profile, Store(options.results), seeds=options.seeds, methods=options.methods)
    counts = {state: sum(at.status == state for at in outcomes) for state in (DONE, FAILED, MISSING)}
    if options.json:
        cells = [
            {
                "row": at.row,
                "column": at.column,
                "seed": at.cell.seed,
                "digest": at.digest,
                "status": at.status,
                "reason": at.reason,
            }
            for at in outcomes
        ]
        _print_json({"table": spec.table, "profile": profile, **counts, "cells": cells})
    else:
        print(f"{spec.table}, profile {profile}: " + ", ".join(f"{n} {state}" for state, n in counts.items()))
        rows = [(at.status, at.row, at.column, f"seed {at.cell.seed}", at.reason) for at in outcomes]
        _print_columns([row for row in rows if row[0] != DONE])
    return 0


# --- data -------------------------------------------------------------------------------------------


def data_list(options: argparse.Namespace) -> int:
    """``annobench data list``: each data set and whether its files are there."""
    from datamodules import files

    found = files.data_list()
    if options.json:
        _print_json(found)
    else:
        _print_columns([(str(at["name"]), str(at["status"]), str(at["folder"])) for at in found])
    return 0


def data_prepare(options: argparse.Namespace) -> int:
    """``annobench data prepare``: fetches what is missing."""
    from datamodules import files

    _check_dataset(options.dataset)
    return _tell_files(files.prepare(options.dataset), options.json)


def data_verify(options: argparse.Namespace) -> int:
    """``annobench data verify``: files against known digests; status 1 if one is not as known."""
    from datamodules import files

    _check_dataset(options.dataset)
    return _tell_files(files.verify(options.dataset), options.json)


def data_audit(options: argparse.Namespace) -> int:
    """``annobench data audit``: the annotators of a data set."""
    from benchmark.audits import audit_dataset
    from datamodules.audit import describe

    regime, found = audit_dataset(options.dataset, options.regime)
    if options.json:
        _print_json({"dataset": options.dataset, "regime": regime, **found.to_dict()})
    else:
        print(f"{options.dataset}, regime {regime}")
        _print_columns(describe(found))
    return 0


# --- the gate and the claims ------------------------------------------------------------------------


def check(options: argparse.Namespace) -> int:
    """``annobench check``: measures the committed numbers again; status 1 if one moved."""
    from benchmark import regression

    _check_executor(options.executor)
    folder = options.leaderboards or _leaderboards()
    names = options.tables or regression.committed_tables(folder, options.profile)
    if options.update and not names:
        names = list(registry.tables())
    if not names:
        raise SpecError(f"{folder} holds no numbers for profile {options.profile!r}; name tables and add --update")
    kept = options.results or Path(tempfile.mkdtemp(prefix="annobench-check-"))
    try:
        moved = [line for name in names for line in _check_table(name, folder, Store(kept), options)]
    except BaseException:
        say(f"what was measured is kept; add --results {shlex.quote(str(kept))} to go on from there")
        raise
    for line in moved:
        print(line)
    if moved and options.results is None:
        say(f"cells and tracebacks are kept in {kept}")
    elif options.results is None:
        shutil.rmtree(kept, ignore_errors=True)
    if not moved:
        said = "written" if options.update else "measured again; every committed number holds"
        print(f"{len(names)} table(s) of profile {options.profile} {said}")
    return 1 if moved else 0


def claims(options: argparse.Namespace) -> int:
    """``annobench claims``: verdicts from the store, running nothing."""
    from benchmark.claims import described, evaluate_claims, to_json, to_markdown, write_claims
    from datamodules.files import DataError

    papers = {name.split("/")[0] for name in registry.tables()}
    if options.paper is not None and options.paper not in papers:
        raise SpecError(unknown_name("paper", options.paper, papers))
    names = [name for name in registry.tables() if options.paper in (None, name.split("/")[0])]
    store = Store(options.results)
    verdicts, measured = [], []
    for spec in map(registry.table_spec, names):
        for profile in spec.profiles if spec.claims else {}:
            if options.profile not in (None, profile):
                continue
            try:
                outcomes = _survey(spec, profile, store)
            except DataError as error:
                say(f"{spec.table}, profile {profile}: left out; {error}")
                continue
            was_run = _was_run(profile, outcomes)
            if was_run or options.profile is not None:
                found = evaluate_claims(spec, profile, outcomes, _pairs(spec, outcomes, store, compute=False))
                verdicts += found
                # "nothing was run" must not take the place of what was published
                measured += found if was_run else []
    if options.publish:
        write_claims(measured, options.publish, described(map(registry.table_spec, registry.tables())))
    if options.json:
        _print_json(to_json(verdicts))
    else:
        print(to_markdown(verdicts), end="")
    return 0


def _was_run(profile: str, outcomes: Iterable[Outcome]) -> bool:
    """Whether a cell was measured under ``profile``: cells that two profiles share do not make the other one run."""
    return any(at.result is not None and at.result.provenance.get("profile") == profile for at in outcomes)


# --- within -----------------------------------------------------------------------------------------


def _survey(spec: TableSpec, profile: str, store: Store, **narrowed: Any) -> list[Outcome]:
    from benchmark.grid import survey

    return survey(spec.plan(profile, **narrowed), store, warn=say)


def _run_table(
    spec: TableSpec, profile: str, store: Store, options: argparse.Namespace, **narrowed: Any
) -> list[Outcome]:
    """Surveys, runs what is missing, and returns the state of every planned cell."""
    from benchmark.grid import GridOptions, default_jobs, run_grid
    from benchmark.progress import GridProgress

    outcomes = _survey(spec, profile, store, **narrowed)
    missing = {at.digest for at in outcomes if at.status in (MISSING, FAILED)}
    if not missing:
        return outcomes
    jobs = min(options.jobs or default_jobs(_gpu_count()), len(missing))
    store.require_writable()
    say(f"{spec.table}, profile {profile}: {len(missing)} cell(s) to run, {jobs} at a time; results in {store.root}")
    grid = GridOptions(jobs, options.executor, options.fail_fast, num_workers=options.workers)
    with GridProgress(len(missing)) as progress:
        return run_grid(outcomes, store, grid, progress)


def _beside(spec: TableSpec, profile: str, store: Store, asked: Sequence[Outcome], seeds: int | None) -> list[Outcome]:
    """What the store has of the places of a table that were not asked for: its page is of the whole table."""
    from benchmark.grid import survey
    from datamodules.files import DataError

    places = {(at.row, at.column) for at in asked}
    found: list[Outcome] = []
    for plan in spec.plan(profile, seeds=seeds):
        if (plan.row, plan.column) not in places:
            # nobody asked for it, so nobody need have its data or its plugin
            with suppress(DataError, SpecError, registry.RegistryError):
                found += survey([plan], store, warn=say)
    return found


def _report(spec: TableSpec, profile: str, outcomes: Sequence[Outcome], pairs: Sequence[dict[str, Any]]) -> Report:
    """The report of a table, with the audit of each data set in it and, on the paper's data, its claims' verdicts."""
    from benchmark.audits import audit_notes
    from benchmark.claims import claim_notes, evaluate_claims
    from benchmark.report import build_report

    notes = audit_notes({at.cell.dataset for at in outcomes})
    if spec.profile(profile).is_papers_data:
        notes += claim_notes(evaluate_claims(spec, profile, outcomes, pairs))
    return build_report(spec.under(profile), profile, outcomes, notes, printed=spec.columns)


def _write_and_print(spec: TableSpec, profile: str, outcomes: list[Outcome], options: argparse.Namespace) -> list[str]:
    """Writes the page of a table, and its figure; returns a line for each probe of two models that failed."""
    from benchmark.report import render, write_report
    from benchmark.report.cells import write_cells

    store = Store(options.results)
    failed: list[str] = []
    # probing takes minutes: where no verdict on the page needs it, the page is written first
    needed = spec.profile(profile).is_papers_data
    known = _pairs(spec, outcomes, store, compute=needed, failed=failed)
    report = _report(spec, profile, outcomes, known)
    written = write_report(report, options.results / "tables" / profile)
    if options.publish:
        written += write_report(report, options.publish) + write_cells(spec.table, outcomes, options.publish)
    if spec.kind == "figure":
        from benchmark.report.figures import write_figure

        pairs = known if needed else _pairs(spec, outcomes, store, compute=True, failed=failed)
        for folder in [options.results / "tables" / profile] + ([options.publish] if options.publish else []):
            written += write_figure(spec.under(profile), profile, outcomes, folder, pairs)
    _show(render(report, "md"))
    for path in written:
        say(f"wrote {path}")
    for line in failed:
        say(line)
    return failed


def _pairs(
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


def _tell_incomplete(outcomes: Sequence[Outcome], options: argparse.Namespace) -> bool:
    """True if all is done; else lists what failed and prints, last, the command that tries it again."""
    lacking = [at for at in outcomes if at.status not in (DONE, NOT_APPLICABLE)]
    if not lacking:
        return True
    for at in lacking:
        say(f"{at.status}: {at.row} / {at.column}, {at.cell.describe()}: {at.reason or 'not run'}")
    folder = Store(options.results).root / "failures"
    if any(at.status == FAILED for at in lacking):
        digests = sorted({at.digest for at in lacking if at.status == FAILED})
        say(f"tracebacks are in {folder}: {', '.join(f'{digest}.json' for digest in digests)}")
    say(f"to try these {len(lacking)} cell(s) again: annobench {shlex.join(sys.argv[1:])}")
    return False


def _check_table(name: str, folder: Path, store: Store, options: argparse.Namespace) -> list[str]:
    """Lines for the numbers of one table that moved; with ``--update``, writes them instead."""
    from benchmark import regression

    spec = registry.table_spec(name)
    # read before anything runs: a gate without numbers to hold should say so at once, not after minutes
    committed = None if options.update else regression.read_baseline(name, options.profile, folder)
    outcomes = _run_table(spec, options.profile, store, options)
    report = _report(spec, options.profile, outcomes, _pairs(spec, outcomes, store, compute=False))
    # a row without committed numbers holds nothing, but its failure must not pass
    lacking = [at for at in outcomes if at.status not in (DONE, NOT_APPLICABLE)]
    lines = [f"{name}: {at.row} / {at.column}: {at.cell.describe()} {at.status}: {at.reason}" for at in lacking]
    if committed is not None:
        return [*regression.render_moved(regression.compare(report, committed), name), *lines]
    if lacking:
        return [*lines, f"{name}: not all cells are done; nothing was written"]
    say(f"wrote {regression.write_baseline(report, folder)}")
    return []


def _default_profile(spec: TableSpec) -> str:
    """The profile where none is named, said aloud with its reason and what the others would take."""
    gpu = _gpu_count() > 0
    profile = "paper" if gpu else "demo"
    others = "; ".join(
        f"--profile {name}: {at.takes or 'no estimate'}" for name, at in spec.profiles.items() if name != profile
    )
    say(f"profile {profile}, since {'a GPU is present' if gpu else 'there is no GPU'} ({others})")
    return profile


def _gpu_count() -> int:
    import torch

    return torch.cuda.device_count()


def _leaderboards() -> Path:
    beside = Path(__file__).parent.parent / "leaderboards"
    return beside if beside.is_dir() else Path("leaderboards")


def _check_executor(name: str) -> None:
    from benchmark.grid import EXECUTORS

    if name not in EXECUTORS:
        raise SpecError(unknown_name("executor", name, EXECUTORS))


def _check_dataset(name: str) -> None:
    from datamodules.catalogue import DATA

    known = {*registry.datasets(), *DATA}  # some files are only read beside a data set, as out-of-distribution items
    if name not in known:
        raise registry.RegistryError(unknown_name("data set", name, known))


def _tell_files(states: Sequence[Any], as_json: bool) -> int:
    if as_json:
        _print_json([{"path": str(at.path), "status": at.status, "detail": at.detail} for at in states])
    else:
        _print_columns([(at.status, str(at.path), at.detail) for at in states] or [("ok", "nothing to fetch", "")])
    return 0 if all(at.status == "ok" for at in states) else 1


def _show(text: str) -> None:
    """Prints ``text``; a reader that leaves early (``| head``) does not keep us from telling what failed."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, allow_nan=False))


def _print_columns(rows: Sequence[tuple[str, ...]]) -> None:
    if not rows:
        return
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
