"""Form ``attention``: one item and where each annotator's prediction looks, a band a row and column.

Of the lowest seed with a result: items and networks of different seeds have nothing to do with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmark.report.attention_maps import Panel, panel_of
from benchmark.report.figure_map import lowest_seeds
from benchmark.report.figure_parts import Record, heading, to_png
from benchmark.result import Outcome, Result
from benchmark.spec import TableSpec

#: height in inches of a band with nothing to show, and of the title
_EMPTY, _TITLE = 0.6, 0.6
_DPI = 80


def attention_records(spec: TableSpec, outcomes: Sequence[Outcome]) -> list[Record]:
    """A record per annotator and token (or frame) of what is drawn; the picture itself is not in it."""
    records: list[Record] = []
    for outcome in lowest_seeds(outcomes):
        assert outcome.result is not None, "only outcomes with a result are drawn"
        weights = _array(outcome.result, "weights")
        if weights is None:
            continue
        labels, predictions = (_array(outcome.result, name) for name in ("labels", "predictions"))
        assert labels is not None and predictions is not None, "kept together"
        # of frames, what their tokens get together
        over = weights.sum(-1) if weights.ndim == 3 else weights
        place = {"row": outcome.row, "column": outcome.column, "seed": outcome.cell.seed}
        records += [
            {
                **place,
                "annotator": annotator + 1,
                "label": int(labels[annotator]),
                "predicted": int(predictions[annotator]),
                "token": token,
                "weight": round(float(weight), 6),
            }
            for annotator, own in enumerate(over)
            for token, weight in enumerate(own)
        ]
    return records


def draw_attention(spec: TableSpec, profile: str, outcomes: Sequence[Outcome]) -> bytes:
    """A band for each row of the spec and column, one under the other; those without attention say so."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = {(outcome.row, outcome.column): outcome for outcome in lowest_seeds(outcomes)}
    places = [(row, column) for column in spec.columns for row in spec.rows]
    found = [drawn.get((row.name, column.name)) for row, column in places]
    panels = [_panel(outcome) for outcome in found]
    heights = [panel.size[1] + 0.3 if panel else _EMPTY for panel in panels]
    width = max([5.0, *(panel.size[0] for panel in panels if panel)])
    canvas = Figure(figsize=(width, sum(heights) + _TITLE), layout="constrained")
    FigureCanvasAgg(canvas)
    canvas.suptitle(heading(spec, profile, outcomes, width), fontsize=9)
    bands = np.ravel(canvas.subfigures(len(panels), 1, height_ratios=heights, squeeze=False)).tolist()
    for band, (row, column), panel, outcome in zip(bands, places, panels, found, strict=True):
        if panel is None or outcome is None:
            band.suptitle(
                f"{row.label}, {column.label}: {'no result' if outcome is None else 'no attention'}", fontsize=8
            )
        else:
            band.suptitle(f"{row.label}, {column.label}, seed {outcome.cell.seed}", fontsize=8)
            panel.draw(band)
    # many small pictures: a file of them is not to be megabytes
    return to_png(canvas, _DPI)


def _panel(outcome: Outcome | None) -> Panel | None:
    """What there is to draw of a result; None if nothing."""
    if outcome is None or outcome.result is None:
        return None
    kept = {name: _array(outcome.result, name) for name in ("image", "weights", "labels", "predictions", "regions")}
    image, weights, labels, predictions, regions = kept.values()
    if image is None or weights is None or labels is None or predictions is None:
        return None
    said = ["–" if label < 0 else str(int(label)) for label in labels]
    names = [f"{own}, predicted {int(other)}" for own, other in zip(said, predictions, strict=True)]
    return panel_of(image.astype(np.uint8), weights, labels=names, regions=regions)


def _array(result: Result, name: str) -> NDArray[Any] | None:
    """The array ``example_<name>`` in its shape; None where the result has none."""
    values, shape = (result.arrays.get(f"example_{name}{end}") for end in ("", "_shape"))
    if values is None or shape is None:
        return None
    sizes = [int(size) for size in shape if size is not None]
    return np.array(values, dtype=np.float64).reshape(sizes) if prod(sizes) == len(values) else None
