"""What a protocol returns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Measured:
    """Numbers of one trained method.

    Attributes:
        metrics: name -> value as a fraction or in its own unit; None where it is undefined.
        arrays: name -> values that a figure needs, e.g. one per annotator.
    """

    metrics: Mapping[str, float | None] = field(default_factory=dict)
    arrays: Mapping[str, Sequence[float | None]] = field(default_factory=dict)

    def merged_with(self, other: Measured) -> Measured:
        """Both together; a metric that both report is a fault of the protocols."""
        doubled = set(self.metrics) & set(other.metrics)
        if doubled:
            raise ValueError(f"two protocols report {sorted(doubled)}; a metric is measured in one place")
        return Measured({**self.metrics, **other.metrics}, {**self.arrays, **other.arrays})


def finite_or_none(value: float) -> float | None:
    """``value``, or None where it is NaN or infinite (undefined)."""
    return float(value) if math.isfinite(value) else None
