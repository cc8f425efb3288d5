"""Images of 32x32 that show none of CIFAR-10's things: SVHN, CIFAR-100, GTSRB, Tiny-ImageNet.

Decoded once, then read back from the cache of :mod:`datamodules.cifar10_images`. Nothing is unpickled: SVHN's
file is MATLAB's version 5, which holds arrays, and CIFAR-100's pickle is read as a text of opcodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from datamodules.cifar10_images import (
    DECODER,
    Arrays,
    archive_members,
    cached,
    guarded,
    read_parquet,
    read_pickled_batch,
)
from datamodules.files import DataNotFound, describe_damage, locate, sha256_of
from datamodules.names import UnknownName, unknown_name


@dataclass(frozen=True)
class OodSet:
    """One set of images.

    Attributes:
        title: what it is, for messages.
        n_images: images in the published files.
        readers: option of the catalogue -> reader of its file: images ``[N, 3, 32, 32]`` uint8 and labels ``[N]``.
    """

    title: str
    n_images: int
    readers: Mapping[str, Callable[[Path], Arrays]]


def load_ood_images(name: str, root: str | Path | None = None) -> Tensor:
    """Images ``[M, 3, 32, 32]`` uint8 of one of :data:`OOD`, in the file's order.

    Of Tiny-ImageNet, the classes that CIFAR-10 has too are left out.

    Raises:
        UnknownName: for another name; lists near ones.
        DataNotFound: a file is not there; says where it was looked for and how to get it.
        DataDamaged: a file is empty, truncated, or holds something else than the published images.
    """
    ood = _known(name)
    found = locate(name, "images", root)
    path = found.paths[0]

    def read() -> Arrays:
        images, labels = ood.readers[found.option](path)
        if images.shape != (ood.n_images, 3, 32, 32) or images.dtype != np.uint8 or len(labels) != ood.n_images:
            raise ValueError(
                f"images {images.shape} {images.dtype} with {len(labels)} labels; "
                f"the published ones are {(ood.n_images, 3, 32, 32)} uint8"
            )
        return images, labels

    images, labels = cached(
        sha256_of(path), f"ood-{found.option}", lambda: guarded(read, name, path, f"{ood.title} images")
    )
    chosen = torch.from_numpy(images)
    return chosen[without_overlap(path, torch.from_numpy(labels), root)] if name == "tiny_imagenet" else chosen


def ood_files_digest(name: str, root: str | Path | None = None) -> str | None:
    """SHA-256 of the files of one of :data:`OOD` and the decoder's version; None where a file is not there.

    Raises:
        UnknownName: for another name.
        DataDamaged: a file is empty.
    """
    _known(name)
    roles = ("images", "overlap") if name == "tiny_imagenet" else ("images",)
    try:
        paths = [path for role in roles for path in locate(name, role, root).paths]
    except DataNotFound:
        return None
    return f"{'+'.join(sha256_of(path) for path in paths)};decoder {DECODER}"


# --- formats --------------------------------------------------------------------------------------


def _read_svhn(path: Path) -> Arrays:
    """``X [32, 32, 3, N]`` (row, column, colour, image) and ``y [N, 1]``, where 10 is the digit 0."""
    from scipy.io import loadmat

    with path.open("rb") as stream:
        document = loadmat(stream, variable_names=["X", "y"])
    images = np.ascontiguousarray(document["X"].transpose(3, 2, 0, 1))
    return images, document["y"].reshape(-1).astype(np.int64) % 10


def _read_cifar100_archive(path: Path) -> Arrays:
    (raw,) = archive_members(path, ["test"])
    return read_pickled_batch(raw, b"fine_labels")


def _read_cifar100_parquet(path: Path) -> Arrays:
    return read_parquet(path, "img", "fine_label")


def _read_copy(path: Path) -> Arrays:
    return read_parquet(path, "image", "label")


#: name -> what it is and how it is read
OOD: dict[str, OodSet] = {
    "svhn": OodSet("SVHN", 26_032, {"published": _read_svhn}),
    "cifar100": OodSet("CIFAR-100", 10_000, {"parquet": _read_cifar100_parquet, "torchvision": _read_cifar100_archive}),
    "gtsrb": OodSet("GTSRB", 12_630, {"copy": _read_copy}),
    "tiny_imagenet": OodSet("Tiny-ImageNet", 10_000, {"copy": _read_copy}),
}


def without_overlap(path: Path, labels: Tensor, root: str | Path | None) -> Tensor:
    """Mask ``[N]`` of Tiny-ImageNet's images whose class CIFAR-10 lacks."""
    listed = locate("tiny_imagenet", "overlap", root).paths[0]
    try:
        left_out = set(json.loads(listed.read_text(encoding="utf-8"))["overlaps_cifar10_class"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"cannot be read as a list of classes ({type(error).__name__}: {error})"
        raise describe_damage("tiny_imagenet", "overlap", listed, reason) from None
    names = _class_names(path)
    unknown = sorted(map(str, left_out - set(names)))
    if unknown or not left_out:
        reason = f"lists {len(left_out)} classes, of which {path.name} lacks {', '.join(unknown) or 'none'}"
        raise describe_damage("tiny_imagenet", "overlap", listed, reason)
    kept = torch.tensor([name not in left_out for name in names])
    return kept[labels]


def _class_names(path: Path) -> list[str]:
    """The classes in order, as the hub's library notes them in the file."""
    import pyarrow.parquet as pq

    try:
        noted = json.loads((pq.read_schema(path).metadata or {})[b"huggingface"])
        names = noted["info"]["features"]["label"]["names"]
        return [str(name) for name in names]
    except (ValueError, KeyError, TypeError) as error:
        reason = f"does not name its classes ({type(error).__name__}: {error})"
        raise describe_damage("tiny_imagenet", "images", path, reason) from None


def _known(name: str) -> OodSet:
    if name not in OOD:
        raise UnknownName(unknown_name("out-of-distribution set", name, OOD))
    return OOD[name]
