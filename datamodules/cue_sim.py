"""Two cues an item and simulated annotators with a known shape bias: the embedded twin of ``cue_conflict``'s cues.

An item is nothing but two tokens, the class of a shape and the class of a texture (see
:func:`datamodules.cue_conflict.cue_tokens`), both drawn evenly and independently; in one of sixteen items they are
the same. Annotator r answers with the shape's class with probability :data:`SHAPE_BIAS` ``[r]``, else with the
texture's; with probability :data:`SLIP` the answer is any class instead. The biases lie evenly between 0.05 and 0.95,
so whether attention on the shape token follows them can be seen where real annotators, who nearly all go by one cue,
leave little to see. Items and answers are made once, like those of a published file; seeds choose the split and
deletions alone.

>>> CueSim("full").info
DataInfo(n_classes=16, n_annotators=10, input_shape=(2, 18))
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from datamodules.annotator_data import AnnotatorData
from datamodules.base import CrowdData
from datamodules.cue_conflict import CLASS_NAMES, cue_tokens
from datamodules.regimes import REGIMES
from datamodules.split import random_split

#: probability of each annotator that an answer goes by the shape; their order says nothing of it
SHAPE_BIAS = (0.45, 0.95, 0.15, 0.65, 0.35, 0.05, 0.85, 0.25, 0.75, 0.55)
N_ITEMS = 1_280
#: probability that an answer is any class
SLIP = 0.05
ITEM_SEED = 0
NOTE = "cue_sim is generated: its ten annotators are simulated; it is not cue_conflict"


class CueSim(AnnotatorData):
    """Simulated answers to two cues; see :class:`AnnotatorData` for the arguments."""

    name = "cue_sim"
    regimes = REGIMES["cue_sim"]
    embedded = True

    def load(self) -> CrowdData:
        """Draws cues and answers, once a process."""
        cues, labels = answers()
        split = random_split(N_ITEMS, self.split_seed)
        return self.assembled(
            cue_tokens(cues),
            labels,
            split,
            len(CLASS_NAMES),
            class_names=CLASS_NAMES,
            notes=(NOTE,),
            mean=None,
            std=None,
            train_cues=cues[split.learn],
            test_cues=cues[split.test],
        )


@lru_cache(maxsize=1)
def answers() -> tuple[Tensor, Tensor]:
    """Class of shape and of texture ``[N, 2]`` and the answers ``[N, 10]``, int64, always the same."""
    random = np.random.default_rng(ITEM_SEED)
    n_classes = len(CLASS_NAMES)
    cues = random.integers(0, n_classes, (N_ITEMS, 2))
    by_shape = random.random((N_ITEMS, len(SHAPE_BIAS))) < np.array(SHAPE_BIAS)
    followed = np.where(by_shape, cues[:, :1], cues[:, 1:])
    slips = random.random(followed.shape) < SLIP
    labels = np.where(slips, random.integers(0, n_classes, followed.shape), followed)
    return torch.from_numpy(cues), torch.from_numpy(labels)
