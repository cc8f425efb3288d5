"""What the forms of figures share: the canvas, points as CSV, PNG bytes."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmark.report.notes import data_line
from benchmark.report.statistics import spread
from benchmark.result import DONE, Outcome
from benchmark.spec import SpecError, TableSpec
from benchmark.table_parts import FigureSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = dict[str, Any]
#: letters of 9 points to an inch
_LETTERS = 14


def figure_of(spec: TableSpec) -> FigureSpec:
    """How ``spec`` is drawn; SpecError if it is a table."""
    if spec.figure is None:
        raise SpecError(f"{spec.table} is a table, not a figure; its YAML has no 'figure'")
    return spec.figure


def panels(
    spec: TableSpec, profile: str, outcomes: Sequence[Outcome], tall: int, wide: int
) -> tuple[Figure, list[list[Axes]]]:
    """A canvas with the table's title and data, and ``tall`` rows of ``wide`` panels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width = max(4.5, 3.4 * wide)
    canvas = Figure(figsize=(width, 3.4 * tall + 0.7), layout="constrained")
    FigureCanvasAgg(canvas)
    canvas.suptitle(heading(spec, profile, outcomes, width), fontsize=9)
    return canvas, canvas.subplots(tall, wide, squeeze=False).tolist()


def heading(spec: TableSpec, profile: str, outcomes: Sequence[Outcome], width: float) -> str:
    """The table's title and its data, in lines that a picture of ``width`` inches holds at 9 points."""
    lines = (spec.title, f"{data_line(spec, spec.profile(profile), outcomes)}, profile {profile}")
    return "\n".join(textwrap.fill(line, int(_LETTERS * width)) for line in lines)


def no_result(axes: Axes) -> None:
    """Says in an empty panel that it is empty."""
    axes.text(0.5, 0.5, "no result", ha="center", va="center", transform=axes.transAxes)


def paper_lines(axes: Axes, points: Mapping[str, float], colour: str) -> None:
    """The paper's values as dotted horizontal lines with their names."""
    for point, value in points.items():
        axes.axhline(value, color=colour, linestyle=":", linewidth=0.8)
        axes.annotate(f"paper, {point}", (0.99, value), xycoords=("axes fraction", "data"), ha="right", fontsize=6)


def done(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes with a result."""
    return [outcome for outcome in outcomes if outcome.status == DONE and outcome.result is not None]


def is_number(value: float | None) -> bool:
    """Whether ``value`` is there and finite."""
    return spread([value]).n == 1


def to_csv(records: Sequence[Record]) -> str:
    """A line a record, under the names of the first; line feeds."""
    stream = io.StringIO()
    names = list(records[0]) if records else ["row", "column", "seed"]
    writer = csv.DictWriter(stream, fieldnames=names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return stream.getvalue()


def words(name: str) -> str:
    """A name as a reader reads it."""
    return name.replace("_", " ")


def to_png(canvas: Figure, dpi: int = 130) -> bytes:
    """The picture, of ``dpi`` pixels an inch; the same points give the same bytes."""
    stream = io.BytesIO()
    # without the version of matplotlib in the file, the same points give the same bytes
    canvas.savefig(stream, format="png", dpi=dpi, metadata={"Software": None})
    return stream.getvalue()
