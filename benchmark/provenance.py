"""Where a number comes from: versions, hardware, git revision, data digest, durations, profile."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmark.resolve import ResolvedCell

PACKAGES = ("annobench", "torch", "lightning", "torchmetrics", "timm", "numpy")


def provenance(resolved: ResolvedCell, seconds: dict[str, float], peak_memory_mib: float) -> dict[str, Any]:
    """The provenance record of one result; ``seconds`` by phase, memory in MiB."""
    cell = resolved.cell
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "method_version": resolved.method.version,
        "data_version": resolved.dataset.version,
        "git": git_revision(),
        "hardware": hardware(),
        "threads": cell.train.threads,
        "profile": cell.profile,
        "data_digest": resolved.data_digest,
        "method_args": resolved.method_args,
        "data_args": resolved.data_args,
        "seconds": seconds,
        "peak_memory_mib": peak_memory_mib,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


@cache
def hardware() -> str:
    """The processor and, where there is one, the GPU, e.g. ``AMD EPYC (2 cores)``."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{_processor()} ({os.cpu_count()} cores)"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


@cache
def git_revision() -> str | None:
    """Revision of the checkout that this code runs from (``+`` if changed), or None outside one."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        tracked = git("ls-files", "--error-unmatch", Path(__file__).name)
        revision = git("rev-parse", "--short=12", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{revision}{'+' if changed else ''}" if tracked else None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
