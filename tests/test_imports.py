"""Imports point one way, and a tree that breaks the rule is caught."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("benchmark", "models", "datamodules")


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs import-linter with the configuration and the packages of ``folder``."""
    code = "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_imports_point_one_way() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_import_against_the_direction_is_caught(tmp_path: Path) -> None:
    """A rule that nothing can break proves nothing: the same configuration fails on a broken tree."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "datamodules" / "names.py").open("a") as file:
        file.write("\nfrom models import base as _base  # noqa\n")
    done = lint_imports(tmp_path)
    assert done.returncode != 0
    assert "datamodules.names -> models.base" in done.stdout.replace("  ", " ")


def test_packages_import_nothing_heavy() -> None:
    """The three packages themselves must stay light: `annobench list` answers within a second."""
    code = (
        "import sys, benchmark, models, datamodules, benchmark.spec, datamodules.names;"
        "print([n for n in ('torch', 'lightning', 'sklearn', 'pandas', 'timm') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
