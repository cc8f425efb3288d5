"""What commands print: JSON, aligned columns, and texts to readers that may leave early."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any


def show(text: str) -> None:
    """Prints ``text``; a reader that leaves early (``| head``) does not keep us from telling what failed."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(value: Any) -> None:
    """Prints ``value`` as JSON; ValueError for what is no number in JSON."""
    print(json.dumps(value, indent=1, allow_nan=False))


def print_columns(rows: Sequence[tuple[str, ...]]) -> None:
    """Prints ``rows`` of equal lengths, each column as wide as its longest text."""
    if not rows:
        return
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
