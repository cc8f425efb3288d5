"""Features of items that lie in a file: tensors whose rows are read when they are needed, and given back."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: rows that are looked at or sent to a device at once
_BLOCK = 256


class MappedTensor(Tensor):
    """A tensor over a memory-mapped .npy file; made by :func:`open_mapped`.

    What is read of it stays in memory, and counts as this process's, until :meth:`release`. Whatever is computed
    from it is an ordinary tensor.
    """

    # results of operations are plain tensors: they lie in no file
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    path: Path
    mapping: mmap.mmap

    def release(self) -> None:
        """Gives back the memory of all rows that were read; they are read again when they are needed."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.mapping.madvise(mmap.MADV_DONTNEED)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # another process maps the file itself
        return open_mapped, (self.path,)


def open_mapped(path: Path) -> MappedTensor:
    """The array of a .npy file as a tensor that is read row by row (changes to it never reach the file).

    Raises:
        OSError, ValueError: no such file, or none of this format.
    """
    array = np.load(path, mmap_mode="c", allow_pickle=False)
    tensor: MappedTensor = torch.from_numpy(array).as_subclass(MappedTensor)
    tensor.path, tensor.mapping = path, array.base
    return tensor


def release(tensor: Tensor) -> None:
    """:meth:`MappedTensor.release` where ``tensor`` is one; nothing for others."""
    if isinstance(tensor, MappedTensor):
        tensor.release()


def sent_to(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy of ``tensor`` on ``device``; a mapped one is sent in blocks and never in memory as a whole."""
    if not isinstance(tensor, MappedTensor):
        return tensor.to(device)
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    for start in range(0, len(tensor), _BLOCK):
        copy[start : start + _BLOCK].copy_(tensor[start : start + _BLOCK])
        tensor.release()
    return copy


def check_features(features: Tensor, n_items: int, place: str) -> None:
    """Raises ValueError unless ``features`` are floats with one row an item: vectors, tokens, or tokens of frames.

    Values that are not finite are refused too, except in a file: the cache that wrote it checked them, and reading
    all of it would take longer than the training has to wait.

    Args:
        features: ``[N, D]``, ``[N, n_tokens, D]`` or ``[N, F, n_tokens, D]``.
        n_items: how many rows there must be.
        place: what they stand for, in messages.
    """
    if not 2 <= features.ndim <= 4 or not features.is_floating_point():
        raise ValueError(
            f"{place}: {features.dtype} {tuple(features.shape)} are no features; give floats [{n_items}, D], "
            f"[{n_items}, tokens, D] or [{n_items}, frames, tokens, D]"
        )
    if len(features) != n_items:
        raise ValueError(
            f"{place}: {len(features)} rows of features for {n_items} items; they are those of other data. "
            "Give one row an item, in the items' order"
        )
    if not isinstance(features, MappedTensor) and not bool(torch.isfinite(features).all()):
        raise ValueError(f"{place}: the features hold NaN or infinite values; check the encoder that made them")
