"""Images for few-shot tasks: decoded and resized once, then read back from the cache; pools by class."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from datamodules.cifar10_images import Arrays, cached, guarded
from datamodules.episode_sampling import Pool
from datamodules.files import sha256_of

#: per-channel mean and standard deviation of ImageNet's images, as commonly used
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
#: raised whenever decoding or resizing changes a pixel
RESIZER = "1"


def decoded(coded: bytes, size: int, mode: str = "RGB") -> np.ndarray:
    """One image ``[C, size, size]`` uint8 of any format that Pillow knows, resized where it has another size."""
    from PIL import Image

    image = Image.open(io.BytesIO(coded)).convert(mode)
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.LANCZOS)
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def parquet_images(path: Path, dataset: str, size: int, role: str = "images") -> tuple[Tensor, Tensor]:
    """Images ``[N, 3, size, size]`` uint8 and labels ``[N]`` of a parquet file with ``image.bytes`` and ``label``.

    Raises:
        DataDamaged: the file cannot be read.
    """

    def read() -> Arrays:
        import pyarrow.parquet as pq

        file = pq.ParquetFile(path)
        images = np.empty((file.metadata.num_rows, 3, size, size), dtype=np.uint8)
        labels = np.empty(len(images), dtype=np.int64)
        start = 0
        for batch in file.iter_batches(batch_size=2_000, columns=["image", "label"]):
            for offset, coded in enumerate(batch.column("image").field("bytes")):
                images[start + offset] = decoded(coded.as_py(), size)
            labels[start : start + len(batch)] = batch.column("label").to_numpy()
            start += len(batch)
        return images, labels

    images, labels = cached(
        sha256_of(path), f"{size}-{RESIZER}", lambda: guarded(read, dataset, path, "images in parquet", role)
    )
    return torch.from_numpy(images), torch.from_numpy(labels)


def pool_of(images: Tensor, classes: Tensor, chosen: Iterable[int] | Tensor) -> Pool:
    """The pool of the items whose class is one of ``chosen``."""
    wanted = chosen if isinstance(chosen, Tensor) else torch.tensor(sorted(chosen), dtype=torch.int64)
    rows = torch.isin(classes, wanted).nonzero().flatten()
    return Pool(images[rows], classes[rows])


def fixed_split(ids: Tensor, sizes: Sequence[int], seed: int = 0) -> list[Tensor]:
    """Class ids dealt at random into parts of the given sizes, the same whatever the seeds of a run.

    Raises:
        ValueError: if there are fewer classes than the parts need.
    """
    if len(ids) < sum(sizes):
        raise ValueError(f"{len(ids)} classes cannot be split into parts of {', '.join(map(str, sizes))}")
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(ids))[: sum(sizes)])
    return list(ids[order].split(list(sizes)))
