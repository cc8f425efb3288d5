"""CIFAR-10's images as uint8 tensors: decoded once, then read back from a cache.

Read from the hub's parquet files (``img.bytes``, ``label``), from the binary version ``cifar-10-binary.tar.gz``,
whose records are plain bytes, or from ``cifar-10-python.tar.gz``, which torchvision downloads and keeps beside the
files it extracts. The last holds Python pickles; they are read as text of opcodes and never unpickled.
"""

from __future__ import annotations

import io
import os
import pickletools
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from datamodules.files import DataDamaged, Located, cache_root, describe_damage, locate, sha256_of

CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2023, 0.1994, 0.2010)
#: raised whenever decoding changes a pixel
DECODER = "1"
_RECORD = 1 + 3 * 32 * 32

Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Images:
    """One split of CIFAR-10.

    Attributes:
        x: images ``[N, 3, 32, 32]`` uint8.
        labels: the labels ``[N]`` int64 that lie beside the images.
        is_jpeg: True where the file holds JPEG-coded copies, not the original pixels.
    """

    x: Tensor
    labels: Tensor
    is_jpeg: bool


def image_digest(root: str | Path | None, dataset: str = "cifar10n") -> str:
    """SHA-256 of the files that the images of ``dataset`` come from, joined by a plus sign. Reads no image."""
    return "+".join(sha256_of(path) for path in locate(dataset, "images", root).paths)


def load_images(root: str | Path | None) -> tuple[Images, Images]:
    """Training and test images, from the cache where they were decoded before.

    Raises:
        DataNotFound: no file with images; names the accepted ones.
        DataDamaged: a file that cannot be read.
    """
    found = locate("cifar10n", "images", root)
    train, test = found.paths * 2 if len(found.paths) == 1 else found.paths
    return _load(found, train, "train"), _load(found, test, "test")


def load_test_images(root: str | Path | None, dataset: str = "cifar10h") -> Images:
    """The test images of ``dataset``, which needs no others; errors as for :func:`load_images`."""
    found = locate(dataset, "images", root)
    return _load(found, found.paths[0], "test", dataset)


def _load(found: Located, path: Path, split: str, dataset: str = "cifar10n") -> Images:
    read = {"parquet": _read_parquet, "binary": _read_binary, "torchvision": _read_torchvision}[found.option]
    x, labels = cached(
        sha256_of(path), split, lambda: guarded(lambda: read(path, split), dataset, path, "CIFAR-10 images")
    )
    is_jpeg = found.option == "parquet" and _first_image(path)[:2] == b"\xff\xd8"
    return Images(torch.from_numpy(x), torch.from_numpy(labels).long(), is_jpeg)


def guarded(read: Callable[[], Arrays], dataset: str, path: Path, what: str, role: str = "images") -> Arrays:
    """Reads; whatever the reader raises becomes one sentence with path, digests and remedy."""
    try:
        return read()
    except DataDamaged:
        raise
    except Exception as error:
        reason = f"cannot be read as {what} ({type(error).__name__}: {error})"
        raise describe_damage(dataset, role, path, reason) from None


# --- cache ----------------------------------------------------------------------------------------


def cached(source: str, split: str, decode: Callable[[], Arrays]) -> Arrays:
    """Images and labels from the cache, else decoded and put there.

    Each entry is named by ``source``, the SHA-256 of what is decoded, and the decoder, written under a temporary name
    and moved into place: two processes that want one at once both get it. Where the folder cannot be written,
    images are decoded each time.
    """
    stem = f"{source[:24]}-{split}-v{DECODER}-pillow{version('pillow')}"
    places = [cache_root() / f"{stem}-{part}.npy" for part in ("images", "labels")]
    entry = _read_cache(places)
    if entry is not None:
        return entry
    decoded = decode()
    try:
        for place, array in zip(places, decoded, strict=True):
            _write_atomic(place, array)
    except OSError:
        return decoded
    return _read_cache(places) or decoded


def _read_cache(places: list[Path]) -> Arrays | None:
    try:
        # copy-on-write: pages are shared between processes and read only where they are used
        images, labels = (np.load(place, mmap_mode="c", allow_pickle=False) for place in places)
    except (OSError, ValueError, EOFError):
        return None
    return (images, labels) if len(images) == len(labels) else None


def _write_atomic(place: Path, array: np.ndarray) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=place.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            np.save(stream, array, allow_pickle=False)
        os.replace(temporary, place)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


# --- formats --------------------------------------------------------------------------------------


def _read_parquet(path: Path, split: str) -> Arrays:
    return read_parquet(path, "img", "label")


def read_parquet(path: Path, image_column: str, label_column: str) -> Arrays:
    """Images ``[N, 3, 32, 32]`` of ``<image_column>.bytes`` (any format that Pillow knows) and labels ``[N]``."""
    import pyarrow.parquet as pq
    from PIL import Image

    file = pq.ParquetFile(path)
    images = np.empty((file.metadata.num_rows, 3, 32, 32), dtype=np.uint8)
    labels = np.empty(len(images), dtype=np.int64)
    start = 0
    for batch in file.iter_batches(batch_size=2_000, columns=[image_column, label_column]):
        for offset, coded in enumerate(batch.column(image_column).field("bytes")):
            pixels = Image.open(io.BytesIO(coded.as_py())).convert("RGB")
            if pixels.size != (32, 32):
                raise ValueError(f"image {start + offset} has {pixels.width}x{pixels.height} pixels, not 32x32")
            images[start + offset] = np.asarray(pixels).transpose(2, 0, 1)
        labels[start : start + len(batch)] = batch.column(label_column).to_numpy()
        start += len(batch)
    return images, labels


def _first_image(path: Path) -> bytes:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path, memory_map=True)
    batch = next(file.iter_batches(batch_size=1, columns=["img"]))
    return bytes(batch.column("img").field("bytes")[0].as_py())


def _read_binary(path: Path, split: str) -> Arrays:
    """Records of 3,073 bytes: the label, then 32 x 32 red, green and blue values, row by row."""
    members = archive_members(path, _batch_names(split, ".bin"))
    blocks = [np.frombuffer(raw, dtype=np.uint8).reshape(-1, _RECORD) for raw in members]
    records = np.concatenate(blocks)
    return records[:, 1:].reshape(-1, 3, 32, 32).copy(), records[:, 0].astype(np.int64)


def _read_torchvision(path: Path, split: str) -> Arrays:
    """Pickled batches, each a dictionary with ``data`` (pixels as in the binary version) and ``labels``."""
    batches = [read_pickled_batch(raw) for raw in archive_members(path, _batch_names(split, ""))]
    images = np.concatenate([pixels for pixels, _ in batches])
    return images, np.concatenate([labels for _, labels in batches])


def read_pickled_batch(raw: bytes, key: bytes = b"labels") -> Arrays:
    """Pixels ``[N, 3, 32, 32]`` and labels ``[N]`` of one pickled batch, without unpickling it.

    ``pickletools.genops`` lists the opcodes and runs none, so a file that carries code does nothing. The
    labels are the whole numbers after the text ``key``, the pixels the one text of N x 3,072 bytes.

    Raises:
        ValueError: if the file does not have this form.
    """
    labels: list[int] = []
    pixels: bytes | None = None
    after_labels = False
    for opcode, argument, _ in pickletools.genops(raw):
        if isinstance(argument, (str, bytes)) and opcode.name not in ("GLOBAL", "PUT", "GET"):
            text = argument.encode("latin-1", "replace") if isinstance(argument, str) else argument
            after_labels = text == key
            pixels = text if len(text) >= _RECORD - 1 and len(text) % (_RECORD - 1) == 0 else pixels
        elif after_labels and isinstance(argument, int) and opcode.name in ("INT", "BININT", "BININT1", "BININT2"):
            labels.append(argument)
    if pixels is None or len(pixels) != len(labels) * (_RECORD - 1):
        raise ValueError(f"{len(labels)} labels and {len(pixels or b'')} bytes of pixels do not make a CIFAR-10 batch")
    return np.frombuffer(pixels, dtype=np.uint8).reshape(-1, 3, 32, 32).copy(), np.array(labels, dtype=np.int64)


def _batch_names(split: str, ending: str) -> list[str]:
    stems = [f"data_batch_{number}" for number in range(1, 6)] if split == "train" else ["test_batch"]
    return [f"{stem}{ending}" for stem in stems]


def archive_members(path: Path, names: list[str]) -> list[bytes]:
    """Content of the files ``names``, in that order, from whatever folder of the archive ``path``.

    Raises:
        ValueError: if one of them is not there.
    """
    content: dict[str, bytes] = {}
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            stream = archive.extractfile(member) if Path(member.name).name in names else None
            if stream is not None:
                content[Path(member.name).name] = stream.read()
    absent = [name for name in names if name not in content]
    if absent:
        raise ValueError(f"no {', '.join(absent)} in the archive")
    return [content[name] for name in names]
