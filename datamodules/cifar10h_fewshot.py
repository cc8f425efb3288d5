"""Few-shot tasks whose target is CIFAR-10H: CIFAR-10's test images with the votes that people gave them.

Source and validation classes are Tiny-ImageNet's at 32x32 without those that CIFAR-10 has too. Support items are the
8,000 images that :class:`datamodules.cifar10h.Cifar10H` learns from, queries its 2,000 test images with CIFAR-10's own
class. Under the regime ``crowd`` an item's R labels are R of its 47 to 63 votes, drawn at random. Who voted is not
published with the counts: the "annotators" are nobody in particular, and the paper's selection of 25 bad annotators
(arXiv 2506.10259, appendix) cannot be made from them. Votes for none of an episode's classes are left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from datamodules.cifar10_images import DECODER
from datamodules.cifar10h import Cifar10H
from datamodules.digits_episodes import SIMULATED_NOTE
from datamodules.episodes import CROWD, EpisodicData, EpisodicDataModule, Part, Pool
from datamodules.few_shot_images import IMAGENET_MEAN, IMAGENET_STD, RESIZER, parquet_images, pool_of
from datamodules.few_shot_regimes import CROWD_REGIME, SIMULATED
from datamodules.files import locate, sha256_of
from datamodules.ood import without_overlap
from datamodules.tiny_imagenet_fewshot import TinyImageNetFewShot, few_shot_parts

SIZE = 32
SOURCE_NOTE = "source tasks of cifar10h_fewshot are of Tiny-ImageNet classes (at 32x32) that CIFAR-10 lacks"
POOLED_NOTE = "CIFAR-10H's votes are pooled: an annotator of one item is not the same person for another item"


class Cifar10HFewShot(EpisodicDataModule):
    """Few-shot tasks of CIFAR-10H; see :class:`EpisodicDataModule` for the arguments."""

    name = "cifar10h_fewshot"
    regimes: ClassVar[Mapping[str, str]] = {**CROWD_REGIME, **SIMULATED}
    provides = frozenset({"images", "votes"})
    pooled = True
    #: reads the target; a generated twin has its own
    target: ClassVar[type[Cifar10H]] = Cifar10H
    #: classes of each part of the source file
    sizes: ClassVar[Mapping[Part, int]] = TinyImageNetFewShot.sizes

    def load(self) -> EpisodicData:
        """Reads source and target (decoded once, then cached).

        Raises:
            DataNotFound: a file is not there; says where it was looked for.
            DataDamaged: a file is empty, truncated or not what it should be.
        """
        target = self.target("full", root=self.root).data
        test = Pool(target.x, _known(target.true_labels), target.annotations, target.test_x, _known(target.test_labels))
        path = self._source
        images, classes = parquet_images(path, self.name, SIZE, "source")
        parts = few_shot_parts(path, self.name, "source", self.sizes)
        # of the hundred classes of the file, the target's part is not needed: more to learn from
        sources = torch.cat([parts["train"], parts["test"]])
        unlike = classes[without_overlap(path, classes, self.root)].unique()
        train, val = (pool_of(images, classes, part[torch.isin(part, unlike)]) for part in (sources, parts["val"]))
        notes = (SOURCE_NOTE, POOLED_NOTE if self.regime == CROWD else SIMULATED_NOTE, *target.notes)
        return EpisodicData(train, val, test, notes=notes, mean=IMAGENET_MEAN, std=IMAGENET_STD)

    def digest(self) -> str:
        """SHA-256 (hex) of the target's digest, the digests of the source's files and the decoder. Reads no image."""
        files = (self._source, locate(self.name, "overlap", self.root).paths[0])
        digests = "+".join(sha256_of(path) for path in files)
        target = self.target("full", root=self.root).digest()
        return hashlib.sha256(f"{target};{digests};decoder {DECODER}.{RESIZER};size {SIZE}".encode()).hexdigest()

    @property
    def _source(self) -> Path:
        return locate(self.name, "source", self.root).paths[0]


def _known(labels: Tensor | None) -> Tensor:
    """CIFAR-10's classes are known for every image."""
    assert labels is not None
    return labels
