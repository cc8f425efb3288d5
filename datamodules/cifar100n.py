"""CIFAR-100N: human fine labels and workers of the CIFAR-100 training images, for the audit.

One label an image, so no agreement can be computed; the workers' error rates can. The images are not read by
this data module: :meth:`Cifar100N.load` says so.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from datamodules.annotations import Annotations
from datamodules.base import CrowdData, CrowdDataModule, hash_tensors
from datamodules.files import DataNotFound
from datamodules.human_labels import Published, check_published, read_labels, read_workers
from datamodules.regimes import REGIMES

N_CLASSES = 100


class Cifar100N(CrowdDataModule):
    """CIFAR-100N's labels and workers; see :class:`CrowdDataModule` for the arguments."""

    name = "cifar100n"
    regimes = REGIMES["cifar100n"]
    audit_regime = "noisy"
    provides = frozenset({"annotator_ids"})
    #: noise rate of the published file
    published: ClassVar[Published] = Published(noise=0.4020)

    @classmethod
    def regime_family(cls, regime: str) -> str:
        """One family: the regimes are label sets of the same items."""
        return cls.name

    def load(self) -> CrowdData:
        """Always raises: there are no images to learn from.

        Raises:
            DataNotFound: naming what can be done with this data.
        """
        raise DataNotFound(
            "cifar100n: the images of CIFAR-100 are not part of this data set, so nothing can be trained on it. "
            "Its labels and workers can be described: `annobench data audit cifar100n`"
        )

    def annotations_for_audit(self) -> tuple[Annotations, Tensor | None]:
        """Annotations under the regime and clean fine labels ``[50000]``.

        Raises:
            DataNotFound: a file is not there.
            DataDamaged: a file is not the published one (check of noise rate, classes and workers' table).
        """
        keys = ("clean_label", "noisy_label") if self.regime == "noisy" else ("clean_label",)
        labels = read_labels(self.name, keys, N_CLASSES, self.root)
        clean = labels["clean_label"]
        items = torch.arange(len(clean))
        if self.regime == "clean":
            return Annotations(items, torch.zeros_like(items), clean, len(clean), 1, N_CLASSES), clean
        noisy = labels["noisy_label"]
        check_published(self.name, "noisy_label", noisy, clean, N_CLASSES, self.published, self.root)
        workers = read_workers(self.name, ("Worker-id",), len(clean), self.root)
        return Annotations(items, workers.ids[0], noisy, len(clean), workers.n_workers, N_CLASSES), clean

    def digest(self) -> str:
        """SHA-256 (hex) of the annotations and clean labels."""
        noted, clean = self.annotations_for_audit()
        return hash_tensors(noted.items, noted.annotators, noted.labels, clean)
