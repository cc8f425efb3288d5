"""Generated clips with simulated annotators who each look at known frames: AMER's embedded twin.

A clip has eight frames of 24 x 24 pixels in four scenes of two frames each. Each scene shows one of eight classes as
stripes over the frame: four directions, fine or coarse. With probability :data:`MOOD` the class of a scene is that of
its whole clip, else any, so that annotators who look at different scenes agree more often than by chance.

Thirteen annotators (:data:`LOOKS_AT`, :data:`HABIT`): annotator r answers with the class of the one scene that they
look at. Each has a habit: one class that they call by another's name with probability :data:`HABIT_RATE`. With
probability :data:`SLIP` an answer is any class. As in AMER the first ten annotators label a fifth of the clips, the
last three all. Clips and answers are made once, like those of a published file; seeds choose the split and deletions
alone. So the frames that an answer comes from are known (``CrowdData.test_regions``).

>>> AmerSim("full").info
DataInfo(n_classes=8, n_annotators=13, input_shape=(8, 3, 24, 24))
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from datamodules.annotator_data import AnnotatorData
from datamodules.base import CrowdData
from datamodules.regimes import REGIMES
from datamodules.split import random_split

CLASS_NAMES = ("worried", "happy", "neutral", "angry", "surprise", "sad", "other", "unknown")
#: number of the scene that each annotator looks at
LOOKS_AT = (0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0)
#: the class that each annotator mistakes, and what they call it
HABIT = ((0, 5), (1, 2), (2, 7), (3, 0), (4, 1), (5, 0), (6, 7), (7, 2), (3, 4), (5, 2), (0, 3), (4, 6), (1, 4))
HABIT_RATE = 0.7
SLIP = 0.1
MOOD = 0.6
N_CLIPS = 1_200
N_SCENES, FRAMES_A_SCENE, SIDE = 4, 2, 24
#: annotators who label only some of the clips, and what share
N_SPARSE, SPARSE_SHARE = 10, 0.2
#: pixels of one stripe, fine and coarse
STRIPES = (2, 4)
#: grey levels of the two sorts of stripes, and the standard deviation of the noise of a pixel
DARK, LIGHT, GRAIN = 70.0, 180.0, 12.0
CLIP_SEED = 0
NOTE = "amer_sim is generated: its clips are drawn and its thirteen annotators simulated; it is not AMER"


class Clips(NamedTuple):
    """All clips with the answers to them.

    Attributes:
        x: frames ``[N, 8, 3, 24, 24]`` uint8.
        classes: class of each scene ``[N, 4]`` int64.
        labels: answers ``[N, 13]`` int64, -1 where an annotator did not label a clip.
    """

    x: Tensor
    classes: Tensor
    labels: Tensor


class AmerSim(AnnotatorData):
    """Generated clips; see :class:`AnnotatorData` for the arguments.

    Items are clips ``[F, 3, H, W]``, which reach a method unscaled (0 to 255) unless an encoder takes their place.
    """

    name = "amer_sim"
    regimes = REGIMES["amer_sim"]
    embedded = True

    def load(self) -> CrowdData:
        """Draws the clips, once a process."""
        made = clips()
        split = random_split(N_CLIPS, self.split_seed)
        return self.assembled(
            made.x,
            made.labels,
            split,
            len(CLASS_NAMES),
            class_names=CLASS_NAMES,
            notes=(NOTE,),
            test_regions=true_frames().expand(len(split.test), -1, -1).contiguous(),
        )


@lru_cache(maxsize=1)
def clips() -> Clips:
    """The 1,200 clips, always the same."""
    random = np.random.default_rng(CLIP_SEED)
    n_classes, shape = len(CLASS_NAMES), (N_CLIPS, len(LOOKS_AT))
    mood = random.integers(0, n_classes, (N_CLIPS, 1))
    classes = random.integers(0, n_classes, (N_CLIPS, N_SCENES))
    classes = np.where(random.random(classes.shape) < MOOD, mood, classes)
    mistaken, called = np.array(HABIT).T
    seen = classes[:, LOOKS_AT]
    named = np.where((seen == mistaken) & (random.random(shape) < HABIT_RATE), called, seen)
    labels = np.where(random.random(shape) < SLIP, random.integers(0, n_classes, shape), named)
    for annotator in range(N_SPARSE):
        labels[random.permutation(N_CLIPS)[round(SPARSE_SHARE * N_CLIPS) :], annotator] = -1
    patterns = np.stack([_stripes(label) for label in range(n_classes)])
    frames = patterns[classes.repeat(FRAMES_A_SCENE, axis=1)][:, :, np.newaxis]
    grain = random.standard_normal((N_CLIPS, N_SCENES * FRAMES_A_SCENE, 3, SIDE, SIDE), dtype=np.float32)
    x = np.clip(np.rint(frames + GRAIN * grain), 0, 255).astype(np.uint8)
    return Clips(*(torch.from_numpy(array) for array in (x, classes, labels)))


def true_frames() -> Tensor:
    """The frames that each annotator's answer comes from: bool ``[13, 8]``, the same in every clip."""
    scene_of_frame = torch.arange(N_SCENES * FRAMES_A_SCENE) // FRAMES_A_SCENE
    return torch.tensor(LOOKS_AT).unsqueeze(1) == scene_of_frame


def _stripes(label: int) -> np.ndarray:
    """The pattern ``[24, 24]`` float32 of a class."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    direction = (rows, columns, rows + columns, rows - columns)[label % 4]
    light = direction // STRIPES[label // 4] % 2 == 0
    return np.where(light, LIGHT, DARK).astype(np.float32)
