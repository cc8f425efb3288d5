"""Attention for each annotator as PNG: over an item's image, or over the frames of a clip.

Colours are on one scale for all annotators of an item: the weight of a token over that of an even share. matplotlib is
imported when something is drawn, with the Agg backend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchmark.report.atomic import write_bytes
from benchmark.report.figure_parts import to_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: panels beside each other
_ACROSS = 5
_COLOURS = "inferno"
#: how much of the image the colours hide
_COVER = 0.6


def write_attention(
    path: Path,
    image: ArrayLike,
    weights: ArrayLike,
    *,
    title: str = "",
    labels: Sequence[str] = (),
    regions: ArrayLike | None = None,
) -> Path:
    """Writes where each annotator's prediction of one item looks, as PNG.

    Args:
        path: the file.
        image: uint8 ``[C, H, W]`` (C is 1 or 3), or the frames of a clip ``[F, C, H, W]``.
        weights: for an image ``[R, N]`` over a square grid of tokens, row by row, which a class token may precede (it
            is left out); for frames ``[R, F]`` or ``[R, F, N]``, whose tokens are summed.
        title: above all panels.
        labels: of each annotator, what they said or what was predicted, beside their number.
        regions: where each label comes from, if that is known: ``[R, H', W']`` or ``[R, F]``; outlined.

    Raises:
        ValueError: if the numbers of tokens, frames or annotators do not fit.
    """
    shown, attention = np.asarray(image), np.asarray(weights, dtype=np.float64)
    true = None if regions is None else np.asarray(regions, dtype=bool)
    names = _names(len(attention), labels)
    if true is not None and len(true) != len(attention):
        raise ValueError(f"{len(true)} regions for {len(attention)} annotators; give one for each, or none")
    if shown.ndim == 3:
        return write_bytes(path, _over_image(_as_shown(shown), _grid(attention), names, title, true))
    return write_bytes(path, _over_frames(shown, _of_frames(attention, len(shown)), names, title, true))


def _names(n_annotators: int, labels: Sequence[str]) -> list[str]:
    if labels and len(labels) != n_annotators:
        raise ValueError(f"{len(labels)} labels for {n_annotators} annotators; give one for each, or none")
    return [f"A{place + 1}" + (f": {labels[place]}" if labels else "") for place in range(n_annotators)]


def _grid(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights ``[R, s, s]`` over an even share's, of ``[R, N]``; without a class token."""
    side = math.isqrt(weights.shape[-1])
    if weights.ndim != 2 or weights.shape[-1] - side * side not in (0, 1):
        raise ValueError(
            f"attention of shape {weights.shape} lies over no square grid; [annotators, s * s] is needed, or one more "
            "for a class token"
        )
    kept = weights[:, -side * side :]
    return (_shares(kept) * side * side).reshape(-1, side, side)


def _of_frames(weights: NDArray[np.float64], n_frames: int) -> NDArray[np.float64]:
    """Weights ``[R, F]`` over an even share's, of ``[R, F]`` or ``[R, F, N]``."""
    summed = weights.sum(-1) if weights.ndim == 3 else weights
    if summed.ndim != 2 or summed.shape[1] != n_frames:
        raise ValueError(f"attention of shape {weights.shape} for {n_frames} frames; [annotators, frames] is needed")
    return _shares(summed) * n_frames


def _shares(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total > 0, total, 1.0)


def _as_shown(image: NDArray[Any]) -> NDArray[Any]:
    """``[H, W, 3]`` of ``[C, H, W]``."""
    return np.broadcast_to(np.moveaxis(image, 0, -1), (*image.shape[1:], 3))


# --- drawing --------------------------------------------------------------------------------------


def _over_image(
    image: NDArray[Any], maps: NDArray[np.float64], names: list[str], title: str, regions: NDArray[np.bool_] | None
) -> bytes:
    wide = min(_ACROSS, len(maps) + 1)
    tall = -(-(len(maps) + 1) // wide)
    canvas = _canvas(1.7 * wide + 0.8, 1.9 * tall + 0.4, title)
    panels = canvas.subplots(tall, wide, squeeze=False).ravel().tolist()
    height, width = image.shape[:2]
    frame = (0, width, height, 0)
    for axes in panels:
        axes.set_axis_off()
    panels[0].imshow(image, extent=frame)
    panels[0].set_title("item", fontsize=7)
    drawn = None
    for place, axes in enumerate(panels[1 : len(maps) + 1]):
        axes.imshow(image, extent=frame)
        drawn = axes.imshow(
            maps[place], cmap=_COLOURS, vmin=0, vmax=maps.max(), alpha=_COVER, extent=frame, interpolation="nearest"
        )
        axes.set_title(names[place], fontsize=7)
        if regions is not None:
            _outline(axes, regions[place], width, height)
    _scale(canvas, drawn, panels)
    return to_png(canvas)


def _outline(axes: Axes, region: NDArray[np.bool_], width: int, height: int) -> None:
    """The border of ``region [H', W']``; a frame of nothing around it closes the line at the edge."""
    tall, wide = region.shape
    framed = np.pad(region.astype(float), 1)
    across = (np.arange(wide + 2) - 0.5) * width / wide
    down = (np.arange(tall + 2) - 0.5) * height / tall
    if region.any():
        axes.contour(across, down, framed, levels=[0.5], colors="cyan", linewidths=0.9)


def _over_frames(
    frames: NDArray[Any], shares: NDArray[np.float64], names: list[str], title: str, regions: NDArray[np.bool_] | None
) -> bytes:
    n_frames = len(frames)
    canvas = _canvas(max(4.0, 0.55 * n_frames + 1.5), 0.22 * len(names) + 1.8, title)
    strip, axes = canvas.subplots(2, 1, height_ratios=[1, max(2.0, 0.25 * len(names))])
    strip.imshow(np.concatenate([_as_shown(each) for each in frames], axis=1), aspect="auto")
    strip.set_axis_off()
    drawn = axes.imshow(shares, cmap=_COLOURS, vmin=0, vmax=shares.max(), aspect="auto", interpolation="nearest")
    axes.set_yticks(range(len(names)), names, fontsize=6)
    axes.set_xlabel("frame", fontsize=7)
    axes.tick_params(axis="x", labelsize=6)
    if regions is not None:
        who, when = np.nonzero(regions)
        axes.scatter(when, who, marker="s", s=14, facecolors="none", edgecolors="cyan", linewidths=0.9)
    _scale(canvas, drawn, [axes])
    return to_png(canvas)


def _canvas(width: float, height: float, title: str) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(canvas)
    canvas.suptitle(title, fontsize=8)
    return canvas


def _scale(canvas: Figure, drawn: Any, panels: list[Axes]) -> None:
    bar = canvas.colorbar(drawn, ax=panels, fraction=0.03, pad=0.01)
    bar.set_label("times an even share", fontsize=6)
    bar.ax.tick_params(labelsize=6)
