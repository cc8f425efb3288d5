"""Few-shot tasks of LabelMe as VGG16 features, with the answers that 59 people gave.

Kumagai et al. (arXiv 2506.10259) meta-train on miniImageNet's images and take LabelMe's images as target. The images
are not at hand here, only 512 features of each, and no other data set has the same features. So source tasks are
LabelMe's too: four of its eight classes, the target tasks are of the other four, and ``split_seed`` says which, as the
paper averages over five splits. This is not the paper's experiment, and tables must say so.

- source: the 1,688 items without crowd answers (validation and test part), of the source classes;
- validation: the annotated items of the source classes, with their annotations under the regime ``crowd``;
- target: support from the annotated items of the other classes, queries from the clean test items.

On average an item has 2.5 answers of 59 people, so R annotators who label everything do not exist. See
:mod:`datamodules.crowd_episodes` for who annotates an episode; ``annotators=[59]`` takes every answer there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from datamodules.annotations import Annotations
from datamodules.digits_episodes import SIMULATED_NOTE
from datamodules.episodes import CROWD, EpisodicData, EpisodicDataModule, Pool
from datamodules.few_shot_regimes import CROWD_REGIME, SIMULATED
from datamodules.files import describe_damage, locate
from datamodules.labelme import N_CLASSES, VARIANT_NOTE
from datamodules.seeds import derive_seed

SOURCE_NOTE = (
    "source tasks of labelme_fewshot are of LabelMe's other classes, not of miniImageNet, "
    "of whose images there are no such features"
)
_KEYS = ("x_train", "y_train", "x_valid", "y_valid", "x_test", "y_test", "answers")


class LabelMeFewShot(EpisodicDataModule):
    """Few-shot tasks of LabelMe's features.

    Args:
        regime: who annotates target tasks; ``crowd`` for the real answers.
        source_classes: how many of the eight classes are sources; the others are targets.
        shared: arguments of :class:`EpisodicDataModule`.

    Raises:
        UnknownName: for an unknown regime.
        ValueError: if ``source_classes`` leaves no class for sources or targets.
    """

    name = "labelme_fewshot"
    regimes: ClassVar[Mapping[str, str]] = {**CROWD_REGIME, **SIMULATED}
    provides = frozenset({"annotator_ids"})
    #: annotated items, validation items, test items, annotators
    sizes: ClassVar[tuple[int, int, int, int]] = (1000, 500, 1188, 59)

    def __init__(self, regime: str, *, source_classes: int = 4, **shared: Any) -> None:
        super().__init__(regime, **shared)
        if not 1 <= source_classes < N_CLASSES:
            raise ValueError(f"source_classes is {source_classes}; it must lie between 1 and {N_CLASSES - 1}")
        self.source_classes = source_classes

    def load(self) -> EpisodicData:
        """Reads the archive.

        Raises:
            DataNotFound: it is not there; says where it was looked for.
            DataDamaged: it is empty, truncated or of other shapes.
        """
        arrays = self._read()
        generator = torch.Generator().manual_seed(derive_seed(seed=self.split_seed, purpose="source classes"))
        order = torch.randperm(N_CLASSES, generator=generator)
        sources, targets = order[: self.source_classes], order[self.source_classes :]
        annotated, labels = arrays["x_train"], arrays["y_train"].long()
        test_x, test_y = arrays["x_test"], arrays["y_test"].long()
        clean_x, clean_y = torch.cat([arrays["x_valid"], test_x]), torch.cat([arrays["y_valid"].long(), test_y])
        source, known = torch.isin(clean_y, sources), torch.isin(labels, sources)
        query = torch.isin(test_y, targets)
        return EpisodicData(
            Pool(clean_x[source], clean_y[source]),
            Pool(annotated[known], labels[known], _noted(arrays["answers"][known])),
            Pool(annotated[~known], labels[~known], _noted(arrays["answers"][~known]), test_x[query], test_y[query]),
            notes=(VARIANT_NOTE, SOURCE_NOTE, *(() if self.regime == CROWD else (SIMULATED_NOTE,))),
        )

    # --- within -------------------------------------------------------------------------------

    def _read(self) -> dict[str, Tensor]:
        path = locate(self.name, "features", self.root).paths[0]
        try:
            with np.load(path, allow_pickle=False) as archive:
                arrays = {key: archive[key] for key in _KEYS}
        except Exception as error:
            what = f"cannot be read as feature arrays ({type(error).__name__})"
            raise describe_damage(self.name, "features", path, what) from None
        parts = ("train", "valid", "test")
        found = (*(len(arrays[f"x_{part}"]) for part in parts), arrays["answers"].shape[-1])
        rows = (*(len(arrays[f"y_{part}"]) for part in parts), len(arrays["answers"]))
        if found != self.sizes or rows != (*found[:3], found[0]):
            what = f"has (annotated, validation and test items, annotators) {found}; the published one {self.sizes}"
            raise describe_damage(self.name, "features", path, what)
        tensors = {key: torch.from_numpy(array) for key, array in arrays.items()}
        return {key: tensor.float() if key.startswith("x") else tensor for key, tensor in tensors.items()}


def _noted(answers: Tensor) -> Annotations:
    return Annotations.from_dense(answers.long(), N_CLASSES)
