"""Form ``lines``: a metric over the columns' ``x``, a line a row, a panel a metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmark.report.figure_parts import Record, done, figure_of, is_number, no_result, panels, to_png, words
from benchmark.report.statistics import spread, t_interval
from benchmark.report.values import prefixes, value_at
from benchmark.result import Outcome
from benchmark.spec import TableSpec
from benchmark.table_parts import MetricSpec, RowSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: columns further apart than this, as a ratio, are shown on a logarithmic axis
_LOG_RATIO = 20.0


def line_records(spec: TableSpec, outcomes: Sequence[Outcome]) -> list[Record]:
    """A record per metric, place and seed that has a value; columns without ``x`` have no place on the axis."""
    at, prefix = _places(spec), prefixes(spec)
    return [
        {
            "row": outcome.row,
            "column": outcome.column,
            "seed": outcome.cell.seed,
            "x": at[outcome.column],
            "metric": metric,
            "value": value_at(prefix, outcome, metric),
        }
        for metric in figure_of(spec).y
        for outcome in done(outcomes)
        if outcome.column in at and is_number(value_at(prefix, outcome, metric))
    ]


def draw_lines(spec: TableSpec, profile: str, outcomes: Sequence[Outcome]) -> bytes:
    """Means with 95 % t intervals over seeds, seeds faint; the paper's values as open markers on its own data."""
    metrics = figure_of(spec).y
    records = line_records(spec, outcomes)
    canvas, ((*row_of_panels,),) = panels(spec, profile, outcomes, 1, len(metrics))
    for axes, metric in zip(row_of_panels, metrics, strict=True):
        here = [record for record in records if record["metric"] == metric]
        _panel(axes, spec, metric, here, with_paper=spec.profile(profile).is_papers_data)
    return to_png(canvas)


def _panel(axes: Axes, spec: TableSpec, metric: str, records: Sequence[Record], with_paper: bool) -> None:
    if not records:
        no_result(axes)
        return
    at = sorted(set(_places(spec).values()))
    logarithmic = at[0] > 0 and at[-1] > _LOG_RATIO * at[0]
    if logarithmic:
        axes.set_xscale("log")
    for number, row in enumerate(spec.rows):
        here = [record for record in records if record["row"] == row.name]
        # side by side: intervals on top of each other cannot be read
        step = (number - (len(spec.rows) - 1) / 2) / len(spec.rows)
        _draw_row(axes, row, here, f"C{number % 10}", {x: _aside(x, step, at, logarithmic) for x in at})
        if with_paper:
            _draw_paper(axes, spec, row, metric, f"C{number % 10}", step, logarithmic)
    if with_paper and any(metric in values for row in spec.rows for values in row.values.values()):
        axes.plot([], [], "D", mfc="none", color="grey", ms=5, ls="", label="the paper's values")
    axes.set_xticks(at, [f"{x:g}" for x in at])
    axes.minorticks_off()
    axes.set_xlabel(figure_of(spec).x)
    axes.set_ylabel(_label(spec.metrics, metric), fontsize=8)
    axes.legend(fontsize=6)


def _draw_row(axes: Axes, row: RowSpec, records: Sequence[Record], colour: str, aside: dict[float, float]) -> None:
    by_x: dict[float, list[float]] = {}
    for record in sorted(records, key=lambda each: (each["x"], each["seed"])):
        by_x.setdefault(record["x"], []).append(record["value"])
    if not by_x:
        return
    places, means, half_widths = [], [], []
    for x, values in by_x.items():
        axes.plot([aside[x]] * len(values), values, ".", color=colour, alpha=0.3, markersize=3)
        interval, mean = t_interval(values), spread(values).mean
        assert mean is not None
        places.append(aside[x])
        means.append(mean)
        half_widths.append(0.0 if interval is None else interval.high - interval.estimate)
    axes.errorbar(places, means, half_widths, color=colour, marker="o", ms=3, lw=1, capsize=2, label=row.label)


def _draw_paper(
    axes: Axes, spec: TableSpec, row: RowSpec, metric: str, colour: str, step: float, logarithmic: bool
) -> None:
    places = _places(spec)
    at = sorted(set(places.values()))
    known = {column: values[metric] for column, values in row.values.items() if metric in values and column in places}
    if known:
        across = [_aside(places[column], step, at, logarithmic) for column in known]
        axes.plot(across, list(known.values()), "D", mfc="none", color=colour, ms=5, ls="")


def _aside(x: float, step: float, at: Sequence[float], logarithmic: bool) -> float:
    """``x`` moved by ``step`` (in -.5 … .5) of a twentieth of the axis."""
    if logarithmic:
        return x * float((at[-1] / at[0]) ** (step / 20))
    return x + step * ((at[-1] - at[0]) or 1.0) / 20


def _places(spec: TableSpec) -> dict[str, float]:
    return {column.name: column.x for column in spec.columns if column.x is not None}


def _label(metrics: Sequence[MetricSpec], name: str) -> str:
    return next((metric.label for metric in metrics if metric.name == name), words(name))
