"""The wheel holds what it must, a plugin beside it works, and the README's commands and code are real."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from benchmark.cli import build_parser
from benchmark.testing import check_datamodule, check_method

ROOT = Path(__file__).parent.parent
PACKAGES = ("benchmark", "models", "datamodules")
PLUGIN = Path(__file__).parent / "plugin"
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")


def run(*command: str | Path, cwd: Path, **extra_env: str) -> subprocess.CompletedProcess[str]:
    """Runs a command without the environment variables that would help it find the checkout."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ANNOBENCH"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**env, **extra_env},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.join(map(str, command))} gave {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def build_wheel(source: Path, folder: Path) -> Path:
    """The wheel of the project in ``source``, which is left as it is."""
    before = set(folder.glob("*.whl"))
    run(
        sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
        "--wheel-dir", folder, source, cwd=folder,
    )  # fmt: skip
    (wheel,) = set(folder.glob("*.whl")) - before
    return wheel


@pytest.fixture(scope="session")
def annobench_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of this tree."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=IGNORED)
    return build_wheel(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def fresh_environment(annobench_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with both wheels; torch and the other libraries are this environment's.

    Its own packages come first, and editable installs of this environment do not reach into it.
    """
    folder = tmp_path_factory.mktemp("fresh")
    shutil.copytree(PLUGIN, folder / "plugin", ignore=IGNORED)
    plugin_wheel = build_wheel(folder / "plugin", folder)
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    run(
        sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index",
        annobench_wheel, plugin_wheel, cwd=folder,
    )  # fmt: skip
    where = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).stdout.strip()
    libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    Path(where, "zz_libraries.pth").write_text("\n".join(sorted(libraries)) + "\n")
    return folder / "venv" / "bin"


@pytest.fixture
def confusing_folder(tmp_path: Path) -> Path:
    """A folder with packages of its own that have the same names as ours."""
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('the wrong {name} was imported')\n")
    return tmp_path


def test_wheel_holds_tables_and_cards(annobench_wheel: Path) -> None:
    held = set(zipfile.ZipFile(annobench_wheel).namelist())
    wanted = [*ROOT.glob("benchmark/tables/*/*.yaml"), *ROOT.glob("models/*/card.md")]
    assert wanted
    missing = {path.relative_to(ROOT).as_posix() for path in wanted} - held
    assert not missing
    tops = {name.split("/")[0] for name in held if ".dist-info" not in name}
    assert tops == set(PACKAGES)


def test_plugin_is_listed_with_its_distribution(fresh_environment: Path, confusing_folder: Path) -> None:
    found = {}
    for kind in ("methods", "datasets", "regimes", "tables"):
        done = run(fresh_environment / "annobench", "list", kind, "--json", cwd=confusing_folder)
        found[kind] = {entry["name"]: entry["source"] for entry in json.loads(done.stdout)}
    assert found["methods"]["vote_counter"] == "annobench-tiny-plugin"
    assert found["methods"]["cross_entropy"] == "built-in"
    assert found["datasets"]["two_blobs"] == "annobench-tiny-plugin"
    assert found["regimes"]["two_blobs/noisy"] == "annobench-tiny-plugin"
    assert found["tables"]["tiny/table1"] == "annobench-tiny-plugin"


def test_plugin_runs_in_a_grid(fresh_environment: Path, confusing_folder: Path) -> None:
    """From a folder with a models/ and a benchmark/ package of its own, in worker processes too."""
    annobench = fresh_environment / "annobench"
    results = confusing_folder / "out"
    arguments = ("tiny/table1", "--profile", "demo", "--results", results, "--seeds", "1")
    run(annobench, "run", *arguments, cwd=confusing_folder)
    table = json.loads(run(annobench, "table", *arguments, "--format", "json", cwd=confusing_folder).stdout)
    cells = {cell["column"]: cell for cell in table["cells"]}
    assert set(cells) == {"right", "noisy"}
    for cell in cells.values():
        assert (cell["status"], cell["n"], cell["paper"]) == ("done", 1, None)
        assert cell["mean"] > 0.9


@pytest.mark.parametrize("kind", ["methods", "datasets", "tables"])
def test_listing_imports_nothing_heavy(kind: str, tmp_path: Path) -> None:
    """`annobench list` answers within a second because torch is never imported for it."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from benchmark.cli import main; main(['list', {kind!r}]);"
        "heavy = [n for n in ('torch', 'lightning', 'sklearn', 'timm') if n in sys.modules];"
        "sys.exit(', '.join(heavy) or 0)"
    )
    run(sys.executable, "-c", code, cwd=tmp_path)


def imported_packages() -> set[str]:
    """Top-level names that the three packages import from elsewhere, wherever in a file the import stands."""
    found = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    found |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - set(PACKAGES)


def test_dependencies_are_what_is_imported() -> None:
    """An undeclared one breaks a fresh install; an unused one makes every set-up slower for nothing."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[<>=!~ ]", text)[0] for text in declared}
    modules = {
        "curvlinops-for-pytorch": "curvlinops",
        "huggingface-hub": "huggingface_hub",
        "pillow": "PIL",
        "pyyaml": "yaml",
        "scikit-learn": "sklearn",
    }
    # built apart; the reference of `make perf`, which the dev extra brings; the reader of clips, an extra of its own
    optional = {"learn2learn", "crowdkit", "av"}
    assert {modules.get(name, name) for name in names} == imported_packages() - optional


def documented_commands() -> list[str]:
    """Lines in the code blocks of README and CONTRIBUTING that start with ``annobench``."""
    blocks = re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", README + CONTRIBUTING, re.MULTILINE | re.DOTALL)
    lines = [line.split(" #")[0].strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("annobench ")]


@pytest.mark.parametrize("command", documented_commands())
def test_documented_command_parses(command: str) -> None:
    build_parser().parse_args(shlex.split(command)[1:])


def test_commands_are_documented() -> None:
    assert len(documented_commands()) >= 5


def test_documented_make_targets_exist() -> None:
    listed = run("make", "help", cwd=ROOT).stdout
    for text in (README, CONTRIBUTING, (ROOT / ".ci" / "run").read_text()):
        for target in re.findall(r"^\$? ?make ([a-z0-9-]+)", text, re.MULTILINE):
            name = re.sub(r"(table|fig)\d+$", r"\1N", target)
            assert f"make {name} " in listed, f"make {target} is documented and not in make help"


def test_method_template_keeps_the_contract() -> None:
    """The method that CONTRIBUTING tells people to start from passes every check."""
    (block,) = re.findall(r"^```python\n(from __future__.*?)^```", CONTRIBUTING, re.MULTILINE | re.DOTALL)
    namespace: dict[str, object] = {"__name__": "template"}
    exec(compile(block, "CONTRIBUTING.md", "exec"), namespace)
    check_method(namespace["MyMethod"])  # type: ignore[arg-type]


def test_plugin_keeps_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLUGIN))
    from annobench_tiny_plugin.data import TwoBlobs
    from annobench_tiny_plugin.method import VoteCounter

    check_method(VoteCounter)
    check_datamodule(TwoBlobs)


def test_make_help_lists_every_target() -> None:
    targets = re.findall(r"^([a-z0-9-]+)%?:(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    listed = run("make", "help", cwd=ROOT).stdout
    wanted = {"setup", "lint", "test", "demo", "check", "perf", "clean", "reproduce-table", "reproduce-fig"}
    assert wanted <= set(targets)
    for target in targets:
        assert f"make {target}" in listed


def test_an_old_python_is_refused_in_one_sentence(tmp_path: Path) -> None:
    old = tmp_path / "python2"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    done = subprocess.run(
        ["make", "setup", f"PYTHON={old}"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "needs Python 3.11 or later" in done.stderr
    assert not (tmp_path / ".venv").exists()
