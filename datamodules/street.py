"""STREET: photos of streets, each rated by ten people from five perspectives. Not released; read where you have it.

Laid out as QuMATL's scripts expect (arXiv 2503.15237; repository QuMAB): ``street/labels.csv`` with a column ``name``
and the columns ``Happiness_1`` ... ``Happiness_10``, likewise ``Healthy``, ``Safe``, ``Lively`` and ``Orderly``, each
-3, -2, -1, 1, 2 or 3; photos in ``street/images``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from datamodules.clips import read_image
from datamodules.names import unknown_name
from datamodules.regimes import REGIMES
from datamodules.released_table import ReleasedTable

Perspective = Literal["happiness", "healthiness", "safety", "liveliness", "orderliness"]
#: perspective -> how its columns begin
PERSPECTIVES: dict[str, str] = {
    "happiness": "Happiness",
    "healthiness": "Healthy",
    "safety": "Safe",
    "liveliness": "Lively",
    "orderliness": "Orderly",
}
LEVELS = ("-3", "-2", "-1", "1", "2", "3")
N_ANNOTATORS = 10


class Street(ReleasedTable):
    """STREET from one perspective.

    Args:
        regime: ``full`` or ``drop=P``.
        perspective: ``happiness``, ``healthiness``, ``safety``, ``liveliness`` or ``orderliness``; one model each.
        shared: arguments of :class:`ReleasedTable`.

    Raises:
        ValueError: for a perspective that does not exist.
    """

    name = "street"
    version = "2"
    regimes = REGIMES["street"]
    items_folder = "images"
    endings = (".jpg", ".jpeg", ".png")
    scale = {level: number for number, level in enumerate(LEVELS)}
    class_names = LEVELS

    def __init__(self, regime: str, *, perspective: Perspective = "happiness", **shared: Any) -> None:
        super().__init__(regime, **shared)
        if perspective not in PERSPECTIVES:
            raise ValueError(unknown_name("perspective", perspective, PERSPECTIVES, where="data set 'street'"))
        self.perspective = perspective

    def columns(self) -> tuple[str, ...]:
        """The ten columns of the perspective."""
        return tuple(f"{PERSPECTIVES[self.perspective]}_{number}" for number in range(1, N_ANNOTATORS + 1))

    def item_shape(self) -> tuple[int, ...]:
        """``(3, size, size)``."""
        return (3, self.size, self.size)

    def decode(self, path: Path) -> np.ndarray:
        """The photo ``path``."""
        return read_image(path, self.size)
