"""Peak memory is this process's own, not that of the process it was started from."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmark.memory import forget_peak, peak_memory_mib, peak_since_forgotten_mib

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@linux
def test_a_process_does_not_inherit_the_peak_of_the_one_that_started_it() -> None:
    # a CI run failed on a cell that "needed" 2,172 MiB: the peak of the test process it was started from
    block = bytearray(b"x") * (400 * 2**20)
    assert peak_memory_mib() > 400
    code = "from benchmark.memory import peak_memory_mib; print(peak_memory_mib())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    del block
    assert 1 < float(done.stdout) < 300


@linux
def test_a_forgotten_peak_starts_from_what_is_held_now() -> None:
    block = bytearray(b"x") * (300 * 2**20)
    before = peak_memory_mib()
    del block
    if not forget_peak():
        pytest.skip("this kernel does not let a process forget its peak")
    assert peak_since_forgotten_mib() < before - 200
    # the protocol that measures prediction forgets: the cell's own peak, its training, went with it
    assert peak_memory_mib() >= before
