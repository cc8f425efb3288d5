"""A report as Markdown, CSV, JSON, LaTeX or HTML, and the files that go into ``leaderboards/``."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmark.report.atomic import write_text
from benchmark.report.compare import Comparison
from benchmark.report.layout import DASH, MINUS, Block, Layout, TextCell, lay_out
from benchmark.report.model import Report, ReportCell
from datamodules.names import unknown_name

CSV_COLUMNS = ("table", "profile", "data", "row", "column", "metric", "paper", "mean", "std", "n", "delta", "status")


def render(report: Report, form: str) -> str:
    """``report`` in one of the formats of :data:`FORMATS`.

    Raises:
        ValueError: for another format; near names are listed.
    """
    if form not in FORMATS:
        raise ValueError(unknown_name("format", form, FORMATS))
    return FORMATS[form](report)


def write_report(report: Report, folder: Path) -> list[Path]:
    """Writes ``<folder>/<paper>/<table>.md``, ``.csv`` and ``.json``, each whole or not at all.

    A table that compares rows gets ``<table>_comparisons.csv`` beside them.
    """
    written = [write_text(folder / f"{report.table}.{form}", render(report, form)) for form in ("md", "csv", "json")]
    if report.comparisons:
        written.append(write_text(folder / f"{report.table}_comparisons.csv", comparisons_csv(report)))
    return written


# --- Markdown ---------------------------------------------------------------------------------


def to_markdown(report: Report) -> str:
    """Facts first, then the blocks, footnotes and notes."""
    layout = lay_out(report)
    lines = [f"# {report.table}: {report.title}", "", f"{citation(report)}", ""]
    lines += [f"- {_markdown_text(fact)}" for fact in report.facts]
    for block in layout.blocks:
        lines += ["", f"## {_markdown_text(block.heading)}", "", *_markdown_block(block)]
    lines += ["", *legend(report)]
    if layout.footnotes:
        lines += ["", *(f"- {_markdown_text(note)}" for note in layout.footnotes)]
    lines += ["", "## Notes", "", *(f"- {_markdown_text(note)}" for note in report.notes)]
    return "\n".join(lines).rstrip() + "\n"


def citation(report: Report) -> str:
    """Authors, title, place and year of the paper."""
    paper = report.paper
    return f"{paper.authors}: {paper.title}. {paper.where}, {paper.year}."


def legend(report: Report) -> list[str]:
    """How to read the cells."""
    lines = [f"Best of each column in bold; {DASH}: no value."]
    if report.is_papers_data and any(cell.paper is not None for cell in report.cells):
        lines[0] += " Difference: ours minus the paper's; ‡: beyond tolerance, see the notes."
    return lines


def _markdown_block(block: Block) -> list[str]:
    texts = [[_markdown_text(name) for name in block.header]]
    texts += [[_markdown_cell(cell) for cell in row] for row in block.rows]
    widths = [max(3, *(len(row[index]) for row in texts)) for index in range(len(block.header))]
    head, *body = [[text.ljust(width) for text, width in zip(row, widths, strict=True)] for row in texts]
    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    return [f"| {' | '.join(row)} |" for row in (head, rule, *body)]


def _markdown_cell(cell: TextCell) -> str:
    text = _markdown_text(cell.text)
    return f"**{text}**" if cell.best else text


def _markdown_text(text: str) -> str:
    """``text`` on one line, with what Markdown would read as markup escaped."""
    flat = " ".join(text.split())
    return re.sub(r"[\\`*|]|<(?=[A-Za-z/!?])", lambda match: f"\\{match[0]}", flat)


# --- CSV and JSON -----------------------------------------------------------------------------


def to_csv(report: Report) -> str:
    """Tidy: one line per cell and metric; empty where there is no value. Line feeds, RFC 4180 quoting."""
    return _csv(report, [_cell_record(cell) for cell in report.cells], CSV_COLUMNS)


def comparisons_csv(report: Report) -> str:
    """Likewise one line per comparison of a row with the reference row; ``difference`` is row minus reference."""
    columns = ("table", "profile", "data", *(field.name for field in fields(Comparison)))
    return _csv(report, [each.record() for each in report.comparisons], columns)


def _csv(report: Report, records: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    shared = {"table": report.table, "profile": report.profile, "data": report.data}
    writer.writerows({**shared, **record} for record in records)
    return stream.getvalue()


def to_json(report: Report) -> str:
    """One strict JSON document (null where there is no value), with the keys that others rely on."""
    document = {
        "table": report.table,
        "profile": report.profile,
        "data": report.data,
        "hardware": report.hardware,
        "cells": [_cell_record(cell) for cell in report.cells],
        "comparisons": [each.record() for each in report.comparisons],
        "notes": [*report.facts, *report.notes, *lay_out(report).footnotes],
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _cell_record(cell: ReportCell) -> dict[str, Any]:
    names = ("row", "column", "metric", "paper", "mean", "std", "n", "delta", "status")
    return {name: getattr(cell, name) for name in names}


# --- LaTeX and HTML ---------------------------------------------------------------------------


def to_latex(report: Report) -> str:
    """Tables for ``booktabs``, one per block; notes follow as an itemised list."""
    layout = lay_out(report)
    parts = [f"% {report.table}, profile {report.profile}; needs \\usepackage{{booktabs}}"]
    parts += [_styled(block, "latex") for block in layout.blocks]
    notes = [_latex_text(note) for note in _all_notes(report, layout)]
    parts.append("\n".join(["\\begin{itemize}", *(f"\\item {note}" for note in notes), "\\end{itemize}"]))
    return "\n".join(parts) + "\n"


def to_html(report: Report) -> str:
    """One page that stands alone: no script, no style from elsewhere."""
    layout = lay_out(report)
    title = html.escape(f"{report.table}: {report.title}")
    parts = [
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head><body>',
        f"<h1>{title}</h1>\n<p>{html.escape(citation(report))}</p>",
    ]
    for block in layout.blocks:
        parts.append(f"<h2>{html.escape(block.heading)}</h2>\n{_styled(block, 'html')}")
    parts += [
        "<ul>",
        *(f"<li>{html.escape(note)}</li>" for note in _all_notes(report, layout)),
        "</ul>",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _all_notes(report: Report, layout: Layout) -> list[str]:
    return [*report.facts, *legend(report), *layout.footnotes, *report.notes]


def _styled(block: Block, form: str) -> str:
    """One block by pandas' Styler, which escapes what the format would read as markup."""
    import pandas as pd

    frame = pd.DataFrame([[cell.text for cell in row] for row in block.rows], columns=list(block.header))
    if form == "latex":
        frame = frame.map(_plain_signs)
    bold = pd.DataFrame(
        [["font-weight: bold" if cell.best else "" for cell in row] for row in block.rows], columns=frame.columns
    )
    styler = frame.style.hide(axis="index").format(escape=form).format_index(axis="columns", escape=form)
    styler = styler.apply(lambda _: bold, axis=None)
    if form == "latex":
        layout = "l" + "r" * (len(block.header) - 1)
        caption = _latex_text(block.heading)
        return str(styler.to_latex(hrules=True, convert_css=True, column_format=layout, caption=caption))
    return str(styler.to_html(table_uuid=f"block-{zlib.crc32(block.heading.encode())}"))


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in _plain_signs(text))


def _plain_signs(text: str) -> str:
    """Without the two signs that LaTeX's default encoding lacks."""
    return text.replace(MINUS, "-").replace("‡", "(!)")


FORMATS: dict[str, Callable[[Report], str]] = {
    "md": to_markdown,
    "csv": to_csv,
    "json": to_json,
    "tex": to_latex,
    "html": to_html,
}
