"""Images of other things: each published format read to the pixel, damage told, nothing unpickled."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from datamodules import files, ood
from datamodules.cifar10h import Cifar10H
from datamodules.files import DataDamaged, DataNotFound, prepare, verify
from datamodules.names import UnknownName
from datamodules.ood import OOD, load_ood_images, ood_files_digest

N = 12
#: wnids of the made-up Tiny-ImageNet, of which the first and the last are CIFAR-10's too
WNIDS = ["n01", "n02", "n03"]

PIXELS = np.random.default_rng(0).integers(0, 256, (N, 3, 32, 32), dtype=np.uint8)
LABELS = np.arange(N) % 3

Write = Callable[[Path], Path]


def _put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def _svhn(root: Path, pixels: np.ndarray = PIXELS) -> Path:
    stream = io.BytesIO()
    savemat(stream, {"X": pixels.transpose(2, 3, 1, 0), "y": (LABELS + 8)[:, None].astype(np.uint8)})
    return _put(root / "svhn" / "test_32x32.mat", stream.getvalue())


def _archive(root: Path, batch: object = None) -> Path:
    content = pickle.dumps(
        batch
        or {
            "filenames": ["a.png"] * N,
            "batch_label": "testing batch 1 of 1",
            "fine_labels": LABELS.tolist(),
            "coarse_labels": [5] * N,
            "data": PIXELS.reshape(N, -1),
        },
        protocol=2,
    )
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, data in (("meta", b"not read"), ("test", content), ("train", b"not read")):
            member = tarfile.TarInfo(f"cifar-100-python/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return _put(root / "cifar100" / "cifar-100-python.tar.gz", stream.getvalue())


def _parquet(path: Path, image_column: str, label_column: str, size: int = 32, names: bool = True) -> Path:
    rows = []
    for pixels in PIXELS:
        stream = io.BytesIO()
        Image.fromarray(pixels.transpose(1, 2, 0)).resize((size, size)).save(stream, "PNG")
        rows.append({"bytes": stream.getvalue(), "path": None})
    image_type = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    noted = {"info": {"features": {"label": {"names": WNIDS, "_type": "ClassLabel"}}}}
    metadata = {b"huggingface": json.dumps(noted).encode()} if names else None
    schema = pa.schema([(image_column, image_type), (label_column, pa.int64())], metadata=metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({image_column: rows, label_column: LABELS}, schema=schema), path)
    return path


def _cifar100_parquet(root: Path) -> Path:
    return _parquet(root / "cifar100" / "test.parquet", "img", "fine_label")


def _gtsrb(root: Path, size: int = 32) -> Path:
    return _parquet(root / "ood" / "gtsrb_test_32.parquet", "image", "label", size)


def _tiny_imagenet(root: Path, names: bool = True, overlap: str = '{"overlaps_cifar10_class": ["n01", "n03"]}') -> Path:
    _put(root / "ood" / "tiny_imagenet_cifar10_overlap.json", overlap.encode())
    return _parquet(root / "ood" / "tiny_imagenet_val_32.parquet", "image", "label", names=names)


@pytest.fixture(autouse=True)
def small(isolated_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, and sets of 12 images."""
    for name, known in OOD.items():
        monkeypatch.setitem(ood.OOD, name, replace(known, n_images=N))
    return isolated_cache / "data"


FORMATS = [
    pytest.param("svhn", _svhn, id="svhn"),
    pytest.param("cifar100", _archive, id="cifar100-archive"),
    pytest.param("cifar100", _cifar100_parquet, id="cifar100-parquet"),
    pytest.param("gtsrb", _gtsrb, id="gtsrb"),
    pytest.param("tiny_imagenet", _tiny_imagenet, id="tiny_imagenet"),
]


@pytest.mark.parametrize(("name", "write"), FORMATS)
def test_every_format_is_read_to_the_pixel(small: Path, name: str, write: Write) -> None:
    write(small)
    found = load_ood_images(name)
    expected = PIXELS[LABELS == 1] if name == "tiny_imagenet" else PIXELS
    assert found.dtype == torch.uint8 and np.array_equal(found.numpy(), expected)
    # a second time from the cache
    assert torch.equal(load_ood_images(name), found)
    assert torch.equal(Cifar10H("full").load_ood(name), found)


@pytest.mark.parametrize(("name", "write"), FORMATS)
def test_digest_is_that_of_the_files_and_none_without_them(small: Path, name: str, write: Write) -> None:
    assert ood_files_digest(name) is None and Cifar10H("full").ood_digest(name) is None
    path = write(small)
    digest = ood_files_digest(name)
    assert digest is not None and digest.startswith(hashlib.sha256(path.read_bytes()).hexdigest())
    assert Cifar10H("full").ood_digest(name) == digest


@pytest.mark.parametrize(("name", "write"), FORMATS)
def test_cut_off_and_empty_files_are_refused_with_path_digest_and_remedy(small: Path, name: str, write: Write) -> None:
    path = write(small)
    whole = path.read_bytes()
    known = {file.sha256 for option in files.DATA[name][0].options.values() for file in option}
    for content, says in ((whole[: len(whole) // 2], "cannot be read as"), (b"", "is empty")):
        path.write_bytes(content)
        with pytest.raises(DataDamaged, match=says) as caught:
            load_ood_images(name)
        message = str(caught.value)
        assert str(path) in message and "Remedy" in message and any(digest in message for digest in known)


@pytest.mark.parametrize("name", list(OOD))
def test_missing_files_are_named_with_source_and_remedy(small: Path, name: str) -> None:
    with pytest.raises(DataNotFound, match=f"{name}: no images found.*Source: .*Remedy: ") as caught:
        load_ood_images(name)
    assert str(small) in str(caught.value)
    assert ("data prepare" in str(caught.value)) == (name in ("svhn", "cifar100"))


@pytest.mark.parametrize("shape", [(N, 3, 32, 16), (N - 1, 3, 32, 32), (N, 1, 32, 32)])
def test_images_of_another_shape_or_number_are_refused(small: Path, shape: tuple[int, ...]) -> None:
    _svhn(small, np.zeros(shape, dtype=np.uint8))
    with pytest.raises(DataDamaged, match=r"the published ones are \(12, 3, 32, 32\) uint8"):
        load_ood_images("svhn")


def test_images_that_are_no_bytes_are_refused(small: Path) -> None:
    _svhn(small, np.zeros((N, 3, 32, 32)))
    with pytest.raises(DataDamaged, match="float64"):
        load_ood_images("svhn")


def test_copies_of_another_size_are_refused(small: Path) -> None:
    _gtsrb(small, size=16)
    with pytest.raises(DataDamaged, match="image 0 has 16x16 pixels, not 32x32"):
        load_ood_images("gtsrb")


def test_a_file_of_another_kind_is_refused(small: Path) -> None:
    _put(small / "svhn" / "test_32x32.mat", b"<html>404 not found</html>" * 20)
    with pytest.raises(DataDamaged, match="cannot be read as SVHN images"):
        load_ood_images("svhn")


def test_a_pickle_in_cifar100s_archive_is_never_run(small: Path, tmp_path: Path) -> None:
    class Code:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "run"),)

    _archive(small, {"data": Code(), "fine_labels": [1, 2]})
    with pytest.raises(DataDamaged, match="do not make a CIFAR"):
        load_ood_images("cifar100")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("overlap", "says"),
    [
        ("{", "cannot be read as a list of classes"),
        ("{}", "cannot be read as a list of classes"),
        ('{"overlaps_cifar10_class": []}', "lists 0 classes"),
        ('{"overlaps_cifar10_class": ["n01", "n99"]}', "lists 2 classes, of which tiny_.* lacks n99"),
    ],
)
def test_a_list_of_overlaps_that_fits_not_is_refused(small: Path, overlap: str, says: str) -> None:
    # with the wrong list CIFAR-10's own classes would count as unknown things
    _tiny_imagenet(small, overlap=overlap)
    with pytest.raises(DataDamaged, match=says):
        load_ood_images("tiny_imagenet")


def test_images_whose_classes_have_no_names_are_refused(small: Path) -> None:
    _tiny_imagenet(small, names=False)
    with pytest.raises(DataDamaged, match="does not name its classes"):
        load_ood_images("tiny_imagenet")


def test_unknown_set_lists_near_ones() -> None:
    for ask in (load_ood_images, ood_files_digest, Cifar10H("full").load_ood, Cifar10H("full").ood_digest):
        with pytest.raises(UnknownName, match="did you mean svhn"):
            ask("svnh")


# --- fetching -------------------------------------------------------------------------------------


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the address under which a local server offers it."""
    folder = tmp_path / "served"
    folder.mkdir()
    server = HTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_svhn_is_fetched_and_read(
    small: Path, tmp_path: Path, served: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = served
    offered = _svhn(folder).read_bytes()
    (part,) = files.DATA["svhn"]
    (file,) = part.options["published"]
    known = replace(file, sha256=hashlib.sha256(offered).hexdigest(), size=len(offered))
    monkeypatch.setitem(files.DATA, "svhn", (replace(part, options={"published": (known,)}),))
    (state,) = prepare("svhn", small, mirror=address, progress=False)
    assert state.status == "ok" and verify("svhn", small)[0].status == "ok"
    assert np.array_equal(load_ood_images("svhn", small).numpy(), PIXELS)


def test_a_file_that_is_not_the_published_one_is_thrown_away(small: Path, served: tuple[Path, str]) -> None:
    folder, address = served
    _svhn(folder)
    with pytest.raises(DataDamaged, match="cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"):
        prepare("svhn", small, mirror=address, progress=False)
    assert not [path for path in small.rglob("*") if path.is_file()]


# --- the real files -------------------------------------------------------------------------------


def test_real_copies_are_the_known_ones(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, known in (("gtsrb", 12_630), ("tiny_imagenet", 10_000)):
        monkeypatch.setitem(ood.OOD, name, replace(OOD[name], n_images=known))
        assert {state.status for state in verify(name, real_data)} == {"ok"}
    # 21 of Tiny-ImageNet's 200 classes, 50 images each, are CIFAR-10's
    assert load_ood_images("gtsrb", real_data).shape == (12_630, 3, 32, 32)
    assert load_ood_images("tiny_imagenet", real_data).shape == (8_950, 3, 32, 32)
