"""Form ``gain``: how much lower an array is than in the reference row, item by item, against another array.

The gain of an item is the reference's value minus the row's, both of the same seed, so positive is better where lower
is better. Items of a seed share two trained networks: they are not independent, so means of bins are taken within a
seed first and their intervals (Student's t, 95 %) are over seeds. Bins hold equally many items of all seeds together,
as far as ties allow; items at the very same place are never parted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from benchmark.report.figure_parts import Record, done, figure_of, no_result, panels, to_png, words
from benchmark.report.statistics import Value, spearman, spread, t_interval
from benchmark.report.values import gain_pairs
from benchmark.result import Outcome
from benchmark.spec import TableSpec
from benchmark.table_parts import FigureSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: with more points than this, their file holds bins instead of items
MOST_ITEMS = 20_000
_BINS = 10
_DRAWN = 2_000
_SHOWN = (0.1, 0.9)

Seeds = dict[int, list[tuple[float, float]]]


@dataclass(frozen=True)
class Bin:
    """The items with a place in ``(start, end]``.

    Attributes:
        start: lower end.
        end: upper end.
        centre: mean place of the items.
        means: of each seed, in order, the mean gain; None without items.
        counts: of each seed, the number of items.
    """

    start: float
    end: float
    centre: float
    means: tuple[Value, ...]
    counts: tuple[int, ...]


def gain_records(spec: TableSpec, outcomes: Sequence[Outcome]) -> list[Record]:
    """A record per item; with more than :data:`MOST_ITEMS` of them, one per bin and seed with its mean gain."""
    figure = figure_of(spec)
    places = {place: _gains(figure, outcomes, *place) for place in _panels(spec)}
    total = sum(len(items) for seeds in places.values() for items in seeds.values())
    records: list[Record] = []
    for (row, column), seeds in places.items():
        place = {"row": row, "column": column}
        records += _item_records(figure, seeds, place) if total <= MOST_ITEMS else _bin_records(seeds, place)
    return records


def gain_summary(spec: TableSpec, outcomes: Sequence[Outcome]) -> list[Record]:
    """A record per place: Spearman's correlation of place and gain in each seed, and the mean."""
    found = []
    for row, column in _panels(spec):
        seeds = _gains(figure_of(spec), outcomes, row, column)
        correlations = _correlations(seeds)
        found.append(
            {"row": row, "column": column, "spearman": correlations, "mean": spread(list(correlations.values())).mean}
        )
    return found


def draw_gain(spec: TableSpec, profile: str, outcomes: Sequence[Outcome]) -> bytes:
    """A row of panels per row but the reference, a panel per column.

    At most 2,000 items are drawn, evenly chosen, and the vertical axis leaves out the outer tenth on either side,
    because the means are far smaller than what single items scatter.
    """
    figure = figure_of(spec)
    rows = [row for row in spec.rows if row.name != figure.reference]
    labels = {row.name: row.label for row in spec.rows}
    canvas, grid = panels(spec, profile, outcomes, len(rows), len(spec.columns))
    for panel_row, row in zip(grid, rows, strict=True):
        for axes, column in zip(panel_row, spec.columns, strict=True):
            axes.set_title(f"{row.label} against {labels[figure.reference]}\n{column.label}", fontsize=8)
            seeds = _gains(figure, outcomes, row.name, column.name)
            if seeds:
                _panel(axes, figure, seeds)
            else:
                no_result(axes)
    return to_png(canvas)


def bins_of(seeds: Seeds) -> list[Bin]:
    """Bins of equally many items of all seeds together, as far as ties allow; none is empty."""
    everything = np.array([point for items in seeds.values() for point in items])
    ends = np.unique(np.quantile(everything[:, 0], np.arange(1, _BINS + 1) / _BINS, method="higher"))
    starts = [float(everything[:, 0].min()), *(float(end) for end in ends[:-1])]
    found = []
    for index, (start, end) in enumerate(zip(starts, ends.tolist(), strict=True)):
        # the least place belongs to the first bin, whose start it is
        above = start if index else -math.inf
        inside = [[(x, gain) for x, gain in items if above < x <= end] for items in seeds.values()]
        found.append(_bin(start, end, inside))
    return found


def _bin(start: float, end: float, inside: Sequence[Sequence[tuple[float, float]]]) -> Bin:
    return Bin(
        start=start,
        end=end,
        centre=fmean(x for items in inside for x, _ in items),
        means=tuple(fmean(gain for _, gain in items) if items else None for items in inside),
        counts=tuple(len(items) for items in inside),
    )


def _panel(axes: Axes, figure: FigureSpec, seeds: Seeds) -> None:
    everything = np.array([point for items in seeds.values() for point in items])
    step = -(-len(everything) // _DRAWN)
    axes.scatter(everything[::step, 0], everything[::step, 1], s=3, alpha=0.25, linewidths=0, color="C0")
    found = bins_of(seeds)
    intervals = [t_interval(each.means) for each in found]
    centres = [each.centre for each in found]
    heights = [spread(each.means).mean or 0.0 for each in found]
    half_widths = [0.0 if each is None else each.high - each.estimate for each in intervals]
    axes.errorbar(centres, heights, half_widths, color="C1", marker="o", ms=3, lw=1, capsize=2)
    axes.axhline(0, color="grey", linewidth=0.6)
    tops = [height + half for height, half in zip(heights, half_widths, strict=True)]
    bottoms = [height - half for height, half in zip(heights, half_widths, strict=True)]
    low, high = np.quantile(everything[:, 1], _SHOWN)
    low, high = min(float(low), *bottoms), max(float(high), *tops)
    if low < high:
        axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    mean = spread(list(_correlations(seeds).values())).mean
    text = "undefined" if mean is None else f"{mean:.2f}"
    drawn = f"one item in {step}, " if step > 1 else ""
    said = f"mean Spearman {text}\n{drawn}axis: middle 80 %"
    axes.text(0.03, 0.97, said, transform=axes.transAxes, va="top", fontsize=7)
    axes.set_xlabel(words(figure.x))
    axes.set_ylabel(f"how much lower {words(figure.y[0])} is", fontsize=8)


def _gains(figure: FigureSpec, outcomes: Sequence[Outcome], row: str, column: str) -> Seeds:
    """Seed -> ``(x, gain)`` of each item, for the seeds in which the row and the reference have both arrays."""
    results = {
        (outcome.row, outcome.cell.seed): outcome.result
        for outcome in done(outcomes)
        if outcome.column == column and outcome.row in (row, figure.reference)
    }
    found: Seeds = {}
    for seed in sorted({seed for _, seed in results}):
        first, second = results.get((row, seed)), results.get((figure.reference, seed))
        if first is not None and second is not None:
            items = gain_pairs(first, second, figure.y[0], figure.x)
            if items:
                found[seed] = items
    return found


def _correlations(seeds: Seeds) -> dict[int, float | None]:
    found = {seed: spearman([x for x, _ in items], [gain for _, gain in items]) for seed, items in seeds.items()}
    return {seed: None if interval is None else interval.estimate for seed, interval in found.items()}


def _panels(spec: TableSpec) -> list[tuple[str, str]]:
    reference = figure_of(spec).reference
    return [(row.name, column.name) for row in spec.rows if row.name != reference for column in spec.columns]


def _item_records(figure: FigureSpec, seeds: Seeds, place: Record) -> list[Record]:
    return [{**place, "seed": seed, figure.x: x, "gain": gain} for seed, items in seeds.items() for x, gain in items]


def _bin_records(seeds: Seeds, place: Record) -> list[Record]:
    if not seeds:
        return []
    return [
        {**place, "seed": seed, "from": each.start, "to": each.end, "items": count, "mean_gain": mean}
        for each in bins_of(seeds)
        for seed, mean, count in zip(seeds, each.means, each.counts, strict=True)
    ]
