"""Efficiency: trainable parameters, seconds a prediction takes, and the memory it needs."""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor

from benchmark.evaluate.measured import Measured
from benchmark.memory import forget_peak, peak_since_forgotten_mib
from datamodules.base import CrowdDataModule
from models.base import CrowdModule

#: test items predicted at a time, at most
ITEMS = 64
#: predictions that are not timed, and predictions that are
WARM_UP = 2
REPEATS = 10


def measure(method: CrowdModule, datamodule: CrowdDataModule) -> Measured:
    """What the method costs: unlike other metrics these depend on the machine.

    ``trainable_parameters`` is their number; what is frozen, an encoder above all, does not count.
    ``seconds_per_sample`` is the median over ``REPEATS`` predictions of up to ``ITEMS`` test items for all annotators,
    after a warm-up, divided by the items; loading and encoding are not in it. ``peak_memory_mib`` is the most memory
    held meanwhile: CUDA's on a GPU, else this process's resident memory (Linux; None elsewhere), data and libraries
    included.
    """
    x = next(iter(datamodule.test_dataloader()))["x"][:ITEMS].to(method.device)
    for _ in range(WARM_UP):
        _predict(method, x)
    watched = _start_of_peak(method.device)
    seconds = statistics.median(_timed(method, x) for _ in range(REPEATS))
    peak = _peak_mib(method.device) if watched else None
    metrics: dict[str, float | None] = {
        "trainable_parameters": float(sum(each.numel() for each in method.parameters() if each.requires_grad)),
        "seconds_per_sample": seconds / len(x),
        "peak_memory_mib": peak,
    }
    where = "GPU memory" if method.device.type == "cuda" else "resident memory of the process"
    note = (
        f"Seconds per sample: median of {REPEATS} predictions of at most {ITEMS} encoded items for all annotators; "
        f"peak memory: {where} meanwhile."
    )
    return Measured(metrics, notes=(note,))


def _timed(method: CrowdModule, x: Tensor) -> float:
    started = time.perf_counter()
    _predict(method, x)
    return time.perf_counter() - started


def _predict(method: CrowdModule, x: Tensor) -> None:
    method.predict_annotators(x)
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)


# --- memory ---------------------------------------------------------------------------------------


def _start_of_peak(device: torch.device) -> bool:
    """Forgets the peak so far; False where that cannot be done."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return True
    return forget_peak()


def _peak_mib(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device) / 2**20)
    return peak_since_forgotten_mib()
