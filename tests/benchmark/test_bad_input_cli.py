"""Data and tables that cannot be used, as a user types the command: one sentence, a status, nothing half written."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmark import cli, registry
from tests.released_files import Change, amer, street, write_clip


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder of an installed package ``bad_tables``; data and cache are looked for in empty folders beside it."""
    folder = tmp_path / "site"
    metadata = folder / "bad_tables-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-tables\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[annobench.tables]\nbad = bad_tables\n")
    (folder / "bad_tables" / "bad").mkdir(parents=True)
    (folder / "bad_tables" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("ANNOBENCH_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("ANNOBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    registry.tables.cache_clear()
    yield folder
    sys.modules.pop("bad_tables", None)
    registry.tables.cache_clear()


def _few_shot(site: Path, dataset: str, regime: str = "hammer-spammer", **data: Any) -> None:
    """The table ``bad/table1``: prototypical networks on few-shot tasks with the arguments ``data``."""
    sizes = {"train_episodes": 2, "val_episodes": 2, "test_episodes": 2, **data}
    _write_table(site, "prototypical", "episodic", dataset, regime, "majority_", sizes)


def _annotators(site: Path, dataset: str, **data: Any) -> None:
    """The table ``bad/table1``: each annotator's most frequent class."""
    _write_table(site, "annotator_majority", "annotators", dataset, "full", "", {"size": 8, **data})


def _write_table(
    site: Path, method: str, protocol: str, dataset: str, regime: str, prefix: str, data: dict[str, Any]
) -> None:
    document = {
        "table": "bad/table1",
        "title": "A table that asks for too much",
        "paper": {"key": "bad", "title": "Bad", "authors": "Nobody", "year": 2026, "where": "nowhere"},
        "metrics": [{"name": "accuracy", "label": "Test"}],
        "protocols": [protocol],
        "rows": [{"name": method, "label": method, "method": method, "prefix": prefix}],
        "columns": [{"name": "one", "label": "One", "regime": regime}],
        "profiles": {"demo": {"dataset": dataset, "seeds": 1, "train": {"max_epochs": 1}, "data": data}},
    }
    (site / "bad_tables" / "bad" / "table1.yaml").write_text(json.dumps(document))


def _run(capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Status and error output of the run of ``bad/table1``."""
    status = cli.main(["run", "bad/table1", "--profile", "demo", "--executor", "inline"])
    return status, capsys.readouterr().err


def _reasons(said: str) -> set[str]:
    """What was said of cells that failed, or of the whole command."""
    lines = said.splitlines()
    whole = [line.removeprefix("annobench: error: ") for line in lines if line.startswith("annobench: error: ")]
    return {*whole, *(line.split("seed 0: ")[1] for line in lines if line.startswith("failed: "))}


def _refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, *parts: str) -> str:
    """Runs and returns the one sentence, which names all ``parts``; no result and no half of a file is left."""
    status, said = _run(capsys)
    assert status in (1, 2) and "Traceback" not in said, said
    (reason,) = _reasons(said)
    for part in parts:
        assert part in reason, reason
    assert not list(tmp_path.glob("results/cells/**/result.json"))
    left = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".json"]
    assert not left, left
    return reason


# --- few-shot tasks -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            {"ways": 9},
            "digits_episodes: the validation part has 6 classes, fewer than the 9 ways of an episode; "
            "ask for at most 6 ways",
        ),
        (
            {"shots": 5, "queries": 99},
            "digits_episodes: the source part: class 15 has 45 items, fewer than 5 shots and 99 queries; "
            "ask for fewer shots or queries",
        ),
    ],
)
def test_too_few_classes_or_items_for_an_episode(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], data: dict[str, int], sentence: str
) -> None:
    _few_shot(site, "digits_episodes", **data)
    _refused(capsys, tmp_path, sentence)


def _labelme(root: Path, n_items: int = 1000) -> Path:
    """LabelMe's archive with four features an item, of 59 annotators who labelled in turns."""
    path = root / "data" / "labelme" / "labelme_vgg16avg.npz"
    path.parent.mkdir(parents=True)
    arrays: dict[str, np.ndarray] = {}
    for part, count in (("train", n_items), ("valid", 500), ("test", 1188)):
        arrays[f"x_{part}"] = np.random.default_rng(0).random((count, 4), dtype=np.float32)
        arrays[f"y_{part}"] = np.arange(count) % 8
    answers = np.full((n_items, 59), -1)
    answers[np.arange(n_items), np.arange(n_items) % 59] = np.arange(n_items) % 8
    np.savez(path, **arrays, answers=answers)
    return path


def test_more_annotators_than_there_are(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _labelme(tmp_path)
    _few_shot(site, "labelme_fewshot", "crowd", annotators=[60], spammer_shares=[])
    _refused(
        capsys, tmp_path, "labelme_fewshot: 60 annotators were asked for, but there are 59 annotators; ask for no more"
    )


def test_features_of_other_data(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _labelme(tmp_path, n_items=900)
    _few_shot(site, "labelme_fewshot", "crowd", annotators=[59], spammer_shares=[])
    _refused(capsys, tmp_path, str(path), "(900, 500, 1188, 59); the published one (1000, 500, 1188, 59)", "Remedy")


@pytest.mark.parametrize(
    ("dataset", "file"), [("omniglot", "images_background.zip"), ("labelme_fewshot", "labelme_vgg16avg.npz")]
)
def test_archives_that_are_not_there(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], dataset: str, file: str
) -> None:
    _few_shot(site, dataset)
    _refused(capsys, tmp_path, f"{dataset}: no ", file, str(tmp_path / "data"), "Source: ", "Remedy: ")
    assert not (tmp_path / "results").exists()


def test_archives_that_were_cut_short(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    features = _labelme(tmp_path)
    folder = tmp_path / "data" / "omniglot"
    folder.mkdir()
    for name in ("images_background", "images_evaluation"):
        with zipfile.ZipFile(folder / f"{name}.zip", "w") as archive:
            archive.writestr(f"{name}/Latin/character01/0001_01.png", b"0" * 5000)
    images = folder / "images_background.zip"
    for dataset, path in (("omniglot", images), ("labelme_fewshot", features)):
        path.write_bytes(path.read_bytes()[:3000])
        _few_shot(site, dataset)
        registry.tables.cache_clear()
        _refused(capsys, tmp_path, str(path), "Remedy: ")


# --- data of annotators ---------------------------------------------------------------------------


def _set(line: int, column: int, value: str) -> Change:
    def change(rows: list[list[str]]) -> None:
        rows[line - 1][column] = value

    return change


@pytest.mark.parametrize(("lay", "dataset", "more"), [(street, "street", {}), (amer, "amer", {"frames": 4})])
def test_what_is_whole_is_run(
    site: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    lay: Callable[[Path], Path],
    dataset: str,
    more: dict[str, int],
) -> None:
    # without it the refusals below could be of the table and not of what is wrong in it
    lay(tmp_path / "data")
    _annotators(site, dataset, **more)
    status, said = _run(capsys)
    assert status == 0, said


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (_set(1, 2, "Happy_2"), ("has no column Happiness_2; it has name, Happiness_1, Happy_2",)),
        (_set(4, 3, "0"), ("line 4, column Happiness_3: '0' is none of -3, -2, -1, 1, 2, 3",)),
        (_set(7, 0, "item99"), ("line 7: no file of 'item99' in ",)),
    ],
)
def test_a_table_of_labels_that_does_not_fit(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Change, parts: tuple[str, ...]
) -> None:
    street(tmp_path / "data", change)
    _annotators(site, "street")
    _refused(capsys, tmp_path, "labels.csv", "Remedy: ", *parts)


def test_an_image_that_cannot_be_decoded(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photo = street(tmp_path / "data") / "street" / "images" / "item04.png"
    photo.write_bytes(photo.read_bytes()[:40])
    _annotators(site, "street")
    _refused(capsys, tmp_path, "labels.csv, line 6: ", f"{photo} cannot be decoded as an image", "Remedy: ")


def test_a_clip_with_fewer_frames_than_asked_for(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clip = amer(tmp_path / "data") / "amer" / "videos" / "item05.mp4"
    write_clip(clip, 2)
    _annotators(site, "amer", frames=4)
    _refused(capsys, tmp_path, "line 7: ", f"{clip} has 2 frames, fewer than the 4 asked for", "Remedy: ")
    clip.write_bytes(b"no clip")
    _refused(capsys, tmp_path, "line 7: ", f"{clip} cannot be decoded as a clip", "Remedy: ")


def test_a_word_that_is_no_emotion(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    amer(tmp_path / "data", _set(3, 2, "bored"))
    _annotators(site, "amer", frames=4)
    _refused(capsys, tmp_path, "line 3, column discrete2: 'bored' is none of worried, happy", "Remedy: ")
