"""The numbers in the README are those that were measured: its block is a copy of the leaderboards' table."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_measured_block_is_the_leaderboards_table() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    measured = (ROOT / "leaderboards" / "lmnl" / "table2.md").read_text(encoding="utf-8")
    block = re.search(r"<!-- measured: begin .*?-->\n(.*?)<!-- measured: end -->", readme, re.DOTALL)
    assert block is not None
    rows = [line for line in block.group(1).splitlines() if line.startswith("|")]
    assert len(rows) >= 6, "the table has a head and at least four rows"
    assert "\n".join(rows) in measured
    text = " ".join(block.group(1).split())
    for word in ("cpu profile", "three seeds", "JPEG copy", "AMD EPYC"):
        assert word in text, f"the block says where its numbers come from ({word})"
