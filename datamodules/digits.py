"""scikit-learn's digits with simulated annotators: the embedded data set, nothing to download.

1,797 images of 8x8 (UCI "Optical Recognition of Handwritten Digits", test part). Three labels an image by
60 simulated annotators, from which the regimes are made as CIFAR-10N's are.

>>> Digits("aggre").info
DataInfo(n_classes=10, n_annotators=60, input_shape=(1, 8, 8))
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datamodules.annotations import Annotations
from datamodules.base import CrowdData, CrowdDataModule
from datamodules.cifar10n_like import CROWDS, Crowd, crowd_labels, worse_labels
from datamodules.names import unknown_name
from datamodules.regimes import REGIMES
from datamodules.seeds import derive_seed
from datamodules.simulate import assign, workloads

N_CLASSES = 10
N_ANNOTATORS = 60
LABELS_PER_ITEM = 3
TEST_ITEMS_A_CLASS = 54
#: standard deviation of the logarithm of the workloads: the busiest annotator labels many times the median
WORKLOAD_SKEW = 1.0


class Digits(CrowdDataModule):
    """Digits with simulated annotators.

    Args:
        regime: ``clean``, ``aggre``, ``rand1`` or ``worst``. Regimes of one ``annotation_seed`` are made of the same
            three labels an image.
        annotators: ``differing`` (experts, hammers, flippers, spammers, an adversary) or ``identical`` (all
            equally good, about as good on average): a control for what claims to tell annotators apart.
        shared: arguments of :class:`CrowdDataModule`.

    Raises:
        ValueError: for an unknown regime or kind of annotators.
    """

    name = "digits"
    regimes = REGIMES["digits"]
    audit_regime = "aggre"
    embedded = True
    #: a mirrored digit is no digit
    standard_augmentation = "shift"

    def __init__(self, regime: str, *, annotators: Crowd = "differing", **shared: Any) -> None:
        super().__init__(regime, **shared)
        if annotators not in CROWDS:
            raise ValueError(unknown_name("kind of annotators", annotators, CROWDS, where="data set 'digits'"))
        self.annotators = annotators

    @classmethod
    def regime_family(cls, regime: str) -> str:
        """One family: the regimes are made of the same simulated labels, so that their columns are paired."""
        return cls.name

    def load(self) -> CrowdData:
        """Images from scikit-learn, annotations simulated."""
        images, classes = digit_images()
        is_test = mask_of_tested(classes)
        x, true_labels = images[~is_test], classes[~is_test]
        annotations, aggregated = self._annotations(true_labels)
        scaled = x.double() / 255
        return CrowdData(
            x=x,
            annotations=annotations,
            true_labels=true_labels,
            test_x=images[is_test],
            test_labels=classes[is_test],
            class_names=tuple(str(digit) for digit in range(N_CLASSES)),
            notes=() if self.regime == "clean" else (f"the annotators of digits are simulated ({self.annotators})",),
            mean=(float(scaled.mean()),),
            std=(float(scaled.std()),),
            aggregated=aggregated,
        )

    # --- within -------------------------------------------------------------------------------

    def _annotations(self, true_labels: Tensor) -> tuple[Annotations, Tensor]:
        """Annotations under the regime and the single label ``[N]`` that a plain classifier trains on."""
        n_items, seed = len(true_labels), self.annotation_seed
        if self.regime == "clean":
            items = torch.arange(n_items)
            return Annotations(items, torch.zeros_like(items), true_labels, n_items, 1, N_CLASSES), true_labels
        noted = self._three_labels(true_labels)
        if self.regime == "rand1":
            first = noted.budget(1, derive_seed(seed=seed, purpose="first label"))
            return first, first.labels
        if self.regime == "worst":
            worse = worse_labels(noted, true_labels, seed)
            return replace(noted, labels=worse[noted.items]), worse
        return noted, noted.majority(derive_seed(seed=seed, purpose="aggregated label"))

    def _three_labels(self, true_labels: Tensor) -> Annotations:
        n_items, seed = len(true_labels), self.annotation_seed
        loads = workloads(n_items * LABELS_PER_ITEM, N_ANNOTATORS, n_items, seed, WORKLOAD_SKEW)
        items, annotators = assign(n_items, loads, seed)
        labels = crowd_labels(true_labels, items, annotators, N_ANNOTATORS, N_CLASSES, seed, self.annotators)
        return Annotations(items, annotators, labels, n_items, N_ANNOTATORS, N_CLASSES)


@lru_cache(maxsize=1)
def digit_images() -> tuple[Tensor, Tensor]:
    """All images ``[1797, 1, 8, 8]`` uint8, their 17 grey levels spread over 0..255, and classes ``[1797]``."""
    from sklearn.datasets import load_digits

    source = load_digits()
    images = np.rint(source.images * (255 / 16)).astype(np.uint8)
    return torch.from_numpy(images).unsqueeze(1), torch.from_numpy(source.target.astype(np.int64))


def mask_of_tested(classes: Tensor) -> Tensor:
    """Mask ``[N]`` of the test items: 54 of every class, the same whatever the seeds."""
    is_test = torch.zeros(len(classes), dtype=torch.bool)
    chooser = np.random.default_rng(0)
    for label in range(N_CLASSES):
        members = (classes == label).nonzero().flatten()
        is_test[members[torch.from_numpy(chooser.permutation(len(members))[:TEST_ITEMS_A_CLASS])]] = True
    return is_test
