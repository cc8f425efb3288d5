"""What all metrics on predicted distributions check first."""

from __future__ import annotations

import torch
from torch import Tensor

#: how far a row may be from summing to one: half-precision softmax is off by a few thousandths
SUM_TOLERANCE = 2e-2


def as_probabilities(predictions: Tensor) -> Tensor:
    """Predicted distributions ``[B, C]`` as float64 probabilities.

    Args:
        predictions: probabilities, or log-probabilities as ``predict_consensus`` gives them. Those are
            told apart without doubt: a distribution over two or more classes has a negative
            log-probability, and never a negative probability.

    Raises:
        ValueError: if the shape is not ``[B, C]``, a value is NaN, or a row does not sum to one (logits).
    """
    if predictions.ndim != 2:
        raise ValueError(f"predictions have shape {tuple(predictions.shape)}; [batch, classes] is needed")
    wide = predictions.detach().double()
    if len(wide) == 0:
        return wide
    if wide.isnan().any():
        raise ValueError("predictions hold NaN; the method diverged")
    probabilities = wide.exp() if bool((wide < 0).any()) else wide
    worst = float((probabilities.sum(1) - 1).abs().max())
    if not worst <= SUM_TOLERANCE:
        raise ValueError(
            f"a row of predictions sums to one only within {worst:.3g}; give probabilities or "
            "log-probabilities, not logits (apply log_softmax)"
        )
    return probabilities


def check_targets(targets: Tensor, shape: tuple[int, ...]) -> None:
    """ValueError unless ``targets`` has ``shape``."""
    if tuple(targets.shape) != shape:
        raise ValueError(f"targets have shape {tuple(targets.shape)}; {list(shape)} is needed to match predictions")


def concatenated(parts: list[Tensor] | Tensor) -> Tensor:
    """One tensor of a list state, which a distributed reduction may have joined already."""
    if isinstance(parts, Tensor):
        return parts
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)
