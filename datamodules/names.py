"""Errors about names: every wrong name lists the near ones. Imports nothing heavy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UnknownName(ValueError):
    """A name that does not exist; the message lists near ones."""


def unknown_name(kind: str, name: str, known: Iterable[str], where: str = "") -> str:
    """One sentence for a name that does not exist, with near matches, else all that do.

    Names that go on after ``name`` and a slash are the nearest, as a paper's tables are to the paper.

    Args:
        kind: what the name should have been, e.g. ``"regime"``.
        name: what was given.
        known: the names that exist.
        where: whose names these are, e.g. ``"data set 'digits'"``.
    """
    names = sorted(known)
    within = [longer for longer in names if longer.startswith(f"{name.rstrip('/')}/")]
    near = within or difflib.get_close_matches(name, names, n=5, cutoff=0.5)
    place = f" of {where}" if where else ""
    hint = f"did you mean {', '.join(near)}?" if near else f"there are: {', '.join(names) or 'none'}"
    return f"unknown {kind}{place}: {name!r}; {hint}"
