"""Resident memory of this process: its peak so far, and the peak since it was last asked to forget."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

#: the largest peak that was forgotten, in MiB
_forgotten = 0.0


def peak_memory_mib() -> float:
    """Largest resident memory of this process so far, in MiB, whatever was forgotten since."""
    return max(_forgotten, peak_since_forgotten_mib())


def peak_since_forgotten_mib() -> float:
    """Largest resident memory since :func:`forget_peak` last succeeded, in MiB."""
    peak = _peak_of_this_image()
    if peak is None:
        size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak = size / (2**20 if sys.platform == "darwin" else 2**10)
    return round(peak, 1)


def forget_peak() -> bool:
    """Starts :func:`peak_since_forgotten_mib` anew from what is resident now; False where that cannot be done."""
    global _forgotten
    if not sys.platform.startswith("linux"):
        return False
    before = peak_memory_mib()
    try:
        # proc(5): 5 resets the peak of the resident set
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    _forgotten = before
    return True


def _peak_of_this_image() -> float | None:
    # Linux only. ru_maxrss survives exec: a process started from a large one begins with that one's peak.
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 2**10 for line in lines if line.startswith("VmHWM:")), None)
