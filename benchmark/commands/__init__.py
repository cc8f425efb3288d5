"""What each command of :mod:`benchmark.cli` does; every function takes the parsed options, returns the exit status."""

from benchmark.commands.gate import check, claims
from benchmark.commands.listing import data_audit, data_list, data_prepare, data_verify, list_names
from benchmark.commands.tables import run, status, table

__all__ = [
    "check",
    "claims",
    "data_audit",
    "data_list",
    "data_prepare",
    "data_verify",
    "list_names",
    "run",
    "status",
    "table",
]
