"""Figures from results: curves over epochs, and one array against another. PNG, and the data behind it.

matplotlib is imported when a figure is drawn, with the Agg backend: no display is needed or touched.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.report.atomic import write_bytes, write_text
from benchmark.report.notes import data_line
from benchmark.report.statistics import spearman, spread
from benchmark.result import DONE, Outcome
from benchmark.spec import FigureSpec, SpecError, TableSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = dict[str, Any]


#: with more seeds a legend hides the points, and no reader tells their colours apart
_LEGEND_SEEDS = 5


def write_figure(spec: TableSpec, profile: str, outcomes: Sequence[Outcome], folder: Path) -> list[Path]:
    """Writes ``<folder>/<paper>/<table>.png`` and the points as ``<table>_data.csv`` and ``.json``.

    Places without a result are empty panels that say so.

    Raises:
        SpecError: if the table is not a figure.
    """
    figure = _figure_of(spec)
    records = figure_records(spec, outcomes)
    document = {
        "table": spec.table,
        "profile": profile,
        "data": data_line(spec, spec.profile(profile), outcomes),
        "points": records,
        "paper": figure.paper,
    }
    base = folder / spec.table
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return [
        write_bytes(base.with_suffix(".png"), draw(spec, profile, outcomes)),
        write_text(base.with_name(f"{base.name}_data.csv"), _to_csv(records)),
        write_text(base.with_name(f"{base.name}_data.json"), text),
    ]


def figure_records(spec: TableSpec, outcomes: Sequence[Outcome]) -> list[Record]:
    """One record per point: place, seed, and either epoch and value of a curve or the arrays of an annotator."""
    figure = _figure_of(spec)
    records: list[Record] = []
    for outcome in _done(outcomes):
        place: Record = {"row": outcome.row, "column": outcome.column, "seed": outcome.cell.seed}
        records += _curve_points(figure, outcome, place) if figure.form == "curves" else _pairs(figure, outcome, place)
    return records


def draw(spec: TableSpec, profile: str, outcomes: Sequence[Outcome]) -> bytes:
    """The figure as PNG: a row of panels per row of the spec, a panel per column."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = _figure_of(spec)
    chosen = spec.profile(profile)
    tall, wide = len(spec.rows), len(spec.columns)
    canvas = Figure(figsize=(max(4.5, 3.4 * wide), 3.4 * tall + 0.7), layout="constrained")
    FigureCanvasAgg(canvas)
    canvas.suptitle(f"{spec.title}\n{data_line(spec, chosen, outcomes)}, profile {profile}", fontsize=9)
    panels = canvas.subplots(tall, wide, squeeze=False)
    for axes_row, row in zip(panels, spec.rows, strict=True):
        for axes, column in zip(axes_row, spec.columns, strict=True):
            axes.set_title(f"{row.label}\n{column.label}", fontsize=8)
            here = [each for each in _done(outcomes) if (each.row, each.column) == (row.name, column.name)]
            _panel(axes, figure, here, with_paper=chosen.is_papers_data)
    return _png(canvas)


def _panel(axes: Axes, figure: FigureSpec, outcomes: Sequence[Outcome], with_paper: bool) -> None:
    if not outcomes:
        axes.text(0.5, 0.5, "no result", ha="center", va="center", transform=axes.transAxes)
        return
    if figure.form == "curves":
        _draw_curves(axes, figure, outcomes, with_paper)
    else:
        _draw_scatter(axes, figure, outcomes)


def _draw_curves(axes: Axes, figure: FigureSpec, outcomes: Sequence[Outcome], with_paper: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    for number, name in enumerate(figure.y):
        colour = f"C{number}"
        curves = [each.result.curves.get(name, []) for each in outcomes if each.result is not None]
        for curve in curves:
            axes.plot(*_finite(curve), color=colour, alpha=0.35, linewidth=0.8)
        means = [spread(values).mean for values in zip(*curves, strict=False)]
        axes.plot(*_finite(means), color=colour, label=_words(name))
        for point, value in figure.paper.get(name, {}).items() if with_paper else ():
            axes.axhline(value, color=colour, linestyle=":", linewidth=0.8)
            axes.annotate(f"paper, {point}", (0.99, value), xycoords=("axes fraction", "data"), ha="right", fontsize=6)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, 1)
    axes.legend(fontsize=7)


def _draw_scatter(axes: Axes, figure: FigureSpec, outcomes: Sequence[Outcome]) -> None:
    vertical = figure.y[0]
    correlations = []
    for outcome in outcomes:
        points = _pairs(figure, outcome, {})
        first, second = [point[figure.x] for point in points], [point[vertical] for point in points]
        axes.scatter(first, second, s=6, alpha=0.5, linewidths=0, label=f"seed {outcome.cell.seed}")
        interval = spearman(first, second)
        correlations.append(None if interval is None else interval.estimate)
    mean = spread(correlations).mean
    text = "undefined" if mean is None else f"{mean:.2f}"
    axes.text(0.03, 0.97, f"mean Spearman {text}", transform=axes.transAxes, va="top", fontsize=7)
    axes.set_xlabel(_words(figure.x))
    axes.set_ylabel(_words(vertical))
    if len(correlations) <= _LEGEND_SEEDS:
        axes.legend(fontsize=6, loc="lower right")


# --- points -----------------------------------------------------------------------------------


def _curve_points(figure: FigureSpec, outcome: Outcome, place: Record) -> list[Record]:
    assert outcome.result is not None
    return [
        {**place, "curve": name, "epoch": epoch, "value": value}
        for name in figure.y
        for epoch, value in zip(*_finite(outcome.result.curves.get(name, [])), strict=True)
    ]


def _pairs(figure: FigureSpec, outcome: Outcome, place: Record) -> list[Record]:
    """Points of a scatter where both values are there; the position in the arrays is the annotator's id."""
    assert outcome.result is not None
    arrays = outcome.result.arrays
    first, second = arrays.get(figure.x, []), arrays.get(figure.y[0], [])
    return [
        {**place, "annotator": annotator, figure.x: left, figure.y[0]: right}
        for annotator, (left, right) in enumerate(zip(first, second, strict=False))
        if spread([left, right]).n == 2
    ]


def _finite(values: Sequence[float | None]) -> tuple[list[int], list[float]]:
    """Places and values of what is there."""
    kept = [(place, value) for place, value in enumerate(values) if value is not None and spread([value]).n == 1]
    return [place for place, _ in kept], [value for _, value in kept]


def _done(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.status == DONE and outcome.result is not None]


def _figure_of(spec: TableSpec) -> FigureSpec:
    if spec.figure is None:
        raise SpecError(f"{spec.table} is a table, not a figure; its YAML has no 'figure'")
    return spec.figure


def _to_csv(records: Sequence[Record]) -> str:
    stream = io.StringIO()
    names = list(records[0]) if records else ["row", "column", "seed"]
    writer = csv.DictWriter(stream, fieldnames=names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return stream.getvalue()


def _words(name: str) -> str:
    return name.replace("_", " ")


def _png(canvas: Figure) -> bytes:
    stream = io.BytesIO()
    # without the version of matplotlib in the file, the same points give the same bytes
    canvas.savefig(stream, format="png", dpi=130, metadata={"Software": None})
    return stream.getvalue()
