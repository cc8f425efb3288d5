"""Form ``pairs``: what probes of two trained models say, a panel a probe, a strip of points a pair of rows.

Pairs over different seeds share models with each other, so they are not independent: a mean is drawn, no interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmark.report.figure_parts import Record, figure_of, is_number, no_result, panels, paper_lines, to_png, words
from benchmark.report.statistics import spread
from benchmark.result import Outcome
from benchmark.spec import TableSpec
from benchmark.table_parts import PairSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FIELDS = ("column", "pair", "probe", "first_seed", "second_seed", "value", "reason")


def pair_records(pairs: Sequence[Mapping[str, Any]]) -> list[Record]:
    """``pairs`` with the fields of :data:`_FIELDS`, in order; what is not a number is None, and ``reason`` says why."""
    records = [{name: pair.get(name, "") for name in _FIELDS} for pair in pairs]
    return [{**record, "value": record["value"] if is_number(record["value"]) else None} for record in records]


def draw_pairs(spec: TableSpec, profile: str, outcomes: Sequence[Outcome], pairs: Sequence[Mapping[str, Any]]) -> bytes:
    """A panel per probe; the paper's values (``figure.paper[probe]``) as dotted lines on its own data."""
    figure = figure_of(spec)
    records = [record for record in pair_records(pairs) if record["value"] is not None]
    canvas, ((*row_of_panels,),) = panels(spec, profile, outcomes, 1, len(figure.y))
    for axes, probe in zip(row_of_panels, figure.y, strict=True):
        axes.set_title(words(probe), fontsize=8)
        here = [record for record in records if record["probe"] == probe]
        if not here:
            no_result(axes)
            continue
        _panel(axes, figure.pairs, here)
        if spec.profile(profile).is_papers_data:
            paper_lines(axes, figure.paper.get(probe, {}), "grey")
    return to_png(canvas)


def _panel(axes: Axes, pairs: Sequence[PairSpec], records: Sequence[Record]) -> None:
    for place, pair in enumerate(pairs):
        values = [record["value"] for record in records if record["pair"] == pair.label]
        across = [place + _jitter(index, len(values)) for index in range(len(values))]
        axes.plot(across, values, "o", color=f"C{place % 10}", alpha=0.5, ms=3, ls="")
        mean = spread(values).mean
        if mean is not None:
            axes.plot([place - 0.3, place + 0.3], [mean, mean], color=f"C{place % 10}", lw=1.5)
    axes.set_xlim(-0.6, len(pairs) - 0.4)
    axes.set_xticks(range(len(pairs)), [pair.label.replace(", ", ",\n") for pair in pairs], fontsize=6)


def _jitter(index: int, count: int) -> float:
    """Evenly beside each other, in the order given: chance has no place in a figure."""
    return 0.4 * (index / (count - 1) - 0.5) if count > 1 else 0.0
