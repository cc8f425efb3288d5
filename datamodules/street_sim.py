"""Generated street scenes with simulated annotators who each look at one known kind of thing: STREET's embedded twin.

A scene of 48 x 48 pixels has nine places of 16 x 16. Five kinds of things (:data:`KINDS`) stand at five of them, where
is drawn anew for each scene; the other places are empty road. A thing is a block of four dots in the colour of its
kind on dark ground, and its state, one of six levels, is the size of the dots. With probability :data:`MOOD` a thing's
level is that of its whole scene, else any, so that annotators who look at different things agree more often than by
chance.

Ten annotators (:data:`LOOKS_AT`, :data:`BIAS`): annotator r sees the level of one kind and answers with it plus a bias
of their own, kept between the lowest and the highest level; with probability :data:`SLIP` the answer is any level.
Scenes and answers are made once, like those of a published file; seeds choose the split and deletions alone. So the
place that an answer comes from is known (``CrowdData.test_regions``): an attention map can be scored against it.

>>> StreetSim("full").info
DataInfo(n_classes=6, n_annotators=10, input_shape=(3, 48, 48))
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from datamodules.annotator_data import AnnotatorData
from datamodules.base import CrowdData
from datamodules.regimes import REGIMES
from datamodules.split import random_split

#: kind of thing -> its colour
KINDS: dict[str, tuple[int, int, int]] = {
    "trees": (60, 190, 60),
    "cars": (215, 50, 50),
    "people": (235, 200, 60),
    "windows": (70, 120, 235),
    "litter": (200, 80, 210),
}
CLASS_NAMES = ("-3", "-2", "-1", "1", "2", "3")
#: number of the kind that each annotator looks at
LOOKS_AT = (0, 1, 2, 3, 4, 0, 1, 2, 3, 4)
#: what each annotator adds to the level they see
BIAS = (0, 0, 0, 0, 0, 1, -1, 2, -2, 1)
N_ITEMS = 1_500
#: places along a side of a scene, pixels along a side of a place, dots along a side of a thing
GRID, PLACE, DOTS = 3, 16, 2
#: probability that a thing's level is that of its scene
MOOD = 0.6
#: probability that an answer is any level
SLIP = 0.1
#: standard deviation of the noise of a pixel, in grey levels
GRAIN = 8.0
#: grey of an empty place, and of the ground around a thing's dots
ROAD, GROUND = 90.0, 40.0
SCENE_SEED = 0
MEAN = (0.336, 0.313, 0.310)
STD = (0.213, 0.168, 0.192)
NOTE = "street_sim is generated: its scenes are drawn and its ten annotators simulated; it is not STREET"


class Scenes(NamedTuple):
    """All scenes with the answers to them.

    Attributes:
        x: images ``[N, 3, 48, 48]`` uint8.
        places: where each kind of thing stands, ``[N, 5]`` int64 in ``[0, 9)``, row by row.
        levels: level of each kind ``[N, 5]`` int64 in ``[0, 6)``.
        labels: answers ``[N, 10]`` int64.
    """

    x: Tensor
    places: Tensor
    levels: Tensor
    labels: Tensor


class StreetSim(AnnotatorData):
    """Generated scenes; see :class:`AnnotatorData` for the arguments."""

    name = "street_sim"
    regimes = REGIMES["street_sim"]
    embedded = True

    def load(self) -> CrowdData:
        """Draws the scenes, once a process."""
        made = scenes()
        split = random_split(N_ITEMS, self.split_seed)
        return self.assembled(
            made.x,
            made.labels,
            split,
            len(CLASS_NAMES),
            class_names=CLASS_NAMES,
            notes=(NOTE,),
            mean=MEAN,
            std=STD,
            test_regions=true_regions(made.places[split.test]),
        )


@lru_cache(maxsize=1)
def scenes() -> Scenes:
    """The 1,500 scenes, always the same."""
    random = np.random.default_rng(SCENE_SEED)
    n_kinds, n_levels = len(KINDS), len(CLASS_NAMES)
    places = random.permuted(np.tile(np.arange(GRID**2), (N_ITEMS, 1)), axis=1)[:, :n_kinds]
    levels = random.integers(0, n_levels, (N_ITEMS, n_kinds))
    mood = random.integers(0, n_levels, (N_ITEMS, 1))
    levels = np.where(random.random((N_ITEMS, n_kinds)) < MOOD, mood, levels)
    seen = np.clip(levels[:, LOOKS_AT] + np.array(BIAS), 0, n_levels - 1)
    slips = random.random(seen.shape) < SLIP
    labels = np.where(slips, random.integers(0, n_levels, seen.shape), seen)
    pixels = _draw(places, levels) + random.normal(0, GRAIN, (N_ITEMS, 3, GRID * PLACE, GRID * PLACE))
    x = np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
    return Scenes(*(torch.from_numpy(array) for array in (x, places, levels, labels)))


def true_regions(places: Tensor) -> Tensor:
    """Where each annotator's answer comes from: bool ``[M, 10, 3, 3]`` over the places of a scene.

    Args:
        places: place of each kind of thing ``[M, 5]``.
    """
    where = torch.nn.functional.one_hot(places[:, LOOKS_AT], GRID**2).bool()
    return where.reshape(len(places), len(LOOKS_AT), GRID, GRID)


def _draw(places: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Scenes ``[N, 3, 48, 48]`` float64 without grain."""
    blocks = np.full((len(places), GRID**2, 3, PLACE, PLACE), ROAD)
    rows = np.arange(len(places))
    shapes = np.stack([_dots(level) for level in range(len(CLASS_NAMES))])
    for kind, colour in enumerate(KINDS.values()):
        dots = shapes[levels[:, kind], np.newaxis]
        blocks[rows, places[:, kind]] = np.where(dots, np.array(colour, float).reshape(3, 1, 1), GROUND)
    grid = blocks.reshape(-1, GRID, GRID, 3, PLACE, PLACE).transpose(0, 3, 1, 4, 2, 5)
    return grid.reshape(-1, 3, GRID * PLACE, GRID * PLACE)


def _dots(level: int) -> np.ndarray:
    """Mask ``[16, 16]`` of four square dots of ``level + 2`` pixels, each in the middle of a quarter."""
    cell, side = PLACE // DOTS, level + 2
    start = (cell - side) // 2
    dot = np.zeros((cell, cell), dtype=bool)
    dot[start : start + side, start : start + side] = True
    return np.tile(dot, (DOTS, DOTS))
