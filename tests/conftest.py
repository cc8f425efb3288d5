"""Shared by all tests: one thread, no deadlines that a busy machine misses, real data where it is."""

from __future__ import annotations

import os

# before torch is imported: tests run side by side, and sums over several threads round differently
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

from pathlib import Path  # noqa: E402

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

settings.register_profile(
    "annobench", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("annobench")

LANDMARK = Path("cifar10n", "CIFAR-10_human.pt")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder $ANNOBENCH_DATA; skips the test where the real data is not there."""
    folder = os.environ.get("ANNOBENCH_DATA")
    if not folder:
        pytest.skip("ANNOBENCH_DATA is not set; this test reads real data")
    root = Path(folder).resolve()
    if not (root / LANDMARK).is_file():
        pytest.skip(f"ANNOBENCH_DATA is {root}, which has no {LANDMARK}; this test reads real data")
    return root


@pytest.fixture
def isolated_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that stands in for the user's cache and data."""
    monkeypatch.setenv("ANNOBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ANNOBENCH_DATA", str(tmp_path / "data"))
    return tmp_path
