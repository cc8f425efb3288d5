"""CIFAR-10N: its regimes, image formats, cache and digests – on a generated twin, and on the real files."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from datamodules import cifar10_images
from datamodules.cifar10n import AGGREGATED, JPEG_NOTE, PUBLISHED, RANDOM, SIMULATED_NOTE, Cifar10N
from datamodules.regimes import REGIMES

if TYPE_CHECKING:
    from tests.datamodules.conftest import Twin

N_TRAIN, N_TEST, N_WORKERS = 200, 40, 12
REAL_REGIMES = ("clean", "aggre", "rand1", "rand2", "rand3", "worst")


# --- what each regime holds -----------------------------------------------------------------------


def test_images_come_out_as_they_went_in(twin: Twin) -> None:
    data = twin.module("aggre", root=twin.root).data
    assert data.x.dtype == torch.uint8
    assert np.array_equal(data.x.numpy(), twin.pixels[:N_TRAIN])
    assert np.array_equal(data.test_x.numpy(), twin.pixels[N_TRAIN:])
    assert data.notes == ()


@pytest.mark.parametrize(("regime", "slots"), [("aggre", (0, 1, 2)), ("rand1", (0,)), ("rand2", (1,)), ("rand3", (2,))])
def test_each_label_stands_beside_the_worker_of_its_slot(twin: Twin, regime: str, slots: tuple[int, ...]) -> None:
    noted = twin.module(regime, root=twin.root).data.annotations
    expected = {
        (item, int(twin.workers[item // 10, slot]), int(twin.labels[RANDOM[slot]][item]))
        for item in range(N_TRAIN)
        for slot in slots
    }
    assert set(zip(*(t.tolist() for t in (noted.items, noted.annotators, noted.labels)), strict=True)) == expected
    assert noted.n_annotators == N_WORKERS


def test_worst_gives_the_worse_label_to_all_three_workers(twin: Twin) -> None:
    data = twin.module("worst", root=twin.root).data
    noted = data.annotations
    assert len(noted) == 3 * N_TRAIN
    assert np.array_equal(noted.labels.numpy(), twin.labels["worse_label"][noted.items.numpy()])


def test_clean_has_one_annotator_who_is_always_right(twin: Twin) -> None:
    data = twin.module("clean", root=twin.root).data
    assert data.annotations.n_annotators == 1
    assert data.true_labels is not None and torch.equal(data.annotations.labels, data.true_labels)


@pytest.mark.parametrize(("regime", "key"), [("aggre", "aggre_label"), ("rand1", RANDOM[0]), ("worst", "worse_label")])
def test_organisers_single_label_reaches_the_training_batch(twin: Twin, regime: str, key: str) -> None:
    # a majority with ties broken at random is not aggre_label where all three labels differ
    module = twin.module(regime, root=twin.root, batch_size=64)
    for batch in module.train_dataloader():
        assert np.array_equal(batch["aggregated"].numpy(), twin.labels[key][batch["index"].numpy()])


def test_simulated_keeps_who_labelled_what_and_nothing_of_the_labels(twin: Twin) -> None:
    human = twin.module("aggre", root=twin.root).data.annotations
    first, again, other = (twin.module("simulated", root=twin.root, annotation_seed=seed).data for seed in (0, 0, 1))
    assert torch.equal(first.annotations.items, human.items)
    assert torch.equal(first.annotations.annotators, human.annotators)
    assert torch.equal(first.annotations.labels, again.annotations.labels)
    assert not torch.equal(first.annotations.labels, other.annotations.labels)
    assert SIMULATED_NOTE in first.notes


def test_all_regimes_are_one_family_and_split_alike(twin: Twin) -> None:
    assert len({Cifar10N.regime_family(regime) for regime in REGIMES["cifar10n"]}) == 1
    splits = [twin.module(regime, root=twin.root, split_seed=3).val_items for regime in ("aggre", "worst")]
    assert torch.equal(*splits)


def test_test_batches_hold_clean_targets_and_validation_batches_do_not(twin: Twin) -> None:
    module = twin.module("aggre", root=twin.root)
    assert all("target" in batch for batch in module.test_dataloader())
    assert all("target" not in batch for batch in module.val_dataloader())


# --- image formats and cache ----------------------------------------------------------------------


def test_jpeg_copies_are_named_as_such(twin: Twin) -> None:
    twin.write_images("train", kind="JPEG")
    assert JPEG_NOTE in twin.module("aggre", root=twin.root).data.notes


def _batches(twin: Twin) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Pixels ``[N, 3072]`` and labels ``[N]`` of the six official batches, by name."""
    step = N_TRAIN // 5
    parts = {f"data_batch_{n + 1}": slice(n * step, (n + 1) * step) for n in range(5)}
    pixels = twin.pixels.reshape(-1, 3072)
    found = {name: (pixels[part], twin.labels["clean_label"][part]) for name, part in parts.items()}
    return {**found, "test_batch": (pixels[N_TRAIN:], np.arange(N_TEST) % 10)}


def _write_archive(path: Path, content: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in content.items():
            member = tarfile.TarInfo(f"cifar-10-batches/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def _binary(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    return np.concatenate([labels.astype(np.uint8)[:, None], pixels], 1).tobytes()


def _pickled(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    batch = {"batch_label": "training batch 1 of 5", "labels": labels.tolist(), "data": pixels, "filenames": ["a.png"]}
    return pickle.dumps(batch, protocol=2)


def _pickled_by_python_2(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    """The official files' form: texts as BINSTRING, which Python 3 no longer writes."""
    data = pixels.tobytes()
    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    key = lambda name: b"U" + bytes([len(name)]) + name  # noqa: E731
    return (
        b"\x80\x02}q\x01(" + key(b"data") + b"T" + struct.pack("<i", len(data)) + data + b"q\x02"
        + key(b"labels") + b"]q\x03(" + numbers + b"e" + key(b"batch_label") + key(b"testing batch 1 of 1") + b"u."
    )  # fmt: skip


@pytest.mark.parametrize(
    ("archive", "ending", "coded"),
    [
        ("cifar-10-binary.tar.gz", ".bin", _binary),
        ("cifar-10-python.tar.gz", "", _pickled),
        ("cifar-10-python.tar.gz", "", _pickled_by_python_2),
    ],
)
def test_every_form_of_the_images_gives_the_same_pixels(
    twin: Twin, archive: str, ending: str, coded: Callable[[np.ndarray, np.ndarray], bytes]
) -> None:
    before = twin.module("aggre", root=twin.root).data
    for split in ("train", "test"):
        (twin.root / "cifar10" / f"{split}.parquet").unlink()
    content = {f"{name}{ending}": coded(*batch) for name, batch in _batches(twin).items()}
    _write_archive(twin.root / "cifar10" / archive, content)
    after = twin.module("aggre", root=twin.root).data
    for field in ("x", "test_x", "test_labels"):
        assert torch.equal(getattr(before, field), getattr(after, field))


def test_a_pickle_in_torchvisions_archive_is_never_run(tmp_path: Path) -> None:
    # a download that carries code: opcodes are listed, none is executed
    class Code:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "run"),)

    with pytest.raises(ValueError, match="do not make a CIFAR-10 batch"):
        cifar10_images.read_pickled_batch(pickle.dumps({"data": Code(), "labels": [1, 2]}, protocol=2))
    assert not (tmp_path / "run").exists()


def test_second_load_decodes_nothing(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    before = twin.module("aggre", root=twin.root).data

    def fail(path: Path, split: str) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr(cifar10_images, "_read_parquet", fail)
    after = twin.module("worst", root=twin.root).data
    assert torch.equal(before.x, after.x)


def test_cut_off_cache_entry_is_decoded_again(twin: Twin, tmp_path: Path) -> None:
    # a full disk or a killed copy must not leave a cache that breaks every later run
    before = twin.module("aggre", root=twin.root).data.x.clone()
    for entry in (tmp_path / "cache").glob("*images.npy"):
        entry.write_bytes(entry.read_bytes()[:1000])
    assert torch.equal(twin.module("aggre", root=twin.root).data.x, before)


def test_unwritable_cache_costs_time_only(twin: Twin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    monkeypatch.setenv("ANNOBENCH_CACHE", str(blocked))
    assert len(twin.module("aggre", root=twin.root).data.x) == N_TRAIN


def test_two_who_decode_at_once_both_get_the_images(twin: Twin, tmp_path: Path) -> None:
    # cells run side by side and all want the same entry first: both decode before either writes
    both_decoded = threading.Barrier(2)

    def decode() -> tuple[np.ndarray, np.ndarray]:
        both_decoded.wait(timeout=30)
        return twin.pixels[:N_TRAIN], twin.labels["clean_label"]

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: cifar10_images.cached("0" * 64, "train", decode), range(2)))
    assert all(np.array_equal(images, twin.pixels[:N_TRAIN]) for images, _ in results)
    assert len(list((tmp_path / "cache").iterdir())) == 2


# --- digests --------------------------------------------------------------------------------------


def _digests(twin: Twin) -> dict[str, str]:
    return {regime: twin.module(regime, root=twin.root).digest() for regime in (*REAL_REGIMES, "simulated")}


@pytest.mark.parametrize(
    ("key", "readers"),
    [
        ("aggre_label", {"aggre"}),
        ("worse_label", {"worst"}),
        (RANDOM[0], {"aggre", "rand1"}),
        (RANDOM[1], {"aggre", "rand2"}),
        (RANDOM[2], {"aggre", "rand3"}),
        # scored against, and simulated from
        ("clean_label", {*REAL_REGIMES, "simulated"}),
    ],
)
def test_one_changed_label_changes_the_regimes_that_read_it_and_no_other(
    twin: Twin, key: str, readers: set[str]
) -> None:
    before = _digests(twin)
    twin.write_labels(**{key: twin.edited(key, 7)})
    after = _digests(twin)
    assert {regime for regime in before if before[regime] != after[regime]} == readers


def test_one_changed_worker_changes_every_regime_but_clean(twin: Twin) -> None:
    before = _digests(twin)
    twin.workers[4, 0] = (twin.workers[4, 0] + 1) % N_WORKERS
    twin.write_workers()
    after = _digests(twin)
    # a row holds the workers of all three slots; the first labels for aggre, rand1, worst and simulated
    changed = {regime for regime in before if before[regime] != after[regime]}
    assert changed == {"aggre", "rand1", "worst", "simulated"}


def test_digest_reads_no_image_and_follows_the_image_file(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10_images, "cached", None)
    before = twin.module("rand1", root=twin.root).digest()
    twin.pixels[0, 0, 0, 0] ^= 255
    twin.write_images("train")
    assert twin.module("rand1", root=twin.root).digest() != before


# --- the real files -------------------------------------------------------------------------------


@pytest.mark.parametrize("regime", REAL_REGIMES)
def test_real_noise_rates_are_the_published_ones(real_data: Path, regime: str) -> None:
    # measured: aggre 9.01, random1-3 17.23/18.12/17.64, worse 40.21 %
    percent = {"clean": 0.0, "aggre": 9.01, "rand1": 17.23, "rand2": 18.12, "rand3": 17.64, "worst": 40.21}
    labels = Cifar10N(regime, root=real_data).label_set
    noise = 100 * float((labels.aggregated != labels.clean).double().mean())
    assert round(noise, 2) == percent[regime]
    assert labels.annotations.n_annotators == (1 if regime == "clean" else 747)


def test_real_class_counts_and_per_class_noise_are_the_published_ones(real_data: Path) -> None:
    # the loader accepts a few edited labels; the published file itself must match to the last label
    for regime, key in AGGREGATED.items():
        labels = Cifar10N(regime, root=real_data).label_set
        assert tuple(torch.bincount(labels.aggregated, minlength=10).tolist()) == PUBLISHED[key].counts
    per_class = {
        "aggre": [0.057, 0.052, 0.069, 0.175, 0.169, 0.108, 0.100, 0.045, 0.026, 0.101],
        "rand1": [0.152, 0.153, 0.160, 0.257, 0.240, 0.177, 0.173, 0.105, 0.121, 0.186],
        "worst": [0.350, 0.408, 0.368, 0.513, 0.512, 0.420, 0.406, 0.278, 0.317, 0.449],
    }
    for regime, expected in per_class.items():
        labels = Cifar10N(regime, root=real_data).label_set
        wrong = (labels.aggregated != labels.clean).double()
        found = torch.zeros(10, dtype=torch.float64).index_add_(0, labels.clean, wrong) / 5000
        assert found.tolist() == pytest.approx(expected, abs=6e-4)


def test_real_label_sets_cannot_be_mistaken_for_each_other() -> None:
    # the tolerance lets an edited label pass; it must stay below every gap between two label sets
    rates = sorted(published.noise for published in PUBLISHED.values())
    gaps = np.diff(rates)
    assert gaps.min() > 2 * max(published.noise_tolerance for published in PUBLISHED.values())


def test_real_images_and_labels_belong_together(real_data: Path) -> None:
    data = Cifar10N("aggre", root=real_data).data
    assert data.x.shape == (50_000, 3, 32, 32) and data.test_x.shape == (10_000, 3, 32, 32)
    assert torch.bincount(data.annotations.labels_per_item()).tolist() == [0, 0, 0, 50_000]
    mean = data.x[::25].double().mean((0, 2, 3)) / 255
    assert torch.allclose(mean, torch.tensor(data.mean, dtype=torch.float64), atol=0.01)
