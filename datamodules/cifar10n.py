"""CIFAR-10N: CIFAR-10's training images with three human labels each, 747 nominal workers.

Source: Wei et al., ICLR 2022, https://github.com/UCSC-REAL/cifar-10-100n. What each regime holds follows the
LMNL-2022 challenge: three (worker, label) pairs an image for ``aggre``, one for ``rand1``, and three workers who
all carry the worse label for ``worst``.

>>> module = Cifar10N("aggre")  # doctest: +SKIP
>>> module.info  # doctest: +SKIP
DataInfo(n_classes=10, n_annotators=747, input_shape=(3, 32, 32))
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from datamodules.annotations import Annotations
from datamodules.base import CrowdData, CrowdDataModule, hash_tensors
from datamodules.catalogue import JPEG_NOTE
from datamodules.cifar10_images import CLASS_NAMES, MEAN, STD, image_digest, load_images
from datamodules.cifar10n_like import crowd_labels
from datamodules.files import describe_damage, locate
from datamodules.human_labels import Published, check_published, read_labels, read_workers
from datamodules.regimes import REGIMES
from datamodules.seeds import derive_seed

N_CLASSES = len(CLASS_NAMES)
RANDOM = ("random_label1", "random_label2", "random_label3")
WORKER_COLUMNS = ("Worker1-id", "Worker2-id", "Worker3-id")
SIMULATED_NOTE = (
    "the labels are simulated: CIFAR-10N's table of who labelled what, with labels drawn from workers who differ"
)
#: regime -> the label array that the organisers train on
AGGREGATED = {
    "clean": "clean_label",
    "aggre": "aggre_label",
    "rand1": RANDOM[0],
    "rand2": RANDOM[1],
    "rand3": RANDOM[2],
    "worst": "worse_label",
}

#: noise rates and class counts of the file with SHA-256 873e69c3...bb2310 (Wei et al. print 9.03 % for aggre)
PUBLISHED = {
    "clean_label": Published(0.0, (5000,) * 10),
    "aggre_label": Published(0.0901, (5314, 5509, 5407, 4621, 4349, 4963, 4616, 5003, 5347, 4871)),
    "random_label1": Published(0.1723, (5021, 5558, 5146, 4694, 4445, 5383, 4675, 5255, 4921, 4902)),
    "random_label2": Published(0.1812, (5074, 5497, 5199, 4694, 4479, 5355, 4699, 5183, 4915, 4905)),
    "random_label3": Published(0.1764, (5087, 5518, 5223, 4698, 4389, 5426, 4722, 5225, 4876, 4836)),
    "worse_label": Published(0.4021, (5309, 6053, 5342, 4673, 4040, 5668, 4203, 5273, 4629, 4810)),
}


@dataclass(frozen=True)
class LabelSet:
    """All of one regime but the images: annotations, the organisers' single label ``[N]``, clean labels ``[N]``."""

    annotations: Annotations
    aggregated: Tensor
    clean: Tensor


class Cifar10N(CrowdDataModule):
    """CIFAR-10 under the human labels of CIFAR-10N; see :class:`CrowdDataModule` for the arguments."""

    name = "cifar10n"
    regimes = REGIMES["cifar10n"]
    audit_regime = "aggre"
    #: label array -> what it must look like; a generated twin has its own
    published: ClassVar[Mapping[str, Published]] = PUBLISHED

    @classmethod
    def regime_family(cls, regime: str) -> str:
        """One family: the regimes are label sets of the same images, so that their columns are paired."""
        return cls.name

    def load(self) -> CrowdData:
        """Reads images (decoded once, then cached) and labels.

        Raises:
            DataNotFound: a file is not there; lists accepted names, folder and source.
            DataDamaged: a file is empty, truncated, not the published one, or in another order than the images.
        """
        labels = self.label_set
        train, test = load_images(self.root)
        self._check_order(train.labels, labels.clean)
        notes = [JPEG_NOTE] if train.is_jpeg or test.is_jpeg else []
        return CrowdData(
            x=train.x,
            annotations=labels.annotations,
            true_labels=labels.clean,
            test_x=test.x,
            test_labels=test.labels,
            class_names=CLASS_NAMES,
            notes=(*notes, SIMULATED_NOTE) if self.regime == "simulated" else tuple(notes),
            mean=MEAN,
            std=STD,
            aggregated=labels.aggregated,
        )

    def annotations_for_audit(self) -> tuple[Annotations, Tensor | None]:
        """Annotations and clean labels ``[N]``, without reading an image."""
        return self.label_set.annotations, self.label_set.clean

    def digest(self) -> str:
        """SHA-256 (hex) of the image files' digests and of the label arrays that this regime reads."""
        labels = self.label_set
        noted = labels.annotations
        arrays = hash_tensors(noted.items, noted.annotators, noted.labels, labels.aggregated, labels.clean)
        return hashlib.sha256(f"{image_digest(self.root)};{arrays}".encode()).hexdigest()

    @cached_property
    def label_set(self) -> LabelSet:
        """Annotations and single labels under the regime, read and checked once."""
        if self.regime == "clean":
            clean = self._read("clean_label")["clean_label"]
            items = torch.arange(len(clean))
            noted = Annotations(items, torch.zeros_like(items), clean, len(clean), 1, N_CLASSES)
            return LabelSet(noted, clean, clean)
        return self._simulated() if self.regime == "simulated" else self._human()

    # --- within -------------------------------------------------------------------------------

    def _human(self) -> LabelSet:
        single = AGGREGATED[self.regime]
        slots = {"aggre": RANDOM, "worst": (single,) * 3}.get(self.regime, (single,))
        arrays = self._read("clean_label", single, *slots)
        clean = arrays["clean_label"]
        workers = read_workers(self.name, WORKER_COLUMNS, len(clean), self.root)
        places = [RANDOM.index(single)] if single in RANDOM else [0, 1, 2]
        given = torch.stack([arrays[key] for key in slots])
        noted = _annotations(workers.ids[places], given, workers.n_workers)
        return LabelSet(noted, arrays[single], clean)

    def _simulated(self) -> LabelSet:
        clean = self._read("clean_label")["clean_label"]
        workers = read_workers(self.name, WORKER_COLUMNS, len(clean), self.root)
        table = _annotations(workers.ids, torch.zeros_like(workers.ids), workers.n_workers)
        labels = crowd_labels(clean, table.items, table.annotators, workers.n_workers, N_CLASSES, self.annotation_seed)
        noted = replace(table, labels=labels)
        tie_seed = derive_seed(seed=self.annotation_seed, purpose="aggregated label")
        return LabelSet(noted, noted.majority(tie_seed), clean)

    def _read(self, *keys: str) -> dict[str, Tensor]:
        arrays = read_labels(self.name, tuple(dict.fromkeys(keys)), N_CLASSES, self.root)
        for key, labels in arrays.items():
            check_published(self.name, key, labels, arrays["clean_label"], N_CLASSES, self.published[key], self.root)
        return arrays

    def _check_order(self, beside_images: Tensor, clean: Tensor) -> None:
        if torch.equal(beside_images, clean):
            return
        same = len(beside_images) == len(clean)
        share = f"{100 * float((beside_images == clean).double().mean()):.1f} % agree" if same else "other lengths"
        path = locate(self.name, "images", self.root).paths[0]
        what = f"has images in another order than CIFAR-10N's labels (labels of images against clean_label: {share})"
        raise describe_damage(self.name, "images", path, what)


def _annotations(workers: Tensor, labels: Tensor, n_workers: int) -> Annotations:
    """Triples from worker ids and labels, both ``[S, N]``."""
    n_slots, n_items = workers.shape
    items = torch.arange(n_items).repeat(n_slots)
    return Annotations(items, workers.flatten(), labels.flatten(), n_items, n_workers, N_CLASSES)
