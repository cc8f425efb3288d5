"""Few-shot tasks from scikit-learn's digits and their rotations: embedded, nothing to download.

Ten classes are too few for disjoint source, validation and target classes, so turned digits are classes too. What
looks alike is left out: 0, 1, 2, 5 and 8 are much the same upside down, and 6 upside down is a 9. These come upright
and turned by 90 degrees, and 3, 4 and 7 turned by 0, 90, 180 and 270. That makes 26 classes. Every scan is dealt to
one rotation of its digit, so that no item is another one turned, and all rotations of a digit are in the same part.

>>> DigitsEpisodes("hammer-spammer").info
DataInfo(n_classes=4, n_annotators=7, input_shape=(1, 8, 8))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from datamodules.digits import digit_images
from datamodules.episodes import EpisodicData, EpisodicDataModule, Pool
from datamodules.few_shot_regimes import SIMULATED

#: digit -> quarter turns that are classes
TURNS: Mapping[int, tuple[int, ...]] = {
    **dict.fromkeys((0, 1, 2, 5, 6, 8, 9), (0, 1)),
    **dict.fromkeys((3, 4, 7), (0, 1, 2, 3)),
}
#: digits of each part: 14, 6 and 6 classes
PARTS: tuple[tuple[int, ...], ...] = ((0, 1, 3, 5, 6, 9), (7, 8), (2, 4))
SIMULATED_NOTE = "the annotators of few-shot tasks are simulated"


class DigitsEpisodes(EpisodicDataModule):
    """Few-shot tasks of turned digits; see :class:`EpisodicDataModule` for the arguments."""

    name = "digits_episodes"
    regimes: ClassVar[Mapping[str, str]] = SIMULATED
    embedded = True

    def load(self) -> EpisodicData:
        """Images from scikit-learn, turned."""
        images, classes = turned_digits()
        train, val, test = (_pool(images, classes, digits) for digits in PARTS)
        scaled = train.x.double() / 255
        return EpisodicData(
            train,
            val,
            test,
            class_names=tuple(f"{number // 4} turned by {number % 4 * 90} degrees" for number in range(40)),
            notes=(SIMULATED_NOTE, "classes of digits_episodes are digits and their rotations"),
            mean=(float(scaled.mean()),),
            std=(float(scaled.std()),),
        )


def turned_digits() -> tuple[Tensor, Tensor]:
    """All scans ``[1797, 1, 8, 8]`` uint8, each turned one way, and classes ``[1797]``: 4 x digit + quarter turns."""
    images, digits = digit_images()
    turned, classes = images.clone(), torch.zeros_like(digits)
    for digit, turns in TURNS.items():
        members = (digits == digit).nonzero().flatten()
        for place, turn in enumerate(turns):
            rows = members[place :: len(turns)]
            turned[rows] = images[rows].rot90(turn, dims=(-2, -1))
            classes[rows] = 4 * digit + turn
    return turned, classes


def _pool(images: Tensor, classes: Tensor, digits: tuple[int, ...]) -> Pool:
    chosen = torch.isin(classes // 4, torch.tensor(digits))
    return Pool(images[chosen], classes[chosen])
