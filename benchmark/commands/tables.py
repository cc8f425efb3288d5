"""``annobench run``, ``table`` and ``status``: tables from their cells."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress

from benchmark import registry
from benchmark.commands.printing import print_columns, print_json, show
from benchmark.commands.shared import check_executor, gpu_count, pairs_of_table, report_of, run_table, survey_table
from benchmark.progress import say
from benchmark.result import DONE, FAILED, MISSING, NOT_APPLICABLE, Outcome
from benchmark.spec import SpecError, TableSpec
from benchmark.store import Store


def run(options: argparse.Namespace) -> int:
    """``annobench run``: what is missing of each table, then the tables."""
    from datamodules.files import DataError

    specs = [registry.table_with(name, options.methods) for name in options.tables]
    check_executor(options.executor)
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
    outcomes = run_table(
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
    outcomes = survey_table(spec, profile, store, seeds=options.seeds, methods=options.methods)
    outcomes += _beside(spec, profile, store, outcomes, options.seeds)
    pairs = pairs_of_table(spec, outcomes, store, compute=False)
    print(render(report_of(spec, profile, outcomes, pairs), options.format), end="")
    return 0


def status(options: argparse.Namespace) -> int:
    """``annobench status``: how far a table is."""
    spec = registry.table_with(options.table, options.methods)
    profile = options.profile or _default_profile(spec)
    outcomes = survey_table(spec, profile, Store(options.results), seeds=options.seeds, methods=options.methods)
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
        print_json({"table": spec.table, "profile": profile, **counts, "cells": cells})
    else:
        print(f"{spec.table}, profile {profile}: " + ", ".join(f"{n} {state}" for state, n in counts.items()))
        rows = [(at.status, at.row, at.column, f"seed {at.cell.seed}", at.reason) for at in outcomes]
        print_columns([row for row in rows if row[0] != DONE])
    return 0


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


def _write_and_print(spec: TableSpec, profile: str, outcomes: list[Outcome], options: argparse.Namespace) -> list[str]:
    """Writes the page of a table, and its figure; returns a line for each probe of two models that failed."""
    from benchmark.report import render, write_report
    from benchmark.report.cells import write_cells

    store = Store(options.results)
    failed: list[str] = []
    # probing takes minutes: where no verdict on the page needs it, the page is written first
    needed = spec.profile(profile).is_papers_data
    known = pairs_of_table(spec, outcomes, store, compute=needed, failed=failed)
    report = report_of(spec, profile, outcomes, known)
    written = write_report(report, options.results / "tables" / profile)
    if options.publish:
        written += write_report(report, options.publish) + write_cells(spec.table, outcomes, options.publish)
    if spec.kind == "figure":
        from benchmark.report.figures import write_figure

        pairs = known if needed else pairs_of_table(spec, outcomes, store, compute=True, failed=failed)
        for folder in [options.results / "tables" / profile] + ([options.publish] if options.publish else []):
            written += write_figure(spec.under(profile), profile, outcomes, folder, pairs)
    show(render(report, "md"))
    for path in written:
        say(f"wrote {path}")
    for line in failed:
        say(line)
    return failed


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


def _default_profile(spec: TableSpec) -> str:
    """The profile where none is named, said aloud with its reason and what the others would take."""
    gpu = gpu_count() > 0
    profile = "paper" if gpu else "demo"
    others = "; ".join(
        f"--profile {name}: {at.takes or 'no estimate'}" for name, at in spec.profiles.items() if name != profile
    )
    say(f"profile {profile}, since {'a GPU is present' if gpu else 'there is no GPU'} ({others})")
    return profile
