"""``annobench list`` and ``annobench data``: what there is, and the files of data sets."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from benchmark import registry
from benchmark.commands.printing import print_columns, print_json
from datamodules.names import unknown_name


def list_names(options: argparse.Namespace) -> int:
    """``annobench list``: names and where they come from."""
    if options.kind == "regimes":
        entries = registry.regimes()
    else:
        entries = list(getattr(registry, options.kind)().values())
    if options.json:
        print_json([{"name": at.name, "source": at.source, "summary": at.summary} for at in entries])
    else:
        print_columns([(at.name, at.source, at.summary) for at in entries])
    return 0


def data_list(options: argparse.Namespace) -> int:
    """``annobench data list``: each data set and whether its files are there."""
    from datamodules import files

    found = files.data_list()
    if options.json:
        print_json(found)
    else:
        print_columns([(str(at["name"]), str(at["status"]), str(at["folder"])) for at in found])
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
        print_json({"dataset": options.dataset, "regime": regime, **found.to_dict()})
    else:
        print(f"{options.dataset}, regime {regime}")
        print_columns(describe(found))
    return 0


def _check_dataset(name: str) -> None:
    from datamodules.catalogue import DATA

    known = {*registry.datasets(), *DATA}  # some files are only read beside a data set, as out-of-distribution items
    if name not in known:
        raise registry.RegistryError(unknown_name("data set", name, known))


def _tell_files(states: Sequence[Any], as_json: bool) -> int:
    if as_json:
        print_json([{"path": str(at.path), "status": at.status, "detail": at.detail} for at in states])
    else:
        print_columns([(at.status, str(at.path), at.detail) for at in states] or [("ok", "nothing to fetch", "")])
    return 0 if all(at.status == "ok" for at in states) else 1
