"""CIFAR-10H: CIFAR-10's 10,000 test images with 511,000 human votes, 47 to 63 an image.

Source: Peterson et al., "Human uncertainty makes classification more robust", ICCV 2019,
https://github.com/jcpeterson/cifar-10h. The official table holds counts; who voted is in another file, which is
not read, so votes are pooled. Split as in Gheibi and Ghazizadeh (arXiv 2605.20642): 8,000 images to learn from
and 2,000 to test on, stratified; here by CIFAR-10's class, and the same whatever the seeds.

>>> module = Cifar10H("votes=5")  # doctest: +SKIP
>>> module.info  # doctest: +SKIP
DataInfo(n_classes=10, n_annotators=5, input_shape=(3, 32, 32))
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from datamodules.annotations import Annotations
from datamodules.base import CrowdData, hash_tensors
from datamodules.catalogue import JPEG_NOTE
from datamodules.cifar10_images import CLASS_NAMES, DECODER, MEAN, STD, Images, image_digest, load_test_images
from datamodules.files import DataDamaged, describe_damage, locate
from datamodules.ood import load_ood_images, ood_files_digest
from datamodules.pooled import PooledVotes, pooled_annotations
from datamodules.regimes import REGIMES

N_CLASSES = len(CLASS_NAMES)
#: seed of the fixed split
SPLIT_SEED = 0


@dataclass(frozen=True)
class PublishedVotes:
    """What the table of votes must look like, counted on the published file.

    Attributes:
        n_items: rows.
        total: votes in all.
        top_right: share of the images whose most frequent vote (the first of equals) is CIFAR-10's class.
        total_tolerance: largest difference of the total that is accepted (an edited vote or a few).
        top_tolerance: largest difference of the share that is accepted.
        test_a_class: images of each class that are tested on.
    """

    n_items: int = 10_000
    total: int = 511_000
    top_right: float = 0.9921
    total_tolerance: int = 100
    top_tolerance: float = 0.005
    test_a_class: int = 200


class Cifar10H(PooledVotes):
    """CIFAR-10H; see :class:`PooledVotes` for the arguments."""

    name = "cifar10h"
    regimes = REGIMES["cifar10h"]
    ood_sets = ("svhn", "cifar100", "gtsrb", "tiny_imagenet")
    #: what the table must look like; a generated twin has its own
    published: ClassVar[PublishedVotes] = PublishedVotes()

    def load(self) -> CrowdData:
        """Reads images (decoded once, then cached) and votes.

        Raises:
            DataNotFound: a file is not there; lists accepted names, folder and source.
            DataDamaged: a file is empty, truncated, not the published one, or of other images than the votes.
            VoteError: if no image has K votes.
        """
        images, kept, votes = self._checked_images(), self._kept, self._votes
        is_test = stratified_test_items(images.labels, self.published.test_a_class)
        return CrowdData(
            x=images.x[~is_test],
            annotations=pooled_annotations(kept[~is_test]),
            true_labels=images.labels[~is_test],
            test_x=images.x[is_test],
            test_labels=images.labels[is_test],
            test_annotations=pooled_annotations(votes[is_test]),
            class_names=CLASS_NAMES,
            notes=(JPEG_NOTE,) if images.is_jpeg else (),
            mean=MEAN,
            std=STD,
            full_votes=votes[~is_test],
        )

    def annotations_for_audit(self) -> tuple[Annotations, Tensor]:
        """Votes of all 10,000 images under the regime, and their classes ``[10000]``."""
        return pooled_annotations(self._kept), self._checked_images().labels

    def digest(self) -> str:
        """SHA-256 (hex) of the image file's digest, the decoder's version and the votes. Reads no image."""
        arrays = hash_tensors(self._kept, self._votes)
        source = f"{image_digest(self.root, self.name)};decoder {DECODER};split {SPLIT_SEED}"
        return hashlib.sha256(f"{source};{arrays}".encode()).hexdigest()

    def load_ood(self, name: str) -> Tensor:
        """Images ``[M, 3, 32, 32]`` uint8; see :mod:`datamodules.ood`."""
        return load_ood_images(name, self.root) if name in self.ood_sets else super().load_ood(name)

    def ood_digest(self, name: str) -> str | None:
        """SHA-256 (hex) of the files that the images come from; None where they are not there."""
        return ood_files_digest(name, self.root) if name in self.ood_sets else super().ood_digest(name)

    # --- within -------------------------------------------------------------------------------

    @cached_property
    def _votes(self) -> Tensor:
        """All votes ``[10000, 10]``."""
        return read_votes(self.name, self.published, self.root)

    @cached_property
    def _kept(self) -> Tensor:
        """Votes ``[10000, 10]`` under the regime; one draw for all images, so that no split changes it."""
        return self.budgeted(self._votes)

    def _checked_images(self) -> Images:
        """The images, if the votes are about them."""
        images, votes, published = load_test_images(self.root, self.name), self._votes, self.published
        if len(images.x) != len(votes):
            path = locate(self.name, "images", self.root).paths[0]
            what = f"has {len(images.x)} images; the votes are about {len(votes)}"
            raise describe_damage(self.name, "images", path, what)
        right = float((votes.argmax(dim=1) == images.labels).double().mean())
        if abs(right - published.top_right) > published.top_tolerance:
            raise _damaged(
                self.name,
                f"does not fit the images: the most frequent vote is right for {100 * right:.2f} % of them, in the "
                f"published one for {100 * published.top_right:.2f} %, so these are votes on other images or in "
                "another order",
                self.root,
            )
        return images


def read_votes(dataset: str, published: PublishedVotes, root: str | Path | None) -> Tensor:
    """Votes ``[N, C]`` int64 of the official table, checked.

    Raises:
        DataNotFound: the table is not there.
        DataDamaged: it is empty, truncated, of another shape, holds no whole or negative counts, an image without
            votes, or another number of votes; names the row.
    """
    path = locate(dataset, "votes", root).paths[0]
    try:
        table = np.load(path, allow_pickle=False)
    except Exception as error:
        raise _damaged(dataset, f"cannot be read as a table of votes ({type(error).__name__}: {error})", root) from None
    shape = (published.n_items, N_CLASSES)
    if not isinstance(table, np.ndarray) or table.shape != shape:
        found = table.shape if isinstance(table, np.ndarray) else type(table).__name__
        raise _damaged(dataset, f"has shape {found}; the published one has {shape}", root)
    _check_counts(dataset, table, root)
    total = int(table.sum())
    if abs(total - published.total) > published.total_tolerance:
        raise _damaged(dataset, f"holds {total:,} votes; the published one {published.total:,}", root)
    return torch.from_numpy(table.astype(np.int64))


def _check_counts(dataset: str, table: np.ndarray, root: str | Path | None) -> None:
    """Refuses what is no table of counts, naming the first row at fault."""
    if table.dtype.kind not in "iuf":
        raise _damaged(dataset, f"holds values of type {table.dtype}, not counts", root)
    faults = (
        ("counts that are not whole numbers (frequencies, perhaps)", ~np.isfinite(table) | (table != np.floor(table))),
        ("a negative count", table < 0),
        ("no votes", table.sum(axis=1, keepdims=True) == 0),
    )
    for what, wrong in faults:
        rows = np.flatnonzero(wrong.any(axis=1))
        if len(rows):
            values = table[rows[0]].tolist()
            raise _damaged(dataset, f"has {what} in row {rows[0]} ({len(rows)} such rows): {values}", root)


def _damaged(dataset: str, what: str, root: str | Path | None) -> DataDamaged:
    return describe_damage(dataset, "votes", locate(dataset, "votes", root).paths[0], what)


def stratified_test_items(classes: Tensor, n_a_class: int) -> Tensor:
    """Mask ``[N]`` of the test items: ``n_a_class`` of every class, the same whatever the seeds."""
    is_test = torch.zeros(len(classes), dtype=torch.bool)
    chooser = np.random.default_rng(SPLIT_SEED)
    for label in range(N_CLASSES):
        members = (classes == label).nonzero().flatten()
        is_test[members[torch.from_numpy(chooser.permutation(len(members))[:n_a_class])]] = True
    return is_test
