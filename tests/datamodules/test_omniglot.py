"""Few-shot data from files: generated twins in the published formats, damage told in one sentence, the real files."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from datamodules import mini_imagenet
from datamodules.catalogue import DATA
from datamodules.cifar10h_fewshot import Cifar10HFewShot
from datamodules.files import DataDamaged, DataNotFound, verify
from datamodules.labelme_fewshot import LabelMeFewShot
from datamodules.mini_imagenet import MiniImageNet
from datamodules.omniglot import Omniglot
from datamodules.tiny_imagenet_fewshot import TinyImageNetFewShot

REAL = os.environ.get("ANNOBENCH_DATA", "")


def _coded(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


class TwinOmniglot(Omniglot):
    characters = (14, 5)
    drawings = 6
    paper_split = (6, 4, 4)


class TwinTiny(TinyImageNetFewShot):
    sizes = {"train": 5, "val": 4, "test": 4}  # noqa: RUF012


class TwinMini(MiniImageNet):
    splits = {"paper": (7, 4, 4), "ravi": (6, 5, 4)}  # noqa: RUF012


class TwinLabelMe(LabelMeFewShot):
    sizes = (80, 40, 80, 9)


@pytest.fixture
def omniglot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two archives; the ink of drawing d of a character is a square of d + 2 pixels."""
    monkeypatch.setenv("ANNOBENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "omniglot").mkdir()
    for name, count in (("images_background", 14), ("images_evaluation", 5)):
        with zipfile.ZipFile(tmp_path / "omniglot" / f"{name}.zip", "w") as archive:
            for character in range(count):
                for drawing in range(6):
                    pixels = np.full((28, 28), 255, np.uint8)
                    pixels[: drawing + 2, : drawing + 2] = 0
                    place = f"{name}/Alphabet{character // 7}/character{character % 7 + 1:02d}"
                    archive.writestr(f"{place}/{character:04d}_{drawing + 1:02d}.png", _coded(pixels))
            archive.writestr(f"__MACOSX/{name}/._0000_01.png", b"not an image")
    return tmp_path


def _tiny(root: Path, n_classes: int = 13) -> Path:
    labels = np.arange(n_classes).repeat(6)
    parts = ["train"] * 5 + ["val"] * 4 + ["test"] * 4
    rows = [{"bytes": _coded(np.full((8, 8, 3), label, np.uint8)), "path": None} for label in labels]
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", image), ("label", pa.int64()), ("fewshot_split", pa.string())])
    columns = {"image": rows, "label": labels, "fewshot_split": [parts[label] for label in labels]}
    path = root / "tiny_imagenet" / "train200.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table(columns, schema=schema), path)
    return path


# --- Omniglot -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("split", "sizes"), [("paper", [6, 4, 4]), ("standard", [10, 4, 5])])
def test_characters_are_split_without_overlap_and_whatever_the_seed(
    omniglot: Path, split: Any, sizes: list[int]
) -> None:
    made = [
        TwinOmniglot("hammer-spammer", split=split, root=omniglot, split_seed=seed, queries=2).data for seed in (0, 1)
    ]
    parts = [[set(pool.classes.tolist()) for pool in (data.train, data.val, data.test)] for data in made]
    assert parts[0] == parts[1]
    assert [len(part) for part in parts[0]] == sizes
    assert len(set.union(*parts[0])) == sum(sizes)


def test_ink_is_one_and_paper_zero(omniglot: Path) -> None:
    module = TwinOmniglot("hammer-spammer", root=omniglot, shots=2, queries=4)
    batch = next(iter(module.train_dataloader()))
    assert batch["support_x"].shape == (1, 8, 1, 28, 28)
    drawn = torch.cat([batch["support_x"], batch["query_x"]], 1)
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    # four characters with all six drawings of each
    assert sorted(drawn.sum((0, 2, 3, 4)).tolist()) == sorted([float((d + 2) ** 2) for d in range(6)] * 4)


def test_the_second_reading_comes_from_the_cache(omniglot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = TwinOmniglot("hammer-spammer", root=omniglot).data
    monkeypatch.setattr("datamodules.omniglot.read_archive", None)
    assert torch.equal(first.train.x, TwinOmniglot("hammer-spammer", root=omniglot).data.train.x)


def test_digest_follows_the_files_and_the_split(omniglot: Path) -> None:
    digests = [TwinOmniglot("hammer-spammer", split=split, root=omniglot).digest() for split in ("paper", "standard")]
    assert digests[0] != digests[1]
    path = omniglot / "omniglot" / "images_background.zip"
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("more.txt", "")
    assert TwinOmniglot("hammer-spammer", root=omniglot).digest() != digests[0]


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "other"])
def test_a_damaged_archive_is_one_sentence(omniglot: Path, damage: str) -> None:
    path = omniglot / "omniglot" / "images_background.zip"
    if damage == "missing":
        path.unlink()
        with pytest.raises(DataNotFound, match="omniglot: no images found"):
            TwinOmniglot("hammer-spammer", root=omniglot).setup()
        return
    if damage == "other":
        path.write_bytes((omniglot / "omniglot" / "images_evaluation.zip").read_bytes())
    else:
        path.write_bytes(path.read_bytes()[: 0 if damage == "empty" else 2000])
    words = {"empty": "is empty", "truncated": "truncated", "other": "of 5 characters; the published one has 6 of each"}
    with pytest.raises(DataDamaged, match=words[damage]):
        TwinOmniglot("hammer-spammer", root=omniglot).setup()


def test_an_unknown_split_lists_near_ones() -> None:
    with pytest.raises(ValueError, match="did you mean standard"):
        Omniglot("hammer-spammer", split="standart")  # type: ignore[arg-type]


# --- Tiny-ImageNet and miniImageNet ---------------------------------------------------------------


def test_tiny_imagenet_is_split_as_its_column_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANNOBENCH_CACHE", str(tmp_path / "cache"))
    path = _tiny(tmp_path)
    data = TwinTiny("hammer-spammer", root=tmp_path, size=16, queries=2).data
    assert [pool.classes.unique().tolist() for pool in (data.train, data.val, data.test)] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8],
        [9, 10, 11, 12],
    ]
    assert data.test.x.shape == (24, 3, 16, 16)
    assert torch.equal(data.test.x[:, 0, 0, 0].long(), data.test.classes)
    with pytest.raises(DataDamaged, match="it should have"):
        TinyImageNetFewShot("hammer-spammer", root=tmp_path).setup()
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DataDamaged, match="truncated"):
        TwinTiny("hammer-spammer", root=tmp_path).setup()


def _mini(root: Path) -> None:
    for part, classes in (("train", range(6)), ("val", range(6, 11)), ("test", range(11, 15))):
        for label in classes:
            folder = root / "mini_imagenet" / part / f"n{label:08d}"
            folder.mkdir(parents=True)
            for image in range(3):
                (folder / f"{image}.png").write_bytes(_coded(np.full((8, 8, 3), label, np.uint8)))


@pytest.mark.parametrize(("split", "sizes"), [("paper", [7, 4, 4]), ("ravi", [6, 5, 4])])
def test_mini_imagenet_is_read_from_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: Any, sizes: list[int]
) -> None:
    monkeypatch.setenv("ANNOBENCH_CACHE", str(tmp_path / "cache"))
    _mini(tmp_path)
    data = TwinMini("hammer-spammer", split=split, root=tmp_path, size=8).data
    parts = [pool.classes.unique() for pool in (data.train, data.val, data.test)]
    assert [len(part) for part in parts] == sizes and len(torch.cat(parts).unique()) == 15
    assert torch.equal(data.val.x[:, 0, 0, 0].long(), data.val.classes)
    assert data.class_names[3] == "n00000003"
    with pytest.raises(DataDamaged, match="15"):
        MiniImageNet("hammer-spammer", split=split, root=tmp_path, size=8).setup()


def test_planning_a_table_decodes_no_image_of_mini_imagenet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # its digest was that of the decoded images, and a table asks each of its 810 cells for it
    monkeypatch.setenv("ANNOBENCH_CACHE", str(tmp_path / "cache"))
    _mini(tmp_path)
    read: list[Path] = []
    whole = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or whole(path))
    monkeypatch.setattr(mini_imagenet, "decoded", lambda *_: pytest.fail("decoded"))

    def digest(**arguments: Any) -> str:
        return TwinMini("hammer-spammer", root=tmp_path, **arguments).digest()

    first = digest(size=8)
    assert digest(size=8) == first and len(read) == 45  # every file once
    assert len({first, digest(size=9), digest(size=8, split="ravi")}) == 3
    (tmp_path / "mini_imagenet" / "val" / "n00000007" / "3.png").write_bytes(_coded(np.zeros((8, 8, 3), np.uint8)))
    assert digest(size=8) != first


def test_images_of_mini_imagenet_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANNOBENCH_CACHE", str(tmp_path / "cache"))
    _mini(tmp_path)
    first = TwinMini("hammer-spammer", root=tmp_path, size=8).data
    monkeypatch.setattr(mini_imagenet, "decoded", lambda *_: pytest.fail("decoded again"))
    again = TwinMini("hammer-spammer", root=tmp_path, size=8).data
    assert torch.equal(again.train.x, first.train.x) and again.class_names == first.class_names
    assert torch.equal(again.test.classes, first.test.classes)


def test_absent_mini_imagenet_names_its_stand_in(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match="tiny_imagenet_fewshot, which stands in for it"):
        MiniImageNet("hammer-spammer", root=tmp_path).setup()


# --- LabelMe --------------------------------------------------------------------------------------


@pytest.fixture
def labelme(tmp_path: Path) -> Path:
    """Ten annotated items a class, five to validate and ten to test; the first feature is the item's class."""
    random = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, count in (("train", 10), ("valid", 5), ("test", 10)):
        labels = np.arange(8).repeat(count)
        arrays[f"y_{part}"] = labels.astype(np.uint8)
        arrays[f"x_{part}"] = np.stack([labels, random.random(len(labels))], 1).astype(np.float32)
    answers = np.where(random.random((80, 9)) < 0.7, -1, random.integers(0, 8, (80, 9)))
    (tmp_path / "labelme").mkdir()
    np.savez(tmp_path / "labelme" / "labelme_vgg16avg.npz", answers=answers.astype(np.int8), **arrays)
    return tmp_path


def test_labelme_sources_and_targets_are_other_classes(labelme: Path) -> None:
    made = [TwinLabelMe("crowd", root=labelme, split_seed=seed, queries=5) for seed in range(4)]
    targets = {tuple(module.data.test.classes.unique().tolist()) for module in made}
    assert len(targets) > 1
    for module in made:
        data = module.data
        assert torch.equal(data.train.classes.unique(), data.val.classes.unique())
        assert not set(data.train.classes.tolist()) & set(data.test.classes.tolist())
        for pool in (data.train, data.val, data.test):
            assert torch.equal(pool.x[:, 0].long(), pool.classes)
        assert data.test.query_x is not None and data.test.query_classes is not None
        assert torch.equal(data.test.query_x[:, 0].long(), data.test.query_classes)
        assert len(data.train.x) == 60 and len(data.test.x) == 40 and len(data.test.query_x) == 40


def test_labelme_refuses_more_annotators_and_other_shapes(labelme: Path) -> None:
    with pytest.raises(ValueError, match="10 annotators were asked for, but there are 9 annotators"):
        TwinLabelMe("crowd", root=labelme, annotators=(10,), queries=5).setup()
    with pytest.raises(ValueError, match="source part has 4 classes, fewer than the 5 ways"):
        TwinLabelMe("crowd", root=labelme, ways=5, queries=5).setup()
    with pytest.raises(DataDamaged, match="the published one"):
        LabelMeFewShot("crowd", root=labelme).setup()


# --- the real files -------------------------------------------------------------------------------


@pytest.mark.skipif(not (Path(REAL) / "omniglot").is_dir() or not REAL, reason="Omniglot's archives are not here")
def test_real_omniglot_is_whole() -> None:
    assert {state.status for state in verify("omniglot")} == {"ok"}
    module = Omniglot("hammer-spammer", split="standard", shots=5)
    module.setup()
    assert [len(pool.x) for pool in (module.data.train, module.data.val, module.data.test)] == [17_280, 2_000, 13_180]
    assert module.info.input_shape == (1, 28, 28)


@pytest.mark.skipif(not (Path(REAL) / "labelme").is_dir() or not REAL, reason="LabelMe's features are not here")
def test_real_labelme_gives_episodes_with_labels() -> None:
    module = LabelMeFewShot("crowd", shots=5)
    for annotators in (3, 7):
        labels = torch.cat([batch["support_labels"] for batch in module.test_episodes_for(annotators, None)])
        assert labels.shape == (50, 20, annotators) and (labels >= 0).any(-1).float().mean() > 0.5


def test_catalogue_knows_the_files_of_every_few_shot_set() -> None:
    for module in (Omniglot, TinyImageNetFewShot, LabelMeFewShot, Cifar10HFewShot):
        assert DATA[module.name]


# --- CIFAR-10H ------------------------------------------------------------------------------------


@pytest.mark.skipif(not (Path(REAL) / "cifar10h").is_dir() or not REAL, reason="CIFAR-10H's files are not here")
def test_real_cifar10h_takes_sources_that_cifar10_lacks() -> None:
    module = Cifar10HFewShot("crowd", annotators=(3, 7), shots=5)
    module.setup()
    data = module.data
    assert [len(pool.classes.unique()) for pool in (data.train, data.val, data.test)] == [78, 14, 10]
    labels = torch.cat([batch["support_labels"] for batch in module.test_episodes_for(7, None)])
    right = labels == torch.arange(4).repeat_interleave(5)[None, :, None]
    assert labels.shape == (50, 20, 7) and right[labels >= 0].float().mean() > 0.9
    with pytest.raises(ValueError, match="there are at most 63 votes an item"):
        module.test_episodes_for(64, None)
