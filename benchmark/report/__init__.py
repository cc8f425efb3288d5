"""From outcomes to tables, figures and statistics. Knows nothing of training; imports nothing heavy itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmark.report.build import build_report
    from benchmark.report.figures import write_figure
    from benchmark.report.formats import render, write_report

__all__ = ["build_report", "render", "write_figure", "write_report"]

_HOMES = {"build_report": "build", "render": "formats", "write_figure": "figures", "write_report": "formats"}


def __getattr__(name: str) -> object:
    """Imports a function of the package (and scipy with it) when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; there are: {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
