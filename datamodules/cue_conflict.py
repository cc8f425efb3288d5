"""Cue conflict: images with the shape of one class and the texture of another, each labelled by 30 people.

1,280 images of 160 shape exemplars and 48 texture exemplars of 16 classes (in 80 of them both cues are of one
class). Three groups of ten people each labelled all of them: one without instruction, one told to go by shape, one
by texture. Source: Geirhos et al., "ImageNet-trained CNNs are biased towards texture", ICLR 2019.

There is no true label: what is measured is the prediction of each person's own answer.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F

from datamodules.annotator_data import AnnotatorData
from datamodules.base import CrowdData
from datamodules.cifar10_images import cached, guarded
from datamodules.files import describe_damage, locate, sha256_of
from datamodules.names import unknown_name
from datamodules.regimes import REGIMES
from datamodules.split import ItemSplit, exemplar_split, random_split

Group = Literal["neutral", "shape", "texture"]
Split = Literal["random", "exemplar"]
Tokens = Literal["image", "cues"]

CLASS_NAMES = (
    "airplane",
    "bear",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "car",
    "cat",
    "chair",
    "clock",
    "dog",
    "elephant",
    "keyboard",
    "knife",
    "oven",
    "truck",
)
#: group -> its name in the table of annotations
GROUPS: dict[str, str] = {"neutral": "neutral", "shape": "shape_instr", "texture": "texture_instr"}
SPLITS = ("random", "exemplar")
TOKENS = ("image", "cues")
COLUMNS = ("task", "worker", "label", "group")
#: share of a class's shape and of its texture exemplars that the split by exemplar sets aside: 3 of 10, 1 of 3
EXEMPLARS_HELD_OUT = (0.3, 1 / 3)
#: side in pixels of the images in the file
SIDE = 128
#: of ImageNet, for methods that see the pixels
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
_TASK = re.compile(r"(([a-z]+)[0-9]+)-(([a-z]+)[0-9]+)\.png")


class Cues(NamedTuple):
    """What the images are composed of, in their order.

    Attributes:
        tasks: names of the images.
        exemplars: shape and texture exemplar of each, e.g. ``("airplane1", "bicycle2")``.
        classes: class of shape and of texture ``[N, 2]`` int64.
    """

    tasks: list[str]
    exemplars: list[tuple[str, str]]
    classes: Tensor


class CueConflict(AnnotatorData):
    """Cue-conflict images with the answers of one group of people.

    Args:
        regime: ``full`` or ``drop=P``.
        group: ``neutral``, ``shape`` or ``texture``: what these ten people were told to go by.
        split: ``random``: 15 % of the images are tested; ``exemplar``: no test image shares its shape exemplar or
            its texture exemplar with an image to learn from (images with one of each are left out). Both by
            ``split_seed``.
        tokens: ``image``: ``x`` is the images ``[N, 3, size, size]`` uint8; ``cues``: just two tokens ``[N, 2, 18]``
            float32, the class of the shape and the class of the texture, see :func:`cue_tokens`.
        size: side of the images in pixels, 8 to 512; 128 is theirs.
        shared: arguments of :class:`AnnotatorData`.

    Raises:
        ValueError: for a group, split, kind of tokens or size that does not exist.
    """

    name = "cue_conflict"
    regimes = REGIMES["cue_conflict"]

    def __init__(
        self,
        regime: str,
        *,
        group: Group = "neutral",
        split: Split = "random",
        tokens: Tokens = "image",
        size: int = SIDE,
        **shared: Any,
    ) -> None:
        super().__init__(regime, **shared)
        choices = (("group", group, GROUPS), ("split", split, SPLITS), ("kind of tokens", tokens, TOKENS))
        for kind, given, known in choices:
            if given not in known:
                raise ValueError(unknown_name(kind, given, known, where="data set 'cue_conflict'"))
        if not 8 <= size <= 512:
            raise ValueError(f"size is {size}; images of cue_conflict can have sides of 8 to 512 pixels")
        self.group = group
        self.split_by = split
        self.tokens = tokens
        self.size = size

    def load(self) -> CrowdData:
        """Reads images and answers, or answers alone where the tokens are the cues.

        Raises:
            DataNotFound: a file is not there; says where it was looked for.
            DataDamaged: a file cannot be read, or holds an image, a name or a row that makes no sense; says which.
        """
        images = locate(self.name, "images", self.root).paths[0]
        cues = read_cues(images)
        labels, odd = self._labels(cues.tasks)
        split = self._split(cues)
        is_image = self.tokens == "image"
        x = read_images(images, self.size) if is_image else cue_tokens(cues.classes)
        return self.assembled(
            x,
            labels,
            split,
            len(CLASS_NAMES),
            class_names=CLASS_NAMES,
            notes=self._notes(labels, odd, split),
            mean=MEAN if is_image else None,
            std=STD if is_image else None,
            train_cues=cues.classes[split.learn],
            test_cues=cues.classes[split.test],
        )

    # --- within -------------------------------------------------------------------------------

    def _labels(self, tasks: list[str]) -> tuple[Tensor, int]:
        """Answers ``[N, R]`` of the group, -1 where there is none, and how many named none of the 16 classes."""
        path = locate(self.name, "annotations", self.root).paths[0]
        table = _read_answers(path)
        items = pd.Index(tasks).get_indexer(table["task"])
        _refuse(path, items < 0, table, "is about an image that the image file lacks: {task!r}")
        _refuse(
            path, table.duplicated(["task", "worker"]).to_numpy(), table, "is a second answer of {worker} on {task}"
        )
        chosen = (table["group"] == GROUPS[self.group]).to_numpy()
        if not chosen.any():
            what = f"holds no answer of the group {GROUPS[self.group]!r}"
            raise describe_damage(self.name, "annotations", path, what)
        workers, _ = pd.factorize(table["worker"][chosen], sort=True)
        classes = pd.Index(CLASS_NAMES).get_indexer(table["label"][chosen])
        labels = np.full((len(tasks), workers.max() + 1), -1, dtype=np.int64)
        labels[items[chosen], workers] = classes
        return torch.from_numpy(labels), int((classes < 0).sum())

    def _split(self, cues: Cues) -> ItemSplit:
        if self.split_by == "random":
            return random_split(len(cues.tasks), self.split_seed)
        classes = [(shape, texture) for shape, texture in cues.classes.tolist()]
        return exemplar_split(cues.exemplars, classes, EXEMPLARS_HELD_OUT, self.split_seed)

    def _notes(self, labels: Tensor, odd: int, split: ItemSplit) -> tuple[str, ...]:
        n_items = len(labels)
        missing = int((labels < 0).sum())
        notes = [
            f"cue_conflict, group {self.group!r}: {missing} of {labels.numel()} answers are missing ({odd} unusable)"
        ]
        left_out = n_items - len(split.learn) - len(split.test)
        if self.split_by == "exemplar":
            notes.append(
                f"split by exemplar: {len(split.test)} images are tested, {left_out} of {n_items} are left out "
                "because one of their exemplars is tested and the other learned from"
            )
        if self.tokens == "cues":
            notes.append("the methods see no image, only two tokens: the class of its shape and of its texture")
        return tuple(notes)


def cue_tokens(classes: Tensor) -> Tensor:
    """Two tokens an image ``[N, 2, 18]`` float32: first that of the shape, then that of the texture.

    The first 16 numbers are 1 at the token's class and 0 elsewhere; the last two mark the kind: (1, 0) for the
    shape, (0, 1) for the texture.

    Args:
        classes: class of shape and of texture ``[N, 2]`` int64.
    """
    kinds = torch.eye(2).expand(len(classes), 2, 2)
    return torch.cat([F.one_hot(classes, len(CLASS_NAMES)).float(), kinds], dim=2)


def read_cues(path: Path) -> Cues:
    """What the images in the parquet file ``path`` are composed of, from their names; decodes none.

    Raises:
        DataDamaged: no such column, or a name of another form; says the row.
    """
    import pyarrow.parquet as pq

    try:
        tasks = [str(task) for task in pq.read_table(path, columns=["task"])["task"].to_pylist()]
    except Exception as error:
        what = f"cannot be read as cue-conflict images ({type(error).__name__}: {error})"
        raise describe_damage("cue_conflict", "images", path, what) from None
    numbers = {name: number for number, name in enumerate(CLASS_NAMES)}
    exemplars, classes = [], []
    for row, task in enumerate(tasks):
        found = _TASK.fullmatch(task)
        if found is None or found[2] not in numbers or found[4] not in numbers:
            what = f"row {row}: {task!r} does not name two exemplars of the 16 classes, like airplane1-bicycle2.png"
            raise describe_damage("cue_conflict", "images", path, what)
        exemplars.append((found[1], found[3]))
        classes.append((numbers[found[2]], numbers[found[4]]))
    return Cues(tasks, exemplars, torch.tensor(classes, dtype=torch.int64).reshape(-1, 2))


def read_images(path: Path, size: int) -> Tensor:
    """Images ``[N, 3, size, size]`` uint8 of the parquet file ``path``: decoded once, then read back from a cache.

    Raises:
        DataDamaged: the file, or an image in it, cannot be read; says the row.
    """
    pixels, _ = cached(
        sha256_of(path),
        f"side{size}",
        lambda: guarded(lambda: _decode(path, size), "cue_conflict", path, "cue-conflict images"),
    )
    return torch.from_numpy(pixels)


def _decode(path: Path, size: int) -> tuple[np.ndarray, np.ndarray]:
    import pyarrow.parquet as pq
    from PIL import Image

    table = pq.read_table(path, columns=["image", "task"])
    pixels = np.empty((table.num_rows, 3, size, size), dtype=np.uint8)
    coded = table["image"].combine_chunks().field("bytes")
    for row, (raw, task) in enumerate(zip(coded, table["task"], strict=True)):
        try:
            image = Image.open(io.BytesIO(raw.as_py())).convert("RGB")
        except Exception as error:
            raise ValueError(f"row {row}, {task}: this image cannot be decoded: {error}") from None
        if image.size != (size, size):
            image = image.resize((size, size), Image.Resampling.BICUBIC)
        pixels[row] = np.asarray(image).transpose(2, 0, 1)
    return pixels, np.arange(len(pixels))


def _read_answers(path: Path) -> pd.DataFrame:
    """The table of answers as text; a label may be missing, nothing else."""
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except Exception as error:
        what = f"cannot be read as a table ({type(error).__name__}: {error})"
        raise describe_damage("cue_conflict", "annotations", path, what) from None
    absent = [name for name in COLUMNS if name not in table.columns]
    if absent:
        what = f"has no column {', '.join(absent)}; it has {', '.join(map(str, table.columns))}"
        raise describe_damage("cue_conflict", "annotations", path, what)
    unknown = ~table["group"].isin(list(GROUPS.values())).to_numpy()
    _refuse(path, unknown, table, "is of an unknown group {group!r}; there are " + ", ".join(GROUPS.values()))
    return table


def _refuse(path: Path, wrong: np.ndarray, table: pd.DataFrame, what: str) -> None:
    """Names the first row that is ``wrong``, by its line in the file."""
    rows = np.flatnonzero(wrong)
    if len(rows):
        row = int(rows[0])
        reason = f"line {row + 2} {what.format(**table.iloc[row].to_dict())}"
        raise describe_damage("cue_conflict", "annotations", path, reason)
