"""The formats of STREET and AMER: generated twins are read; what cannot be used is named, with nothing half written."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from datamodules.amer import Amer
from datamodules.clips import read_image, uniform_frames
from datamodules.files import DataDamaged, DataError, DataNotFound
from datamodules.released_table import ReleasedTable
from datamodules.split import released_split
from datamodules.street import LEVELS, Street
from tests.released_files import N_FRAMES, N_ITEMS, Change, amer, street, write_clip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANNOBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _load(module: ReleasedTable) -> None:
    _ = module.data


# --- what is read ---------------------------------------------------------------------------------


def test_street_is_read_as_released(tmp_path: Path) -> None:
    root = street(tmp_path)
    module = Street("full", perspective="safety", root=root, size=8)
    data, split = module.data, released_split(N_ITEMS)
    assert module.info.input_shape == (3, 8, 8) and module.info.n_annotators == 10 and module.info.n_classes == 6
    assert torch.equal(data.x[:, 0, 0, 0].long(), 10 * split.learn)
    assert torch.equal(data.test_x[:, 0, 0, 0].long(), 10 * split.test)
    rows = (root / "street" / "labels.csv").read_text().splitlines()
    place = rows[0].split(",").index("Safe_1")
    for number, item in enumerate(split.learn.tolist()):
        written = rows[1 + item].split(",")[place : place + 10]
        assert [LEVELS[label] for label in data.annotations.dense()[number].tolist()] == written
    assert torch.equal(module.val_items, split.val_items)
    assert torch.equal(module.val_items, Street("full", root=root, size=8, split_seed=9).val_items)


def test_amers_clips_are_read_at_equal_distances(tmp_path: Path) -> None:
    module = Amer("full", root=amer(tmp_path), frames=3, size=8)
    assert module.info.input_shape == (3, 3, 8, 8) and module.info.n_annotators == 13 and module.info.n_classes == 8
    shown = module.data.test_x.float().mean(dim=(2, 3, 4))
    wanted = torch.tensor([40.0 * number for number in uniform_frames(N_FRAMES, 3)])
    assert (shown - wanted).abs().max() < 6  # what the coding of the clip costs
    table = module.table
    assert bool((table.labels == -1).any()) and len(module.data.annotations) < len(module.data.x) * 13


def test_whole_numbers_may_be_written_as_fractions_and_places_left_empty(tmp_path: Path) -> None:
    def change(rows: list[list[str]]) -> None:
        rows[1][1:4] = ["2.0", "nan", " -3"]

    labels = Street("full", root=street(tmp_path, change)).table.labels
    assert labels[0, :3].tolist() == [LEVELS.index("2"), -1, LEVELS.index("-3")]


def test_decoded_items_are_read_back(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = street(tmp_path)
    first = Street("full", root=root, size=8).data

    def broken(self: Street, path: Path) -> np.ndarray:
        raise AssertionError("decoded a second time")

    monkeypatch.setattr(Street, "decode", broken)
    again = Street("full", root=root, size=8).data
    assert torch.equal(first.x, again.x) and torch.equal(first.test_x, again.test_x)
    assert len(list(cache.glob("*.npy"))) == 1 and not list(cache.glob("*.part"))


def test_digest_follows_labels_photos_and_size_and_decodes_nothing(tmp_path: Path, cache: Path) -> None:
    root = street(tmp_path)
    digests = [
        Street("full", root=root, size=8).digest(),
        Street("full", root=root, size=9).digest(),
        Street("full", perspective="safety", root=root, size=8).digest(),
        Street("drop=0.4", root=root, size=8).digest(),
    ]
    Image.fromarray(np.zeros((12, 10, 3), dtype=np.uint8)).save(root / "street" / "images" / "item03.png")
    digests.append(Street("full", root=root, size=8).digest())
    assert len(set(digests)) == len(digests)
    assert not list(cache.glob("*.npy"))


def test_deletion_spares_the_released_validation_part(tmp_path: Path) -> None:
    root = street(tmp_path)
    full, thinned = Street("full", root=root, size=8), Street("drop=0.4", root=root, size=8)
    assert len(thinned.train_annotations) == round(0.6 * len(full.train_annotations))
    assert thinned.val_annotations.equals(full.val_annotations)


# --- what cannot be used --------------------------------------------------------------------------


def _set(line: int, column: int, value: str) -> Change:
    def change(rows: list[list[str]]) -> None:
        rows[line - 1][column] = value

    return change


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_set(4, 3, "0"), r"labels.csv line 4, column Happiness_3: '0' is none of -3, -2, -1, 1, 2, 3"),
        (_set(5, 1, "2.5"), "line 5, column Happiness_1: '2.5' is none of"),
        (_set(1, 2, "Happiness_two"), "has no column Happiness_2; it has name, Happiness_1, Happiness_two"),
        (_set(1, 0, "photo"), "has no column name"),
        (_set(7, 0, "item00"), "lines 2 and 7 are both of 'item00'"),
        (_set(7, 0, ""), "line 7 has no name"),
        (_set(7, 0, "item99"), "line 7: no file of 'item99' in .*images"),
        (_set(7, 0, "../labels.csv"), "line 7: no file of '../labels.csv'"),
        (lambda rows: rows.__delitem__(slice(1, None)), "has no row below its header"),
    ],
)
def test_a_bad_street_table_is_named_by_line(tmp_path: Path, cache: Path, change: Change, what: str) -> None:
    with pytest.raises(DataDamaged, match=what):
        _load(Street("full", root=street(tmp_path, change), size=8))
    assert not list(cache.glob("*.npy*"))


def test_a_word_that_is_no_emotion_is_named(tmp_path: Path) -> None:
    pytest.importorskip("av")
    with pytest.raises(DataDamaged, match="line 3, column discrete2: 'bored' is none of worried, happy"):
        _load(Amer("full", root=amer(tmp_path, _set(3, 2, "bored")), frames=2, size=8))


def test_a_photo_that_cannot_be_decoded_is_named_with_its_line(tmp_path: Path, cache: Path) -> None:
    root = street(tmp_path)
    photo = root / "street" / "images" / "item04.png"
    photo.write_bytes(photo.read_bytes()[:40])
    with pytest.raises(DataDamaged, match=r"labels.csv, line 6: .*item04.png cannot be decoded as an image"):
        _load(Street("full", root=root, size=8))
    assert not list(cache.glob("*.npy*"))


def test_a_clip_with_too_few_frames_is_named_with_its_line(tmp_path: Path, cache: Path) -> None:
    root = amer(tmp_path)
    write_clip(root / "amer" / "videos" / "item05.mp4", 2)
    with pytest.raises(DataDamaged, match=r"line 7: .*item05.mp4 has 2 frames, fewer than the 4 asked for"):
        _load(Amer("full", root=root, frames=4, size=8))
    assert not list(cache.glob("*.npy*"))


def test_a_clip_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    root = amer(tmp_path)
    (root / "amer" / "videos" / "item05.mp4").write_bytes(b"no clip")
    with pytest.raises(DataDamaged, match=r"line 7: .*item05.mp4 cannot be decoded as a clip"):
        _load(Amer("full", root=root, frames=4, size=8))


def test_without_pyav_one_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_av(name: str, *args: Any, **named: Any) -> Any:
        if name == "av":
            raise ImportError(name)
        return real(name, *args, **named)

    monkeypatch.setattr(builtins, "__import__", without_av)
    with pytest.raises(DataError, match=r"not installed; run `pip install annobench\[video\]`"):
        _load(Amer("full", root=tmp_path))


@pytest.mark.parametrize(("cls", "place"), [(Street, "street/labels.csv"), (Amer, "amer/discrete-multi-annotator.csv")])
def test_missing_files_are_named(tmp_path: Path, cls: type[ReleasedTable], place: str) -> None:
    with pytest.raises(DataNotFound, match=place):
        cls("full", root=tmp_path).digest()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    root = street(tmp_path)
    (root / "street" / "images").rename(root / "street" / "photos")
    with pytest.raises(DataNotFound, match="no folder .*street/images"):
        _load(Street("full", root=root))


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="did you mean happiness"):
        Street("full", perspective="happyness")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1 frame"):
        Amer("full", frames=0)
    with pytest.raises(ValueError, match="8 to 1024"):
        Street("full", size=0)


def test_uniform_frames_are_apart_and_include_both_ends() -> None:
    for count in range(1, 40):
        for n_frames in range(1, count + 1):
            chosen = uniform_frames(count, n_frames)
            assert len(set(chosen)) == n_frames and chosen[0] >= 0 and chosen[-1] < count
            assert n_frames == 1 or (chosen[0], chosen[-1]) == (0, count - 1)


def test_a_photo_is_resized_as_the_released_script_does_it(tmp_path: Path) -> None:
    # STREET_dataset.py: torchvision's Resize, which is bilinear; a first version here was bicubic
    transforms = pytest.importorskip("torchvision.transforms")
    pixels = np.random.default_rng(0).integers(0, 255, (31, 47, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    theirs = np.asarray(transforms.Resize((16, 16))(Image.fromarray(pixels)))
    assert np.array_equal(read_image(tmp_path / "photo.png", 16), theirs.transpose(2, 0, 1))


def test_a_number_in_brackets_may_stand_after_an_underscore_in_the_file(tmp_path: Path) -> None:
    # process_dataset_street.py renames so, and the table of labels keeps the brackets
    street(tmp_path, lambda rows: rows[4].__setitem__(0, "item(3)"))
    (tmp_path / "street" / "images" / "item03.png").rename(tmp_path / "street" / "images" / "item_3.png")
    data = Street("full", root=tmp_path, size=8).data
    greys = {int(item[0, 0, 0]) for item in torch.cat([data.x, data.test_x])}
    assert greys == {10 * row for row in range(N_ITEMS)}


def test_two_names_of_one_file_are_refused(tmp_path: Path) -> None:
    # item(3) and item_3 are both item_3.png: one photo would have had two rows of labels
    street(tmp_path, lambda rows: [rows[4].__setitem__(0, "item(3)"), rows[9].__setitem__(0, "item_3")])
    (tmp_path / "street" / "images" / "item03.png").rename(tmp_path / "street" / "images" / "item_3.png")
    with pytest.raises(DataDamaged, match=r"lines 5 and 10 are both of the file item_3\.png"):
        Street("full", root=tmp_path, size=8).setup()
