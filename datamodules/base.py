"""Base classes of data: what every method can rely on, whatever the data set.

A data set from another package subclasses :class:`CrowdDataModule`, names its regimes and implements
:meth:`CrowdDataModule.load`. Splitting, batching, augmentation and digests are done here, once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import lightning as L
import torch
from torch import Tensor

from datamodules.annotations import Annotations
from datamodules.augment import Augmenter
from datamodules.crowd_data import CrowdData, DataInfo, hash_tensors
from datamodules.episodes import Episodes, EpisodicDataModule
from datamodules.features import check_features
from datamodules.loader import BatchLoader, Source
from datamodules.names import UnknownName, unknown_name
from datamodules.regimes import is_regime, unknown_regime

__all__ = ["CrowdData", "CrowdDataModule", "DataInfo", "DataModule", "EpisodicDataModule", "Episodes", "hash_tensors"]


class CrowdDataModule(L.LightningDataModule):
    """A data set with crowd labels under one regime: splits, loaders, digest.

    Args:
        regime: how the annotations came to be; one of :attr:`regimes` (``votes=5`` where that lists ``votes=K``).
        split_seed: seed of the split of the training items into training and validation part.
        annotation_seed: seed of simulated annotations, deletions and budgets.
        loader_seed: seed of the order of items and of augmentation.
        root: folder with the data; default ``$ANNOBENCH_DATA`` or ``~/.cache/annobench``.
        batch_size: items a training batch.
        eval_batch_size: items a batch of validation and test.
        val_fraction: share of the training items whose annotations are held out; without effect on data whose
            authors fixed those items (``CrowdData.val_items``).
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
    #: regime -> one line on what it is; a name that ends in ``=K`` stands for every whole number from 1 up
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
    #: names of the sets of images of other things that :meth:`load_ood` knows
    ood_sets: ClassVar[tuple[str, ...]] = ()
    #: which parts ``split_seed`` chooses: ``validation``; ``test and validation``; ``nothing`` where the data's
    #: authors fixed both
    split_seed_chooses: ClassVar[str] = "validation"

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
        if not is_regime(regime, self.regimes):
            raise UnknownName(unknown_regime(regime, self.regimes, where=f"data set {self.name!r}"))
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
        self._before: CrowdData | None = None
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
        """SHA-256 (hex) of all data that this regime reads. Override where files are cheaper to hash.

        Of the items as they were loaded: :meth:`represent` does not change it.
        """
        data = self.as_loaded
        noted, tested = data.annotations, data.test_annotations
        # absent from the digest where there are none, as before there could be any
        votes = [] if tested is None else [tested.items, tested.annotators, tested.labels]
        optional = (data.full_votes, data.val_items, data.train_cues, data.test_cues, data.test_regions)
        votes += [tensor for tensor in optional if tensor is not None]
        triples = (noted.items, noted.annotators, noted.labels)
        return hash_tensors(data.x, *triples, data.true_labels, data.test_x, data.test_labels, data.aggregated, *votes)

    def annotations_for_audit(self) -> tuple[Annotations, Tensor | None]:
        """Annotations and clean labels ``[N]`` (or None) for the audit. Override where items need not be read."""
        return self.data.annotations, self.data.true_labels

    def load_ood(self, name: str) -> Tensor:
        """Images ``[M, C, H, W]`` uint8 of things that are none of the classes, in the form of ``x``.

        Args:
            name: one of :attr:`ood_sets`.

        Raises:
            UnknownName: for any other name (near ones are listed).
            DataNotFound: its files are not there.
        """
        raise UnknownName(unknown_name("out-of-distribution set", name, self.ood_sets, f"data set {self.name!r}"))

    def ood_digest(self, name: str) -> str | None:
        """SHA-256 (hex) of what :meth:`load_ood` gives or reads; None where the files are not there."""
        raise UnknownName(unknown_name("out-of-distribution set", name, self.ood_sets, f"data set {self.name!r}"))

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
    def as_loaded(self) -> CrowdData:
        """The data as it was loaded: :meth:`represent` does not change it."""
        return self._before or self.data

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

    def represent(self, train_x: Tensor, test_x: Tensor) -> None:
        """Puts features of the items in their place, e.g. those of a frozen encoder.

        Splits, annotations, labels and :meth:`digest` stay. Features are neither augmented nor normalised (a
        "strong" view excepted, which corrupts any features). Half precision is kept; batches hold float32.

        Args:
            train_x: features of all training items, held-out ones included, in the order of ``data.x``: ``[N, D]``,
                tokens ``[N, n_tokens, D]``, or tokens of frames ``[N, F, n_tokens, D]``.
            test_x: features of the test items, likewise.

        Raises:
            ValueError: for another number of rows, other shapes or types, or a value that is not finite.
            RuntimeError: if a loader of the items was made before.
        """
        self.setup()
        if self._sources:
            raise RuntimeError(f"{self.name}: a loader was made already; call represent() right after setup()")
        data = self.data
        check_features(train_x, len(data.x), f"{self.name}, train_x")
        check_features(test_x, len(data.test_x), f"{self.name}, test_x")
        if train_x.shape[1:] != test_x.shape[1:]:
            raise ValueError(
                f"an item is {tuple(train_x.shape[1:])} in train_x and {tuple(test_x.shape[1:])} in test_x"
            )
        self._before = self._before or data
        self._data = replace(data, x=_single(train_x), test_x=_single(test_x), mean=None, std=None)

    # --- Lightning ----------------------------------------------------------------------------

    def setup(self, stage: str | None = None) -> None:
        """Loads and splits, once."""
        if self._train_items is not None:
            return
        if self.permute_annotators:
            permuted = self.data.annotations.permute_annotators(self.annotation_seed)
            self._data = replace(self.data, annotations=permuted)
        self._train_items, self._val_items = self.split(self.data.annotations.n_items, self.data.val_items)

    def split(self, n_items: int, val_items: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Ids of the training and of the held-out items among ``n_items``, both ascending.

        Args:
            n_items: how many items there are beside the test items.
            val_items: ids of the held-out ones where they are fixed; None: drawn by ``split_seed``.

        Raises:
            ValueError: if ``n_train`` asks for more items than there are, or leaves a part empty.
        """
        order = torch.randperm(n_items, generator=torch.Generator().manual_seed(self.split_seed))
        if self.n_train is not None:
            if not 2 <= self.n_train <= n_items:
                raise ValueError(f"n_train is {self.n_train}; {self.name} has {n_items} training items")
            order = order[: self.n_train]
        if val_items is None:
            n_val = max(1, round(self.val_fraction * len(order)))
            return order[n_val:].sort().values, order[:n_val].sort().values
        held_out = torch.isin(order, val_items)
        if bool(held_out.all()) or not bool(held_out.any()):
            raise ValueError(
                f"n_train is {self.n_train}: of those items of {self.name} {int(held_out.sum())} are held out; "
                "ask for more, so that some are learned from and some held out"
            )
        return order[~held_out].sort().values, order[held_out].sort().values

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

    def item_dataloader(self, x: Tensor, batch_size: int | None = None) -> BatchLoader:
        """Batches of any items ``x [M, ...]`` (like ``data.x``), normalised, not augmented, in order.

        A batch holds ``x`` and ``index``.

        Raises:
            ValueError: if items have another shape than those of this data.
        """
        if tuple(x.shape[1:]) != self.info.input_shape:
            raise ValueError(f"items have shape {tuple(x.shape[1:])}; those of {self.name} {self.info.input_shape}")
        return self._loader(
            Source({"x": x}), None, shuffle=False, views={"x": "none"}, batch_size=batch_size or self.eval_batch_size
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
            # features of any shape are no images, and their values are not normalised one by one
            input_shape=self.info.input_shape if self._before is None else (-1,),
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


#: a data set of either kind
DataModule = CrowdDataModule | EpisodicDataModule


def _single(features: Tensor) -> Tensor:
    return features if features.dtype == torch.float16 else features.float()
