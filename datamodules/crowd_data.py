"""What a data set is once loaded, and what a method must know of it: plain values and tensors."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from torch import Tensor

from datamodules.annotations import Annotations


@dataclass(frozen=True)
class DataInfo:
    """What a method must know of its data before it sees any.

    Attributes:
        n_classes: number of classes C.
        n_annotators: number of annotators R; ids run from 0 to R-1.
        input_shape: shape of one item's ``x`` as it reaches the method, without the batch axis:
            ``(channels, height, width)`` for images, ``(features,)`` for vectors.
    """

    n_classes: int
    n_annotators: int
    input_shape: tuple[int, ...]


@dataclass(frozen=True)
class CrowdData:
    """One loaded data set under one regime.

    Attributes:
        x: training items ``[N, ...]``: uint8 images ``[N, C, H, W]`` or float32 features ``[N, D]``.
        annotations: the annotations of those N items under the regime.
        true_labels: clean labels ``[N]`` of the training items, or None where nobody knows them. Only
            ``benchmark.evaluate`` and the audit read them.
        test_x: test items, like ``x``.
        test_labels: clean labels of the test items, or None.
        test_annotations: annotations of the test items, or None.
        class_names: names of the classes, in order.
        notes: sentences that belong under every table made from this data.
        mean: per-channel mean of ``x / 255`` for normalisation; None: not normalised.
        std: per-channel standard deviation likewise.
        aggregated: the single label ``[N]`` an item that the data's authors train on under this regime, -1
            where there is none; None: the data has none (methods then take a majority).
        full_votes: votes ``[N, C]`` int64 of the training items before any budget, where the regime is one; only
            ``benchmark.evaluate`` reads them.
        val_items: ids ``[n]`` int64 of the items in ``x`` that are held out for validation, where the data's
            authors fixed them; None: they are drawn.
        train_cues: class of the shape and of the texture ``[N, 2]`` int64 of the items in ``x``, where the items
            have two such cues.
        test_cues: likewise ``[M, 2]`` of the test items.
        test_regions: where each annotator's label of each test item comes from, where that is known: bool
            ``[M, R, H, W]`` on any grid over the image, or ``[M, R, F]`` over the frames of a clip.
    """

    x: Tensor
    annotations: Annotations
    true_labels: Tensor | None
    test_x: Tensor
    test_labels: Tensor | None
    test_annotations: Annotations | None = None
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    aggregated: Tensor | None = None
    full_votes: Tensor | None = None
    val_items: Tensor | None = None
    train_cues: Tensor | None = None
    test_cues: Tensor | None = None
    test_regions: Tensor | None = None


def hash_tensors(*tensors: Tensor | None) -> str:
    """SHA-256 (hex) over shape, type and bytes of ``tensors``; None counts as absent."""
    digest = hashlib.sha256()
    for tensor in tensors:
        if tensor is None:
            digest.update(b"absent;")
            continue
        array = tensor.contiguous().cpu().numpy()
        digest.update(f"{array.dtype.str}{array.shape};".encode())
        digest.update(array.data.cast("B") if array.size else b"")
    return digest.hexdigest()
