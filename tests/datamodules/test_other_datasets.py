"""CIFAR-100N and LabelMe: generated twins in the same format, and the real files where they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from datamodules.catalogue import DATA
from datamodules.cifar10h import Cifar10H
from datamodules.cifar10n import Cifar10N
from datamodules.cifar100n import Cifar100N
from datamodules.digits import Digits
from datamodules.digits_votes import DigitsVotes
from datamodules.files import DataDamaged, DataNotFound
from datamodules.human_labels import Published
from datamodules.labelme import LabelMe
from datamodules.regimes import REGIMES, SUMMARY

ALL = (Digits, Cifar10N, Cifar100N, LabelMe, Cifar10H, DigitsVotes)


class TwinLabelMe(LabelMe):
    sizes = (30, 10, 5)


class TwinCifar100N(Cifar100N):
    published = Published(0.5, noise_tolerance=0.02)


@pytest.fixture
def labelme(tmp_path: Path) -> Callable[..., Path]:
    """Writes a twin of the LabelMe archive; keywords replace its arrays."""

    def write(**changed: np.ndarray) -> Path:
        random = np.random.default_rng(0)
        answers = np.where(random.random((30, 5)) < 0.5, -1, random.integers(0, 8, (30, 5))).astype(np.int8)
        arrays: dict[str, Any] = {
            "x_train": random.random((30, 16), dtype=np.float32),
            "x_test": random.random((10, 16), dtype=np.float32),
            "y_train": random.integers(0, 8, 30).astype(np.uint8),
            "y_test": random.integers(0, 8, 10).astype(np.uint8),
            "answers": answers,
        }
        (tmp_path / "labelme").mkdir(exist_ok=True)
        np.savez(tmp_path / "labelme" / "labelme_vgg16avg.npz", **{**arrays, **changed})
        return tmp_path

    return write


@pytest.fixture
def cifar100n(tmp_path: Path) -> Path:
    """A twin of CIFAR-100N: 200 items, half of the labels wrong, 5 items a row of the workers' table."""
    clean = np.arange(200) % 100
    noisy = np.where(np.arange(200) % 2 == 0, clean, (clean + 2) % 100)
    folder = tmp_path / "cifar100n"
    folder.mkdir()
    torch.save({"clean_label": clean, "noisy_label": noisy, "class_names": ["unread"]}, folder / "CIFAR-100_human.pt")
    rows = "\r\n".join(f"{5 * row}--{5 * row + 4},{100 + row % 7},60" for row in range(40))
    (folder / "side_info_cifar100N.csv").write_text("Image-batch,Worker-id,Work-time-in-seconds\r\n" + rows)
    return tmp_path


@pytest.mark.parametrize("module", ALL, ids=lambda module: module.name)
def test_listing_and_class_agree(module: type[Any]) -> None:
    assert module.regimes == REGIMES[module.name]
    assert SUMMARY[module.name].embedded == module.embedded
    assert bool(DATA[module.name]) != module.embedded


# --- LabelMe --------------------------------------------------------------------------------------


def test_labelme_answers_become_annotations(labelme: Callable[..., Path]) -> None:
    module = TwinLabelMe("crowd", root=labelme())
    data = module.data
    with np.load(module.root / "labelme" / "labelme_vgg16avg.npz") as archive:  # type: ignore[operator]
        assert np.array_equal(data.annotations.dense().numpy(), archive["answers"])
        assert np.array_equal(data.x.numpy(), archive["x_train"])
    assert data.x.dtype == torch.float32 and module.info.input_shape == (16,)


def test_labelme_says_everywhere_that_it_is_the_features(labelme: Callable[..., Path]) -> None:
    # check 10 (fmpr/CrowdLayer#4): raw images and features give different results and must not be mixed up
    data = TwinLabelMe("crowd", root=labelme()).data
    assert any("features" in note for note in data.notes) and "features" in SUMMARY["labelme"].text
    assert "images" not in LabelMe.provides


def test_labelme_trains_in_batches_of_features(labelme: Callable[..., Path]) -> None:
    module = TwinLabelMe("crowd", root=labelme(), batch_size=8)
    batches = list(module.train_dataloader())
    assert sum(len(batch["x"]) for batch in batches) == 27
    # nobody published a single label an item: methods then take a majority
    assert all("aggregated" not in batch for batch in batches)


def test_labelme_clean_has_one_annotator(labelme: Callable[..., Path]) -> None:
    data = TwinLabelMe("clean", root=labelme()).data
    assert data.annotations.n_annotators == 1 and data.true_labels is not None
    assert torch.equal(data.annotations.labels, data.true_labels)


def test_labelme_of_other_shapes_is_refused(labelme: Callable[..., Path]) -> None:
    root = labelme(answers=np.zeros((30, 4), dtype=np.int8))
    with pytest.raises(DataDamaged, match=r"annotators\) \(30, 10, 4\); the published one \(30, 10, 5\)"):
        _ = TwinLabelMe("crowd", root=root).data


@pytest.mark.parametrize("kept", [0, 500], ids=["empty", "cut"])
def test_labelme_cut_off_archive_is_refused(labelme: Callable[..., Path], kept: int) -> None:
    # check 11: empty or truncated file -> path, expected digest, remedy
    path = labelme() / "labelme" / "labelme_vgg16avg.npz"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataDamaged, match="ad1a3f9ea43b7645") as caught:
        _ = TwinLabelMe("crowd", root=path.parent.parent).data
    assert str(path) in str(caught.value)


def test_labelme_pickled_arrays_are_refused(labelme: Callable[..., Path]) -> None:
    root = labelme(answers=np.array([{"not": "plain"}], dtype=object))
    with pytest.raises(DataDamaged, match="cannot be read"):
        _ = TwinLabelMe("crowd", root=root).data


def test_labelme_real(real_data: Path) -> None:
    # measured: 2,547 labels, mean annotator accuracy 0.692 (README of the data)
    data = LabelMe("crowd", root=real_data).data
    noted = data.annotations
    assert (len(noted), noted.n_items, noted.n_annotators, len(data.test_x)) == (2547, 1000, 59, 1188)
    assert data.true_labels is not None
    right = (noted.labels == data.true_labels[noted.items]).double()
    count = noted.labels_per_annotator().double()
    accuracy = torch.zeros(59, dtype=torch.float64).index_add_(0, noted.annotators, right) / count
    assert round(float(accuracy[count > 0].mean()), 3) == 0.692


# --- CIFAR-100N -----------------------------------------------------------------------------------


def test_cifar100n_pairs_each_label_with_the_worker_of_its_row(cifar100n: Path) -> None:
    noted, clean = TwinCifar100N("noisy", root=cifar100n).annotations_for_audit()
    assert noted.annotators.tolist() == [item // 5 % 7 for item in range(200)]
    assert clean is not None and float((noted.labels != clean).double().mean()) == 0.5


def test_cifar100n_has_no_images_and_says_what_works(cifar100n: Path) -> None:
    with pytest.raises(DataNotFound, match="annobench data audit cifar100n"):
        _ = TwinCifar100N("noisy", root=cifar100n).data


def test_cifar100n_coarse_labels_are_refused(cifar100n: Path) -> None:
    # check 12 (UCSC-REAL/cifar-10-100n#6): an earlier file had too few classes
    path = cifar100n / "cifar100n" / "CIFAR-100_human.pt"
    clean = np.arange(200) % 100
    torch.save({"clean_label": clean, "noisy_label": np.where(np.arange(200) % 2 == 0, clean, clean % 10)}, path)
    with pytest.raises(DataDamaged, match="classes|noise rate"):
        TwinCifar100N("noisy", root=cifar100n).annotations_for_audit()


def test_cifar100n_digest_follows_labels(cifar100n: Path) -> None:
    before = TwinCifar100N("noisy", root=cifar100n).digest()
    assert before != TwinCifar100N("clean", root=cifar100n).digest()


def test_cifar100n_real_noise_rate(real_data: Path) -> None:
    noted, clean = Cifar100N("noisy", root=real_data).annotations_for_audit()
    assert clean is not None and noted.n_items == 50_000
    assert round(100 * float((noted.labels != clean).double().mean()), 2) == 40.20
    assert len(noted.labels.unique()) == 100
