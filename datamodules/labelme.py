"""LabelMe as VGG16 features: 8 scene classes, 59 annotators who really differ.

The features variant: 512 numbers an item, average-pooled from VGG16, never the images; results on it are not
comparable with those on the images. Source: Rodrigues and Pereira, "Deep Learning from Crowds", AAAI 2018.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from datamodules.annotations import Annotations
from datamodules.base import CrowdData, CrowdDataModule
from datamodules.files import describe_damage, locate
from datamodules.regimes import REGIMES

N_CLASSES = 8
VARIANT_NOTE = "LabelMe is read as 512-d VGG16 features, not as images"
_KEYS = ("x_train", "y_train", "x_test", "y_test", "answers")


class LabelMe(CrowdDataModule):
    """LabelMe's features, crowd answers and test items; see :class:`CrowdDataModule` for the arguments.

    The 500 items that come as a validation part have clean labels only and are left out: selection here
    uses held-out noisy labels.
    """

    name = "labelme"
    regimes = REGIMES["labelme"]
    audit_regime = "crowd"
    provides = frozenset({"annotator_ids"})
    #: augmenting feature vectors means nothing
    standard_augmentation = "none"
    #: training items, test items, annotators
    sizes: ClassVar[tuple[int, int, int]] = (1000, 1188, 59)

    @classmethod
    def regime_family(cls, regime: str) -> str:
        """One family: the regimes are label sets of the same items."""
        return cls.name

    def load(self) -> CrowdData:
        """Reads the archive.

        Raises:
            DataNotFound: it is not there; says where it was looked for.
            DataDamaged: it is empty, truncated or of other shapes.
        """
        arrays = self._read()
        true_labels = torch.from_numpy(arrays["y_train"].astype(np.int64))
        answers = torch.from_numpy(arrays["answers"].astype(np.int64))
        return CrowdData(
            x=torch.from_numpy(arrays["x_train"].astype(np.float32)),
            annotations=self._annotations(answers, true_labels),
            true_labels=true_labels,
            test_x=torch.from_numpy(arrays["x_test"].astype(np.float32)),
            test_labels=torch.from_numpy(arrays["y_test"].astype(np.int64)),
            notes=(VARIANT_NOTE,),
            aggregated=true_labels if self.regime == "clean" else None,
        )

    def _annotations(self, answers: Tensor, true_labels: Tensor) -> Annotations:
        if self.regime == "crowd":
            return Annotations.from_dense(answers, N_CLASSES)
        items = torch.arange(len(true_labels))
        return Annotations(items, torch.zeros_like(items), true_labels, len(items), 1, N_CLASSES)

    def _read(self) -> dict[str, np.ndarray]:
        path = locate(self.name, "features", self.root).paths[0]
        try:
            with np.load(path, allow_pickle=False) as archive:
                arrays = {key: archive[key] for key in _KEYS}
        except Exception as error:
            what = f"cannot be read as feature arrays ({type(error).__name__})"
            raise describe_damage(self.name, "features", path, what) from None
        found = (len(arrays["x_train"]), len(arrays["x_test"]), arrays["answers"].shape[-1])
        lengths = (len(arrays["y_train"]), len(arrays["answers"]), len(arrays["y_test"]))
        if found != self.sizes or lengths != (found[0], found[0], found[1]):
            what = f"has (training items, test items, annotators) {found}; the published one {self.sizes}"
            raise describe_damage(self.name, "features", path, what)
        return arrays
