"""Figures from results, PNG and the data behind it; the forms are those of ``FigureSpec.form``.

Curves over epochs and one array of annotators against another are drawn here, the other forms in modules of
their own. matplotlib is imported when a figure is drawn, with the Agg backend: no display is needed or touched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.report.atomic import write_bytes, write_text
from benchmark.report.figure_attention import attention_records, draw_attention
from benchmark.report.figure_gain import draw_gain, gain_records, gain_summary
from benchmark.report.figure_lines import draw_lines, line_records
from benchmark.report.figure_map import draw_map, map_records
from benchmark.report.figure_pairs import draw_pairs, pair_records
from benchmark.report.figure_parts import (
    Record,
    done,
    figure_of,
    is_number,
    no_result,
    panels,
    paper_lines,
    to_csv,
    to_png,
    words,
)
from benchmark.report.notes import data_line
from benchmark.report.statistics import spearman, spread
from benchmark.result import Outcome
from benchmark.spec import TableSpec
from benchmark.table_parts import FigureSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Pairs = Sequence[Mapping[str, Any]]

#: with more seeds a legend hides the points, and no reader tells their colours apart
#: points of one result that the data file of a scatter holds; the picture and its correlation are of all
_MOST_POINTS = 1_000
_LEGEND_SEEDS = 5


def write_figure(
    spec: TableSpec, profile: str, outcomes: Sequence[Outcome], folder: Path, pairs: Pairs = ()
) -> list[Path]:
    """Writes ``<folder>/<paper>/<table>.png`` and the points as ``<table>_data.csv`` and ``.json``.

    Places without a result are empty panels that say so.

    Args:
        spec: the figure.
        profile: name of one of its profiles.
        outcomes: what became of the planned cells.
        folder: where to write.
        pairs: form ``pairs`` only: records ``pair`` (its label), ``probe``, ``first_seed``, ``second_seed``, ``value``.

    Raises:
        SpecError: if the table is not a figure.
    """
    figure = figure_of(spec)
    records = figure_records(spec, outcomes, pairs)
    document = {
        "table": spec.table,
        "profile": profile,
        "data": data_line(spec, spec.profile(profile), outcomes),
        "points": records,
        "paper": figure.paper,
        **({"summary": gain_summary(spec, outcomes)} if figure.form == "gain" else {}),
    }
    base = folder / spec.table
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return [
        write_bytes(base.with_suffix(".png"), draw(spec, profile, outcomes, pairs)),
        write_text(base.with_name(f"{base.name}_data.csv"), to_csv(records)),
        write_text(base.with_name(f"{base.name}_data.json"), text),
    ]


def figure_records(spec: TableSpec, outcomes: Sequence[Outcome], pairs: Pairs = ()) -> list[Record]:
    """One record per point, with its place and seed: what is drawn, as data."""
    figure = figure_of(spec)
    if figure.form == "lines":
        return line_records(spec, outcomes)
    if figure.form == "gain":
        return gain_records(spec, outcomes)
    if figure.form == "pairs":
        return pair_records(pairs)
    if figure.form == "map":
        return map_records(spec, outcomes)
    if figure.form == "attention":
        return attention_records(spec, outcomes)
    points = _curve_points if figure.form == "curves" else _few_scatter_points
    return [
        record
        for outcome in done(outcomes)
        for record in points(figure, outcome, {"row": outcome.row, "column": outcome.column, "seed": outcome.cell.seed})
    ]


def draw(spec: TableSpec, profile: str, outcomes: Sequence[Outcome], pairs: Pairs = ()) -> bytes:
    """The figure as PNG; curves and scatter have a row of panels per row of the spec, a panel per column."""
    figure = figure_of(spec)
    if figure.form == "lines":
        return draw_lines(spec, profile, outcomes)
    if figure.form == "gain":
        return draw_gain(spec, profile, outcomes)
    if figure.form == "pairs":
        return draw_pairs(spec, profile, outcomes, pairs)
    if figure.form == "map":
        return draw_map(spec, profile, outcomes)
    if figure.form == "attention":
        return draw_attention(spec, profile, outcomes)
    canvas, grid = panels(spec, profile, outcomes, len(spec.rows), len(spec.columns))
    for axes_row, row in zip(grid, spec.rows, strict=True):
        for axes, column in zip(axes_row, spec.columns, strict=True):
            axes.set_title(f"{row.label}\n{column.label}", fontsize=8)
            here = [each for each in done(outcomes) if (each.row, each.column) == (row.name, column.name)]
            _panel(axes, figure, here, with_paper=spec.profile(profile).is_papers_data)
    return to_png(canvas)


def _panel(axes: Axes, figure: FigureSpec, outcomes: Sequence[Outcome], with_paper: bool) -> None:
    if not outcomes:
        no_result(axes)
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
        axes.plot(*_finite(means), color=colour, label=words(name))
        if with_paper:
            paper_lines(axes, figure.paper.get(name, {}), colour)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, 1)
    axes.legend(fontsize=7)


def _draw_scatter(axes: Axes, figure: FigureSpec, outcomes: Sequence[Outcome]) -> None:
    vertical = figure.y[0]
    correlations = []
    for outcome in outcomes:
        points = _scatter_points(figure, outcome, {})
        first, second = [point[figure.x] for point in points], [point[vertical] for point in points]
        axes.scatter(first, second, s=6, alpha=0.5, linewidths=0, label=f"seed {outcome.cell.seed}")
        interval = spearman(first, second)
        correlations.append(None if interval is None else interval.estimate)
    mean = spread(correlations).mean
    text = "undefined" if mean is None else f"{mean:.2f}"
    axes.text(0.03, 0.97, f"mean Spearman {text}", transform=axes.transAxes, va="top", fontsize=7)
    axes.set_xlabel(words(figure.x))
    axes.set_ylabel(words(vertical))
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


def _scatter_points(figure: FigureSpec, outcome: Outcome, place: Record) -> list[Record]:
    """Points of a scatter where both values are there; ``number`` is the place in the arrays."""
    assert outcome.result is not None
    arrays = outcome.result.arrays
    first, second = arrays.get(figure.x, []), arrays.get(figure.y[0], [])
    return [
        {**place, "number": number, figure.x: left, figure.y[0]: right}
        for number, (left, right) in enumerate(zip(first, second, strict=False))
        if spread([left, right]).n == 2
    ]


def _few_scatter_points(figure: FigureSpec, outcome: Outcome, place: Record) -> list[Record]:
    """At most :data:`_MOST_POINTS` of them, evenly spaced by number: a data file is to be read, not to be a store."""
    points = _scatter_points(figure, outcome, place)
    return points[:: -(-len(points) // _MOST_POINTS) or 1]


def _finite(values: Sequence[float | None]) -> tuple[list[int], list[float]]:
    """Places and values of what is there."""
    kept = [(place, value) for place, value in enumerate(values) if value is not None and is_number(value)]
    return [place for place, _ in kept], [value for _, value in kept]
