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
        notes: sentences that belong under every table made from these numbers: what could not be measured
            and why, how a number was estimated.
    """

    metrics: Mapping[str, float | None] = field(default_factory=dict)
    arrays: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def merged_with(self, other: Measured) -> Measured:
        """Both together, notes in order; a metric or array that both report is a fault of the protocols."""
        doubled = set(self.metrics) & set(other.metrics) | set(self.arrays) & set(other.arrays)
        if doubled:
            raise ValueError(f"two protocols report {sorted(doubled)}; a metric is measured in one place")
        notes = dict.fromkeys((*self.notes, *other.notes))  # each once, in the order in which they came
        return Measured({**self.metrics, **other.metrics}, {**self.arrays, **other.arrays}, tuple(notes))

    def prefixed(self, prefix: str) -> Measured:
        """The same under names that start with ``prefix``, e.g. those of another checkpoint; notes stay."""
        metrics = {prefix + name: value for name, value in self.metrics.items()}
        arrays = {prefix + name: values for name, values in self.arrays.items()}
        return Measured(metrics, arrays, self.notes)


def finite_or_none(value: float) -> float | None:
    """``value``, or None where it is NaN or infinite (undefined)."""
    return float(value) if math.isfinite(value) else None
