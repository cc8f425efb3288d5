"""Resident memory of this process: its peak so far, and forgetting that peak."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def peak_memory_mib() -> float:
    """Largest resident memory of this process so far, in MiB."""
    peak = _peak_of_this_image()
    if peak is None:
        size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak = size / (2**20 if sys.platform == "darwin" else 2**10)
    return round(peak, 1)


def forget_peak() -> bool:
    """Starts the peak anew from what is resident now; False where that cannot be done."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        # proc(5): 5 resets the peak of the resident set
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _peak_of_this_image() -> float | None:
    # Linux only. ru_maxrss survives exec: a process started from a large one begins with that one's peak.
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 2**10 for line in lines if line.startswith("VmHWM:")), None)
