"""CIFAR-10N files that are not what they should be: refused in one sentence, never unpickled."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from datamodules.files import DataDamaged, DataNotFound

if TYPE_CHECKING:
    from tests.datamodules.conftest import Twin


def test_one_edited_label_still_loads(twin: Twin) -> None:
    twin.write_labels(worse_label=twin.edited("worse_label", 0))
    assert twin.module("worst", root=twin.root).data.aggregated is not None


def test_another_label_set_is_refused_with_both_noise_rates(twin: Twin) -> None:
    # check 12 (UCSC-REAL/cifar-10-100n#6): a file of another version was published under the same name
    twin.write_labels(aggre_label=twin.labels["worse_label"])
    with pytest.raises(DataDamaged, match=r"noise rate of \d+\.\d\d % in 'aggre_label'; the published one has"):
        _ = twin.module("aggre", root=twin.root).data


def test_same_noise_with_other_classes_is_refused(twin: Twin) -> None:
    clean, noisy = twin.labels["clean_label"], twin.labels["worse_label"].copy()
    noisy[noisy != clean] = (clean[noisy != clean] + 1) % 10
    noisy[clean == 9] = np.where(noisy[clean == 9] == 9, 9, 1)
    twin.write_labels(worse_label=noisy)
    with pytest.raises(DataDamaged, match="labels a class in 'worse_label'"):
        _ = twin.module("worst", root=twin.root).data


@pytest.mark.parametrize("kept", [0, 100, 3000], ids=["empty", "header", "cut"])
def test_empty_or_truncated_label_file_gives_no_pickle_trace(twin: Twin, kept: int) -> None:
    # check 11 (UCSC-REAL/cifar-10-100n#1): label files were published with 0 bytes
    path = twin.root / "cifar10n" / "CIFAR-10_human.pt"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataDamaged) as caught:
        _ = twin.module("aggre", root=twin.root).data
    message = str(caught.value)
    assert str(path) in message and "873e69c39cb9b5e9" in message and "annobench data prepare" in message
    assert caught.value.__cause__ is None and caught.value.__suppress_context__ or caught.value.__context__ is None


class _Harmful:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (exec, ("raise SystemExit('code was run')",))


def test_label_file_that_carries_code_is_refused_and_not_run(twin: Twin) -> None:
    # check 14 (chemprop/chemprop#1227): loading must not fall back to arbitrary unpickling
    path = twin.write_labels(note=_Harmful())
    with pytest.raises(DataDamaged, match="cannot be read as a table of labels"):
        _ = twin.module("aggre", root=twin.root).data
    path.write_bytes(pickle.dumps(_Harmful(), protocol=2))
    with pytest.raises(DataDamaged):
        _ = twin.module("aggre", root=twin.root).data


def test_label_outside_the_classes_is_named(twin: Twin) -> None:
    twin.write_labels(random_label1=twin.edited("random_label1", 5, label=12))
    with pytest.raises(DataDamaged, match="the label 12 in 'random_label1', item 5"):
        _ = twin.module("rand1", root=twin.root).data


def test_missing_label_array_is_named(twin: Twin) -> None:
    twin.write_labels(worse_label=None)
    with pytest.raises(DataDamaged, match="no 'worse_label'"):
        _ = twin.module("worst", root=twin.root).data


def test_images_in_another_order_are_refused(twin: Twin) -> None:
    twin.write_images("train", twin.labels["clean_label"][::-1])
    with pytest.raises(DataDamaged, match=r"another order .* agree"):
        _ = twin.module("aggre", root=twin.root).data


def test_workers_table_that_stops_early_is_refused(twin: Twin) -> None:
    twin.write_workers(n_rows=17)
    with pytest.raises(DataDamaged, match="covers 170 items in 17 rows"):
        _ = twin.module("aggre", root=twin.root).data


def test_workers_row_cut_in_the_middle_is_named(twin: Twin) -> None:
    path = twin.write_workers()
    path.write_text(path.read_text()[:-30])
    with pytest.raises(DataDamaged, match="row 18 is incomplete"):
        _ = twin.module("aggre", root=twin.root).data


def test_workers_table_that_is_no_csv_at_all_is_refused(twin: Twin) -> None:
    # the reader of the csv module has an error of its own, which is no ValueError
    path = twin.write_workers()
    path.write_text(path.read_text() + '"' + "0" * 200_000)
    with pytest.raises(DataDamaged, match="cannot be read as a table of workers"):
        _ = twin.module("aggre", root=twin.root).data


def test_truncated_image_file_is_refused_in_one_sentence(twin: Twin) -> None:
    path = twin.root / "cifar10" / "train.parquet"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DataDamaged, match="truncated"):
        _ = twin.module("aggre", root=twin.root).data


def test_audit_needs_no_images(twin: Twin) -> None:
    (twin.root / "cifar10" / "train.parquet").unlink()
    noted, clean = twin.module("aggre", root=twin.root).annotations_for_audit()
    assert len(noted) == 600 and clean is not None
    with pytest.raises(DataNotFound):
        _ = twin.module("aggre", root=twin.root).data
