"""Attention for each annotator as PNG: over an item's image, or over the frames of a clip.

Colours are on one scale for all annotators of an item: the weight of a token over that of an even share. matplotlib is
imported when something is drawn, with the Agg backend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchmark.report.atomic import write_bytes
from benchmark.report.figure_parts import to_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

#: panels beside each other: an item and ten annotators stand in one line
_ACROSS = 11
_COLOURS = "inferno"
#: how much of the image the colours hide
_COVER = 0.6
#: parts of a side of a region's cell
_FINE = 16


@dataclass(frozen=True)
class Panel:
    """One item with where each annotator's prediction of it looks, checked and ready to draw.

    Attributes:
        shown: image ``[H, W, 3]``, or the frames of a clip ``[F, H, W, 3]``, uint8.
        shares: weights over an even share's: ``[R, s, s]``, or ``[R, F]`` for a clip.
        names: of the annotators.
        regions: where each label comes from, if that is known: ``[R, H', W']`` or ``[R, F]``.
    """

    shown: NDArray[Any]
    shares: NDArray[np.float64]
    names: tuple[str, ...]
    regions: NDArray[np.bool_] | None

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in inches."""
        if self.shown.ndim == 4:
            return max(4.0, 0.55 * len(self.shown) + 1.5), 0.22 * len(self.names) + 1.8
        wide, tall = self._grid
        return 1.3 * wide + 0.8, 1.5 * tall + 0.4

    def draw(self, canvas: FigureBase) -> None:
        """Draws on a picture, or on a part of one."""
        if self.shown.ndim == 3:
            self._over_image(canvas)
        else:
            self._over_frames(canvas)

    # --- within -------------------------------------------------------------------------------

    @property
    def _grid(self) -> tuple[int, int]:
        wide = min(_ACROSS, len(self.shares) + 1)
        return wide, -(-(len(self.shares) + 1) // wide)

    def _over_image(self, canvas: FigureBase) -> None:
        wide, tall = self._grid
        panels = canvas.subplots(tall, wide, squeeze=False).ravel().tolist()
        height, width = self.shown.shape[:2]
        frame = (0, width, height, 0)
        for axes in panels:
            axes.set_axis_off()
        panels[0].imshow(self.shown, extent=frame)
        panels[0].set_title("item", fontsize=7)
        drawn = None
        # in grey: the colours on top of it are those of the weights
        grey = np.broadcast_to(self.shown.mean(-1, keepdims=True), self.shown.shape).astype(np.uint8)
        for place, axes in enumerate(panels[1 : len(self.shares) + 1]):
            axes.imshow(grey, extent=frame)
            look = {"cmap": _COLOURS, "vmin": 0, "vmax": self.shares.max(), "alpha": _COVER, "extent": frame}
            drawn = axes.imshow(self.shares[place], interpolation="nearest", **look)
            axes.set_title(self.names[place], fontsize=7)
            if self.regions is not None:
                _outline(axes, self.regions[place], width, height)
        _scale(canvas, drawn, panels)

    def _over_frames(self, canvas: FigureBase) -> None:
        strip, axes = canvas.subplots(2, 1, height_ratios=[1, max(2.0, 0.25 * len(self.names))])
        strip.imshow(np.concatenate(list(self.shown), axis=1), aspect="auto")
        strip.set_axis_off()
        look = {"cmap": _COLOURS, "vmin": 0, "vmax": self.shares.max(), "aspect": "auto"}
        drawn = axes.imshow(self.shares, interpolation="nearest", **look)
        axes.set_yticks(range(len(self.names)), self.names, fontsize=6)
        axes.set_xlabel("frame", fontsize=7)
        axes.tick_params(axis="x", labelsize=6)
        if self.regions is not None:
            who, when = np.nonzero(self.regions)
            axes.scatter(when, who, marker="s", s=14, facecolors="none", edgecolors="cyan", linewidths=0.9)
        _scale(canvas, drawn, [axes])


def panel_of(
    image: ArrayLike, weights: ArrayLike, *, labels: Sequence[str] = (), regions: ArrayLike | None = None
) -> Panel:
    """One item as it can be drawn; see :func:`write_attention` for the arguments and errors."""
    shown, attention = np.asarray(image), np.asarray(weights, dtype=np.float64)
    true = None if regions is None else np.asarray(regions, dtype=bool)
    names = _names(len(attention), labels)
    if true is not None and len(true) != len(attention):
        raise ValueError(f"{len(true)} regions for {len(attention)} annotators; give one for each, or none")
    shares = _over_grid(attention) if shown.ndim == 3 else _of_frames(attention, len(shown))
    return Panel(_as_shown(shown), shares, names, true)


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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panel = panel_of(image, weights, labels=labels, regions=regions)
    canvas = Figure(figsize=panel.size, layout="constrained")
    FigureCanvasAgg(canvas)
    canvas.suptitle(title, fontsize=8)
    panel.draw(canvas)
    return write_bytes(path, to_png(canvas))


def _names(n_annotators: int, labels: Sequence[str]) -> tuple[str, ...]:
    if labels and len(labels) != n_annotators:
        raise ValueError(f"{len(labels)} labels for {n_annotators} annotators; give one for each, or none")
    return tuple(f"A{place + 1}" + (f": {labels[place]}" if labels else "") for place in range(n_annotators))


def _over_grid(weights: NDArray[np.float64]) -> NDArray[np.float64]:
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
    """Channels last, and three of them: ``[..., H, W, 3]`` of ``[..., C, H, W]``."""
    last = np.moveaxis(image, -3, -1)
    return np.broadcast_to(last, (*last.shape[:-1], 3))


# --- drawing --------------------------------------------------------------------------------------


def _outline(axes: Axes, region: NDArray[np.bool_], width: int, height: int) -> None:
    """The border of ``region [H', W']`` along the edges of its cells; a frame of nothing closes it at the side."""
    if not region.any():
        return
    # a contour runs between the middles of cells: of small ones, it runs along the edge of the large
    fine = np.pad(np.kron(region, np.ones((_FINE, _FINE))), 1)
    across = (np.arange(fine.shape[1]) - 0.5) * width / (fine.shape[1] - 2)
    down = (np.arange(fine.shape[0]) - 0.5) * height / (fine.shape[0] - 2)
    axes.contour(across, down, fine, levels=[0.5], colors="cyan", linewidths=0.9)
    # the frame must not make room for itself
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)


def _scale(canvas: FigureBase, drawn: Any, panels: list[Axes]) -> None:
    bar = canvas.colorbar(drawn, ax=panels, fraction=0.03, pad=0.01)
    bar.set_label("times an even share", fontsize=6)
    bar.ax.tick_params(labelsize=6)
