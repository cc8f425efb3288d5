"""What several protocols ask of a method: its predictions on all items of a loader, in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from models.base import CrowdModule


def predicted_log_probabilities(method: CrowdModule, batches: Iterable[Mapping[str, Any]]) -> Tensor:
    """Log-probabilities ``[N, C]`` of the consensus, float64 on the CPU.

    Raises:
        ValueError: if one is NaN, or a probability infinite.
    """
    outputs = [method.predict_consensus(batch["x"].to(method.device)).double().cpu() for batch in batches]
    log_probabilities = torch.cat(outputs)
    if not torch.isfinite(log_probabilities.exp()).all():
        raise ValueError(f"{type(method).__name__}.predict_consensus returned NaN or infinite probabilities")
    return log_probabilities
