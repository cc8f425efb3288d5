"""Form ``map``: items in two dimensions, coloured by class, a panel a row and column; of the first seed with a result.

Coordinates of different seeds have nothing to do with each other, so seeds are not drawn on top of each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmark.report.figure_parts import Record, done, figure_of, no_result, panels, to_png
from benchmark.result import Outcome
from benchmark.spec import TableSpec


def map_records(spec: TableSpec, outcomes: Sequence[Outcome]) -> list[Record]:
    """A record per item of the seed that is drawn; an item without a place is left out."""
    figure = figure_of(spec)
    names = (figure.x, figure.y[0], figure.colour)
    records: list[Record] = []
    for outcome in lowest_seeds(outcomes):
        assert outcome.result is not None, "only outcomes with a result are drawn"
        arrays = [outcome.result.arrays.get(name, []) for name in names]
        place = {"row": outcome.row, "column": outcome.column, "seed": outcome.cell.seed}
        for x, y, number in zip(*arrays, strict=True):
            if x is not None and y is not None and number is not None:
                records.append({**place, "x": x, "y": y, "class": int(number)})
    return records


def draw_map(spec: TableSpec, profile: str, outcomes: Sequence[Outcome]) -> bytes:
    """A row of panels per row of the spec, a panel per column; axes without numbers, which mean nothing."""
    records = map_records(spec, outcomes)
    canvas, grid = panels(spec, profile, outcomes, len(spec.rows), len(spec.columns))
    for axes_row, row in zip(grid, spec.rows, strict=True):
        for axes, column in zip(axes_row, spec.columns, strict=True):
            axes.set_title(f"{row.label}\n{column.label}", fontsize=8)
            axes.set_xticks([])
            axes.set_yticks([])
            here = [record for record in records if (record["row"], record["column"]) == (row.name, column.name)]
            if not here:
                no_result(axes)
            for number in sorted({record["class"] for record in here}):
                members = [record for record in here if record["class"] == number]
                at = ([record["x"] for record in members], [record["y"] for record in members])
                axes.plot(*at, "o", color=f"C{number % 10}", ms=3, alpha=0.8)
    return to_png(canvas)


def lowest_seeds(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Of each row and column, the outcome of the lowest seed that has a result."""
    lowest: dict[tuple[str, str], Outcome] = {}
    for outcome in sorted(done(outcomes), key=lambda each: each.cell.seed):
        lowest.setdefault((outcome.row, outcome.column), outcome)
    return list(lowest.values())
