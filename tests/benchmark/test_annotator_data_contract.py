"""Every data set of many labels by each annotator keeps the contract of data modules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmark.testing import Check, iter_checks
from datamodules.amer_sim import AmerSim
from datamodules.annotator_data import AnnotatorData
from datamodules.catalogue import DATA
from datamodules.cue_conflict import CueConflict
from datamodules.cue_sim import CueSim
from datamodules.regimes import REGIMES, SUMMARY
from datamodules.street import LEVELS, PERSPECTIVES, Street
from datamodules.street_sim import StreetSim

EMBEDDED = [check for cls in (StreetSim, AmerSim, CueSim) for check in iter_checks(cls)]


@pytest.mark.parametrize("check", EMBEDDED, ids=lambda check: f"{check.subject}-{check.name}")
def test_generated_data_keeps_the_contract(check: Check) -> None:
    check()


@pytest.mark.parametrize("cls", [StreetSim, AmerSim, CueSim, CueConflict, Street], ids=lambda cls: cls.name)
def test_listing_and_class_agree(cls: type[AnnotatorData]) -> None:
    assert cls.regimes == REGIMES[cls.name]
    assert SUMMARY[cls.name].embedded == cls.embedded
    assert bool(DATA[cls.name]) != cls.embedded


def test_street_keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANNOBENCH_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    folder = tmp_path / "street" / "images"
    folder.mkdir(parents=True)
    columns = [f"{prefix}_{number}" for prefix in PERSPECTIVES.values() for number in range(1, 11)]
    lines = [",".join(["name", *columns])]
    for row in range(40):
        Image.fromarray(random.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(folder / f"photo{row}.png")
        lines.append(",".join([f"photo{row}", *random.choice(LEVELS, len(columns))]))
    (tmp_path / "street" / "labels.csv").write_text("\n".join(lines) + "\n")
    for check in iter_checks(Street, root=tmp_path, size=8):
        check()
