"""Base classes of data: what every method can rely on, whatever the data set.

A data set from another package subclasses :class:`CrowdDataModule`, names its regimes and implements
:meth:`CrowdDataModule.load`. Splitting, batching, augmentation and digests are done here, once.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import lightning as L
import torch
from torch import Tensor

from datamodules.annotations import Annotations
from datamodules.augment import Augmenter
from datamodules.loader import BatchLoader, Source
from datamodules.names import UnknownName, unknown_name


@dataclass(frozen=True)
class DataInfo:
    """What a method must know of its data before it sees any.

    Attributes:
        n_classes: number of classes C.
        n_annotators: number of annotators R; ids run from 0 to R-1.
        input_shape: shape of one item's ``x`` as it reaches the method, without the batch axis:
            ``(channels, height, width)`` for images, ``(features,)`` for vectors.
    """

    n_classes: int
    n_annotators: int
    input_shape: tuple[int, ...]


@dataclass(frozen=True)
class CrowdData:
    """One loaded data set under one regime.

    Attributes:
        x: training items ``[N, ...]``: uint8 images ``[N, C, H, W]`` or float32 features ``[N, D]``.
        annotations: the annotations of those N items under the regime.
        true_labels: clean labels ``[N]`` of the training items, or None where nobody knows them. Only
            ``benchmark.evaluate`` and the audit read them.
        test_x: test items, like ``x``.
        test_labels: clean labels of the test items, or None.
        test_annotations: annotations of the test items, or None.
        class_names: names of the classes, in order.
        notes: sentences that belong under every table made from this data.
        mean: per-channel mean of ``x / 255`` for normalisation; None: not normalised.
        std: per-channel standard deviation likewise.
        aggregated: the single label ``[N]`` an item that the data's authors train on under this regime, -1
            where there is none; None: the data has none (methods then take a majority).
    """

    x: Tensor
    annotations: Annotations
    true_labels: Tensor | None
    test_x: Tensor
    test_labels: Tensor | None
    test_annotations: Annotations | None = None
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    aggregated: Tensor | None = None


def hash_tensors(*tensors: Tensor | None) -> str:
    """SHA-256 (hex) over shape, type and bytes of ``tensors``; None counts as absent."""
    digest = hashlib.sha256()
    for tensor in tensors:
        if tensor is None:
            digest.update(b"absent;")
            continue
        array = tensor.contiguous().cpu().numpy()
        digest.update(f"{array.dtype.str}{array.shape};".encode())
        digest.update(array.data.cast("B") if array.size else b"")
    return digest.hexdigest()


class CrowdDataModule(L.LightningDataModule):
    """A data set with crowd labels under one regime: splits, loaders, digest.

    Args:
        regime: how the annotations came to be; one of :attr:`regimes`.
        split_seed: seed of the split of the training items into training and validation part.
        annotation_seed: seed of simulated annotations, deletions and budgets.
        loader_seed: seed of the order of items and of augmentation.
        root: folder with the data; default ``$ANNOBENCH_DATA`` or ``~/.cache/annobench``.
        batch_size: items a training batch.
        eval_batch_size: items a batch of validation and test.
        val_fraction: share of the training items whose annotations are held out.
        n_train: use only that many training items (a seeded subset, before the split); None: all.
        permute_annotators: give each annotation's annotator id to another annotation at random (by
            ``annotation_seed``): a control that keeps labels and workloads and destroys identity.
        num_workers: worker processes of the loader; 0 keeps whole batches on the device. Never
            changes a batch.

    Raises:
        UnknownName: if ``regime`` is not one of :attr:`regimes` (near names are listed).
    """

    #: name in the registry
    name: str = ""
    #: regime -> one line on what it is
    regimes: ClassVar[Mapping[str, str]] = {}
    #: raised whenever loading changes what comes out; part of every cell's digest
    version: ClassVar[str] = "1"
    #: what this data offers to methods; compared with ``CrowdModule.needs``
    provides: ClassVar[frozenset[str]] = frozenset({"annotator_ids", "images"})
    #: True where nothing has to be downloaded
    embedded: ClassVar[bool] = False
    #: arguments that cannot change a number and so stay out of a cell's digest
    execution_args: ClassVar[frozenset[str]] = frozenset({"root", "num_workers"})
    #: regime that an audit describes unless another is named; empty: the first
    audit_regime: ClassVar[str] = ""
    #: augmentation of the training items where the method asks for "standard"
    standard_augmentation: ClassVar[str] = "crop_flip"

    def __init__(
        self,
        regime: str,
        *,
        split_seed: int = 0,
        annotation_seed: int = 0,
        loader_seed: int = 0,
        root: str | Path | None = None,
        batch_size: int = 128,
        eval_batch_size: int = 500,
        val_fraction: float = 0.1,
        n_train: int | None = None,
        permute_annotators: bool = False,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        if regime not in self.regimes:
            raise UnknownName(unknown_name("regime", regime, self.regimes, where=f"data set {self.name!r}"))
        if not 0 < val_fraction < 1:
            raise ValueError(f"val_fraction is {val_fraction}; it must lie between 0 and 1")
        self.regime = regime
        self.split_seed = split_seed
        self.annotation_seed = annotation_seed
        self.loader_seed = loader_seed
        self.root = root
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.val_fraction = val_fraction
        self.n_train = n_train
        self.permute_annotators = permute_annotators
        self.num_workers = num_workers
        self.train_views: Mapping[str, str] = {"x": "standard"}
        self.unlabeled_views: Mapping[str, str] = {}
        self._data: CrowdData | None = None
        self._train_items: Tensor | None = None
        self._val_items: Tensor | None = None
        self._sources: dict[str, Source] = {}

    # --- to implement -------------------------------------------------------------------------

    @abstractmethod
    def load(self) -> CrowdData:
        """Reads the data under ``self.regime``; called once, in :meth:`setup`."""

    @classmethod
    def regime_family(cls, regime: str) -> str:
        """Regimes of one family share the seeds of split and simulation, so that columns are paired."""
        return regime

    def digest(self) -> str:
        """SHA-256 (hex) of all data that this regime reads. Override where files are cheaper to hash."""
        data = self.data
        noted = data.annotations
        return hash_tensors(
            data.x,
            noted.items,
            noted.annotators,
            noted.labels,
            data.true_labels,
            data.test_x,
            data.test_labels,
            data.aggregated,
        )

    def annotations_for_audit(self) -> tuple[Annotations, Tensor | None]:
        """Annotations and clean labels ``[N]`` (or None) for the audit. Override where items need not be read."""
        return self.data.annotations, self.data.true_labels

    # --- what is loaded -----------------------------------------------------------------------

    @property
    def data(self) -> CrowdData:
        """The loaded data, before the split."""
        if self._data is None:
            self._data = self.load()
        return self._data

    @property
    def info(self) -> DataInfo:
        """Classes, annotators and input shape."""
        noted = self.data.annotations
        return DataInfo(noted.n_classes, noted.n_annotators, tuple(self.data.x.shape[1:]))

    @property
    def train_items(self) -> Tensor:
        """Ids ``[n]`` of the items that methods learn from, ascending."""
        self.setup()
        assert self._train_items is not None
        return self._train_items

    @property
    def val_items(self) -> Tensor:
        """Ids ``[n]`` of the training items whose annotations are held out, ascending."""
        self.setup()
        assert self._val_items is not None
        return self._val_items

    @property
    def train_annotations(self) -> Annotations:
        """Annotations that methods may learn from; item ids are those of the whole training set."""
        return self.data.annotations.select(self.train_items)

    @property
    def val_annotations(self) -> Annotations:
        """Held-out noisy annotations: for selection and for scoring tendency."""
        return self.data.annotations.select(self.val_items)

    def request(self, train_views: Mapping[str, str], unlabeled_views: Mapping[str, str]) -> None:
        """Says which augmented views of an item a training batch holds (see ``CrowdModule.train_views``)."""
        self.train_views = dict(train_views)
        self.unlabeled_views = dict(unlabeled_views)

    # --- Lightning ----------------------------------------------------------------------------

    def setup(self, stage: str | None = None) -> None:
        """Loads and splits, once."""
        if self._train_items is not None:
            return
        n_items = self.data.annotations.n_items
        if self.permute_annotators:
            permuted = self.data.annotations.permute_annotators(self.annotation_seed)
            self._data = replace(self.data, annotations=permuted)
        order = torch.randperm(n_items, generator=torch.Generator().manual_seed(self.split_seed))
        if self.n_train is not None:
            if not 2 <= self.n_train <= n_items:
                raise ValueError(f"n_train is {self.n_train}; {self.name} has {n_items} training items")
            order = order[: self.n_train]
        n_val = max(1, round(self.val_fraction * len(order)))
        self._val_items = order[:n_val].sort().values
        self._train_items = order[n_val:].sort().values

    def train_dataloader(self) -> BatchLoader:
        """Shuffled training batches with the views that the method asked for."""
        return self._loader(
            self._train_source(),
            self.train_items,
            shuffle=True,
            views=self.train_views,
            unlabeled_views=self.unlabeled_views,
            batch_size=self.batch_size,
        )

    def scan_dataloader(self, view: str = "none", batch_size: int | None = None) -> BatchLoader:
        """All training items once, in order, under the augmentation ``view``."""
        return self._loader(
            self._train_source(),
            self.train_items,
            shuffle=False,
            views={"x": view},
            batch_size=batch_size or self.eval_batch_size,
        )

    def val_dataloader(self) -> BatchLoader:
        """Held-out training items with their noisy annotations; no clean label is in these batches."""
        return self._loader(
            self._train_source(),
            self.val_items,
            shuffle=False,
            views={"x": "none"},
            batch_size=self.eval_batch_size,
        )

    def test_dataloader(self) -> BatchLoader:
        """Test items with their clean labels under ``target``."""
        return self._loader(
            self._test_source(), None, shuffle=False, views={"x": "none"}, batch_size=self.eval_batch_size
        )

    # --- within -------------------------------------------------------------------------------

    def _train_source(self) -> Source:
        """All training items; loaders pick their rows, so that nothing is copied for a loader."""
        self.setup()
        if "train" not in self._sources:
            annotators, labels = self.data.annotations.padded()
            tensors = {"x": self.data.x, "annotators": annotators, "labels": labels}
            if self.data.aggregated is not None:
                tensors["aggregated"] = self.data.aggregated
            self._sources["train"] = Source(tensors)
        return self._sources["train"]

    def _test_source(self) -> Source:
        if "test" not in self._sources:
            data = self.data
            nobody = torch.full((len(data.test_x), 0), -1)
            annotators, labels = (nobody, nobody)
            if data.test_annotations is not None:
                annotators, labels = data.test_annotations.padded()
            tensors = {"x": data.test_x, "annotators": annotators, "labels": labels}
            if data.test_labels is not None:
                tensors["target"] = data.test_labels
            self._sources["test"] = Source(tensors)
        return self._sources["test"]

    def _loader(
        self,
        source: Source,
        items: Tensor | None,
        *,
        shuffle: bool,
        views: Mapping[str, str],
        batch_size: int,
        unlabeled_views: Mapping[str, str] | None = None,
    ) -> BatchLoader:
        augmenter = Augmenter(
            input_shape=self.info.input_shape,
            mean=self.data.mean,
            std=self.data.std,
            standard=self.standard_augmentation,
        )
        return BatchLoader(
            source,
            items=items,
            augmenter=augmenter,
            views=views,
            unlabeled_views=unlabeled_views or {},
            batch_size=batch_size,
            shuffle=shuffle,
            seed=self.loader_seed,
            epoch=self._epoch,
            device=self._device(),
            num_workers=self.num_workers,
        )

    def _epoch(self) -> int:
        return self.trainer.current_epoch if self.trainer is not None else 0

    def _device(self) -> torch.device:
        return self.trainer.strategy.root_device if self.trainer is not None else torch.device("cpu")
