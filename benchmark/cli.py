"""The command line: arguments in, one call out. Nothing heavy is imported to print a name or the help."""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from benchmark.spec import PROFILES

RESULTS_VARIABLE = "ANNOBENCH_RESULTS"
EXIT_OK, EXIT_INCOMPLETE, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status.

    0: all that was asked for is done; 1: something failed, is missing or moved; 2: wrong usage or data
    that is not there; 130: interrupted.
    """
    options = build_parser().parse_args(arguments)
    try:
        return _dispatch(options)
    except KeyboardInterrupt:
        print("annobench: interrupted; what was done is kept, the same command goes on from there", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _silence()
        return EXIT_OK if options.command in {"list", "table", "status", "data", "claims"} else EXIT_INCOMPLETE
    except Exception as error:
        if not _is_expected(error):
            return _unexpected()
        print(f"annobench: error: {error.args[0] if len(error.args) == 1 else error}", file=sys.stderr)
        return EXIT_USAGE


def _dispatch(options: argparse.Namespace) -> int:
    from benchmark import commands

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that knows no "±" gets "?" rather than nothing
            stream.reconfigure(errors="replace")
    status: int = getattr(commands, options.call)(options)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _silence()
    return status


def _silence() -> None:
    """Lets what is still to be printed go nowhere: the reader left, as `head` does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_expected(error: BaseException) -> bool:
    """True for errors that say what to do: our own, and the system's about a named file."""
    ours = type(error).__module__.split(".")[0] in {"benchmark", "datamodules", "models"}
    return ours or (isinstance(error, OSError) and error.filename is not None)


def _unexpected() -> int:
    traceback.print_exc()
    print(
        "annobench: this is a fault in annobench or in a plugin, not in what you typed; "
        "please report the text above together with the command",
        file=sys.stderr,
    )
    return EXIT_INCOMPLETE


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="annobench", description="Learning from multiple annotators, measured on one footing."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_run(commands)
    _add_table(commands)
    _add_status(commands)
    _add_list(commands)
    _add_data(commands)
    _add_check(commands)
    _add_claims(commands)
    return parser


_Commands = argparse._SubParsersAction  # argparse has no public name for it


def _add_run(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("run", help="run what is missing of a table, then write and print it")
    parser.add_argument("tables", nargs="+", metavar="TABLE", help="<paper>/<table>, e.g. lmnl/table2")
    _add_profile(parser)
    _add_results(parser)
    _add_execution(parser)
    parser.add_argument("--seeds", type=_positive, metavar="N", help="number of seeds; default: the profile's")
    _add_methods(parser)
    parser.add_argument("--columns", type=_names, metavar="A,B", help="only these columns")
    parser.add_argument("--publish", type=Path, metavar="DIR", help="also write the tables under DIR")
    parser.set_defaults(call="run")


def _add_table(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("table", help="print a table from the store, running nothing")
    parser.add_argument("table", metavar="TABLE")
    _add_profile(parser)
    _add_results(parser)
    parser.add_argument("--format", choices=("md", "csv", "json", "tex", "html"), default="md")
    parser.add_argument("--seeds", type=_positive, metavar="N", help="number of seeds; default: the profile's")
    _add_methods(parser)
    parser.set_defaults(call="table")


def _add_status(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("status", help="cells done, failed (with the last line of the error), missing")
    parser.add_argument("table", metavar="TABLE")
    _add_profile(parser)
    _add_results(parser)
    _add_json(parser)
    parser.add_argument("--seeds", type=_positive, metavar="N", help="number of seeds; default: the profile's")
    _add_methods(parser)
    parser.set_defaults(call="status")


def _add_list(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("list", help="what there is, plugins included")
    parser.add_argument("kind", choices=("methods", "datasets", "regimes", "tables"))
    _add_json(parser)
    parser.set_defaults(call="list_names")


def _add_data(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("data", help="where data is; fetch, check and describe it")
    actions = parser.add_subparsers(dest="action", required=True)
    listing = actions.add_parser("list", help="each data set: its files, and whether they are there")
    listing.set_defaults(call="data_list")
    for name, call, text in (
        ("prepare", "data_prepare", "download what is missing, where the licence allows"),
        ("verify", "data_verify", "compare the files with their known digests"),
        ("audit", "data_audit", "describe its annotators, and whether they differ at all"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("dataset", metavar="DATASET")
        if name == "audit":
            action.add_argument("--regime", metavar="REGIME", help="default: the data set's first")
        _add_json(action)
        action.set_defaults(call=call)
    _add_json(listing)


def _add_check(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("check", help="the gate: measure again and compare with leaderboards/")
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="default: all with committed numbers")
    parser.add_argument("--profile", choices=PROFILES, default="demo")
    parser.add_argument("--leaderboards", type=Path, metavar="DIR", help="default: leaderboards/ of the checkout")
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="take results from here; default: an empty folder, all is measured"
    )
    parser.add_argument("--update", action="store_true", help="write what was measured as the numbers to hold")
    _add_execution(parser)
    parser.set_defaults(call="check")


def _add_claims(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("claims", help="what each paper asserts and whether it shows here")
    parser.add_argument("paper", nargs="?", metavar="PAPER", help="e.g. lmnl; default: all")
    _add_profile(parser, "every profile that the results folder has cells of")
    _add_results(parser)
    _add_json(parser)
    parser.add_argument("--publish", type=Path, metavar="DIR", help="also write claims.md and claims.json under DIR")
    parser.set_defaults(call="claims")


def _add_profile(parser: argparse.ArgumentParser, default: str = "paper with a GPU, else demo") -> None:
    parser.add_argument("--profile", choices=PROFILES, help=f"default: {default}")


def _add_methods(parser: argparse.ArgumentParser) -> None:
    text = "only these rows or methods; a method that the table lacks becomes a row"
    parser.add_argument("--methods", type=_names, metavar="A,B", help=text)


def _add_results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results",
        type=Path,
        default=Path(os.environ.get(RESULTS_VARIABLE) or "results"),
        metavar="DIR",
        help=f"results folder; default: ${RESULTS_VARIABLE} or ./results",
    )


def _add_execution(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=_positive, metavar="N", help="cells at a time; default: a core or a GPU each")
    parser.add_argument(
        "--executor", default="local", metavar="NAME", help="local (a process a cell) or inline (for debuggers)"
    )
    parser.add_argument("--workers", type=_not_negative, default=0, metavar="N", help="loader processes of a cell")
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first cell that fails")


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def _positive(text: str) -> int:
    value = _not_negative(text)
    if value == 0:
        raise argparse.ArgumentTypeError("it must be at least 1")
    return value


def _not_negative(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("it needs at least one name")
    return names
