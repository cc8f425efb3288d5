"""Base of data in the formats of QuMATL's released scripts: a table of labels beside a folder of images or clips."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from datamodules.annotations import Annotations
from datamodules.annotator_data import AnnotatorData
from datamodules.base import CrowdData, hash_tensors
from datamodules.decoded import content_digest, decoded
from datamodules.files import DataDamaged, DataNotFound, data_root
from datamodules.label_table import LabelTable, find_items, read_label_table
from datamodules.split import ItemSplit, released_split

SPLIT_NOTE = (
    "70/15/15 of the items as released (scikit-learn's train_test_split, random_state 42), the same in all seeds"
)


class ReleasedTable(AnnotatorData):
    """Items named in a table of labels, under the split of the released scripts.

    No seed changes the split; ``val_fraction`` has no effect.

    Args:
        regime: ``full`` or ``drop=P``.
        size: side in pixels to which images and frames are resized, 8 to 1024; 224 as released.
        shared: arguments of :class:`AnnotatorData`.

    Raises:
        ValueError: for a size out of range.
    """

    split_seed_chooses: ClassVar[str] = "nothing"
    #: name of the folder with the items, and how their files may end
    items_folder: ClassVar[str] = ""
    endings: ClassVar[tuple[str, ...]] = ()
    #: what stands in the table -> its class
    scale: ClassVar[Mapping[str, int]] = {}
    class_names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, regime: str, *, size: int = 224, **shared: Any) -> None:
        super().__init__(regime, **shared)
        if not 8 <= size <= 1024:
            raise ValueError(f"size is {size}; items of {self.name} can have sides of 8 to 1024 pixels")
        self.size = size
        self._table: LabelTable | None = None

    # --- to implement -------------------------------------------------------------------------

    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The annotators' columns, in order."""

    @abstractmethod
    def item_shape(self) -> tuple[int, ...]:
        """Shape of one decoded item."""

    @abstractmethod
    def decode(self, path: Path) -> np.ndarray:
        """One item uint8 of its file.

        Raises:
            DataDamaged: it cannot be decoded.
        """

    # --- the same for both --------------------------------------------------------------------

    def load(self) -> CrowdData:
        """Reads the table, then the items; they are decoded once and read back from a cache.

        Raises:
            DataNotFound: the table or the folder is not there; says where it was looked for.
            DataDamaged: a column is missing, a label is off the scale, an item has no file or cannot be decoded; names
                file and line.
        """
        table, split = self.table, self._split()
        files = self._files()
        # in the order of the two parts, so that each is a piece of the array on disk and nothing is copied
        order = torch.cat([split.learn, split.test]).tolist()
        lines = {files[row]: row + 2 for row in order}
        items = decoded([files[row] for row in order], self._form(), self.item_shape(), partial(self._decoded, lines))
        n_classes = len(self.class_names)
        noted = Annotations.from_dense(table.labels[split.learn], n_classes)
        missing = int((table.labels < 0).sum())
        return CrowdData(
            x=items[: len(split.learn)],
            annotations=self.thinned(noted, split.val_items),
            true_labels=None,
            test_x=items[len(split.learn) :],
            test_labels=None,
            test_annotations=Annotations.from_dense(table.labels[split.test], n_classes),
            class_names=self.class_names,
            notes=(SPLIT_NOTE, f"{self.name}: {missing} of {table.labels.numel()} labels are missing"),
            val_items=split.val_items,
        )

    def digest(self) -> str:
        """SHA-256 (hex) of the items' files and of the labels under the regime. Decodes no item."""
        noted, split = self._noted(), self._split()
        labels = hash_tensors(self.table.labels, noted.items, noted.annotators, noted.labels, split.val_items)
        return f"{content_digest(self._files())}+{self._form()}+{labels}"

    def annotations_for_audit(self) -> tuple[Annotations, Tensor | None]:
        """Annotations of the items beside the test items; nobody knows a true label. Decodes no item."""
        return self._noted(), None

    @property
    def table(self) -> LabelTable:
        """The table of labels, read once."""
        if self._table is None:
            self._table = read_label_table(self.name, self.root, self.columns(), self.scale)
        return self._table

    # --- within -------------------------------------------------------------------------------

    def _form(self) -> str:
        return "x".join(map(str, self.item_shape()))

    def _decoded(self, lines: Mapping[Path, int], path: Path) -> np.ndarray:
        try:
            return self.decode(path)
        except DataDamaged as error:
            raise DataDamaged(f"{self.table.path}, line {lines[path]}: {error}") from None

    def _split(self) -> ItemSplit:
        return released_split(len(self.table.names))

    def _noted(self) -> Annotations:
        split = self._split()
        noted = Annotations.from_dense(self.table.labels[split.learn], len(self.class_names))
        return self.thinned(noted, split.val_items)

    def _files(self) -> list[Path]:
        folder = data_root(self.root) / self.name / self.items_folder
        if not folder.is_dir():
            raise DataNotFound(
                f"{self.name}: no folder {folder}. Remedy: put the {self.items_folder} there, each called by its name "
                f"in {self.table.path.name}, or point ANNOBENCH_DATA at the folder that has {self.name}/"
            )
        return find_items(self.name, self.table, folder, self.endings)
