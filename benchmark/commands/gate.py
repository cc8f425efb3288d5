"""``annobench check`` and ``claims``: committed numbers against new ones, and verdicts on what papers assert."""

from __future__ import annotations

import argparse
import shlex
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from benchmark import registry
from benchmark.commands.printing import print_json
from benchmark.commands.shared import check_executor, pairs_of_table, report_of, run_table, survey_table
from benchmark.progress import say
from benchmark.result import DONE, NOT_APPLICABLE, Outcome
from benchmark.spec import SpecError
from benchmark.store import Store
from datamodules.names import unknown_name


def check(options: argparse.Namespace) -> int:
    """``annobench check``: measures the committed numbers again; status 1 if one moved."""
    from benchmark import regression

    check_executor(options.executor)
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
        if options.results is None:
            _tell_kept(kept, f"what was measured is kept; add --results {shlex.quote(str(kept))} to go on from there")
        raise
    for line in moved:
        print(line)
    if moved and options.results is None:
        _tell_kept(kept, f"cells and tracebacks are kept in {kept}")
    elif options.results is None:
        shutil.rmtree(kept, ignore_errors=True)
    if not moved:
        said = "written" if options.update else "measured again; every committed number holds"
        print(f"{len(names)} table(s) of profile {options.profile} {said}")
    return 1 if moved else 0


def _tell_kept(kept: Path, text: str) -> None:
    """Says ``text`` where there is anything in ``kept``; else removes the folder."""
    if any(kept.iterdir()):
        say(text)
    else:
        kept.rmdir()


def _check_table(name: str, folder: Path, store: Store, options: argparse.Namespace) -> list[str]:
    """Lines for the numbers of one table that moved; with ``--update``, writes them instead."""
    from benchmark import regression

    spec = registry.table_spec(name)
    # read before anything runs: a gate without numbers to hold should say so at once, not after minutes
    committed = None if options.update else regression.read_baseline(name, options.profile, folder)
    outcomes = run_table(spec, options.profile, store, options)
    report = report_of(spec, options.profile, outcomes, pairs_of_table(spec, outcomes, store, compute=False))
    # a row without committed numbers holds nothing, but its failure must not pass
    lacking = [at for at in outcomes if at.status not in (DONE, NOT_APPLICABLE)]
    lines = [f"{name}: {at.row} / {at.column}: {at.cell.describe()} {at.status}: {at.reason}" for at in lacking]
    if committed is not None:
        return [*regression.render_moved(regression.compare(report, committed), name), *lines]
    if lacking:
        return [*lines, f"{name}: not all cells are done; nothing was written"]
    say(f"wrote {regression.write_baseline(report, folder)}")
    return []


def _leaderboards() -> Path:
    beside = Path(__file__).parents[2] / "leaderboards"
    return beside if beside.is_dir() else Path("leaderboards")


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
                outcomes = survey_table(spec, profile, store)
            except DataError as error:
                say(f"{spec.table}, profile {profile}: left out; {error}")
                continue
            was_run = _was_run(profile, outcomes)
            if was_run or options.profile is not None:
                found = evaluate_claims(spec, profile, outcomes, pairs_of_table(spec, outcomes, store, compute=False))
                verdicts += found
                # "nothing was run" must not take the place of what was published
                measured += found if was_run else []
    if options.publish:
        write_claims(measured, options.publish, described(map(registry.table_spec, registry.tables())))
    if options.json:
        print_json(to_json(verdicts))
    else:
        print(to_markdown(verdicts), end="")
    return 0


def _was_run(profile: str, outcomes: Iterable[Outcome]) -> bool:
    """Whether a cell was measured under ``profile``: cells that two profiles share do not make the other one run."""
    return any(at.result is not None and at.result.provenance.get("profile") == profile for at in outcomes)
