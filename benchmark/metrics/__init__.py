"""``torchmetrics.Metric`` classes that no library has, exact over the whole set whatever the batch size."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmark.metrics.agreement import DIC, kappa_matrix
    from benchmark.metrics.calibration import ECE
    from benchmark.metrics.distributions import EntropyCorrelation, JensenShannon, SoftBrier, SoftKL
    from benchmark.metrics.soft import SoftNLL

__all__ = ["DIC", "ECE", "EntropyCorrelation", "JensenShannon", "SoftBrier", "SoftKL", "SoftNLL", "kappa_matrix"]

_HOMES = {
    "DIC": "benchmark.metrics.agreement",
    "ECE": "benchmark.metrics.calibration",
    "EntropyCorrelation": "benchmark.metrics.distributions",
    "JensenShannon": "benchmark.metrics.distributions",
    "SoftBrier": "benchmark.metrics.distributions",
    "SoftKL": "benchmark.metrics.distributions",
    "SoftNLL": "benchmark.metrics.soft",
    "kappa_matrix": "benchmark.metrics.agreement",
}


def __getattr__(name: str) -> object:
    """Imports a metric (and torch with it) when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; there are: {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
