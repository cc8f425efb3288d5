"""What a probe of two trained methods returns."""

from __future__ import annotations

from dataclasses import dataclass


class CannotProbe(ValueError):
    """A method or data that a probe does not apply to; the message says why."""


@dataclass(frozen=True)
class Probed:
    """What a probe found.

    Attributes:
        value: the number; None where there is none.
        reason: why there is none, else empty.
    """

    value: float | None
    reason: str = ""
