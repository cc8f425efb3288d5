"""Batches of a data set: one order and one stream of augmentation, however many workers gather the items.

Small data sets stay on the training device as they are (uint8 images) and whole batches are gathered and
augmented there. With worker processes, or where the items are too large to stay there, the raw items of a batch
are gathered on the CPU and the batch is augmented on the device afterwards. Both give the same batches to the
last bit, because every draw comes from a generator seeded by (seed, epoch, batch number, purpose).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from datamodules.augment import Augmenter
from datamodules.features import release, sent_to
from datamodules.seeds import derive_seed

#: items of more bytes than this are not kept on an accelerator
RESIDENT_BYTES = 4 * 2**30

Gathered = list[dict[str, Tensor]]


class Source(Dataset[Gathered]):
    """The items of a data set, shared by all its loaders and never copied for one.

    Args:
        tensors: ``x [N, ...]`` and whatever else goes with an item, all with N rows, on the CPU. Of a mapped file
            (:class:`~datamodules.features.MappedTensor`) no more than a batch's rows are in memory.

    Raises:
        ValueError: if ``x`` is missing or the numbers of rows differ.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        if "x" not in tensors:
            raise ValueError(f"the source has no tensor 'x'; it has {sorted(tensors)}")
        rows = {name: len(tensor) for name, tensor in tensors.items()}
        if len(set(rows.values())) != 1:
            raise ValueError(f"the tensors of a source must have one row an item; they have {rows}")
        self.tensors = dict(tensors)
        self._copies: dict[torch.device, dict[str, Tensor]] = {}

    def __len__(self) -> int:
        return len(self.tensors["x"])

    def fits(self, device: torch.device) -> bool:
        """Whether the items are kept on ``device``."""
        return device.type == "cpu" or sum(t.nbytes for t in self.tensors.values()) <= RESIDENT_BYTES

    def on(self, device: torch.device) -> dict[str, Tensor]:
        """The tensors on ``device``; sent there once, whichever loader asks first."""
        if device.type == "cpu":
            return self.tensors
        if device not in self._copies:
            self._copies[device] = {name: sent_to(tensor, device) for name, tensor in self.tensors.items()}
        return self._copies[device]

    def gather(self, rows: Tensor) -> dict[str, Tensor]:
        """The items ``rows`` from wherever ``rows`` is, with their row numbers as ``index``."""
        here = self.on(rows.device)
        batch = {name: tensor.index_select(0, rows) for name, tensor in here.items()}
        for tensor in here.values():
            release(tensor)
        return {**batch, "index": rows}

    def __getitem__(self, rows: list[Tensor]) -> Gathered:
        """The items of each part of a batch, for a worker of a :class:`DataLoader`."""
        return [self.gather(part) for part in rows]

    def __getstate__(self) -> dict[str, Any]:
        # a worker that is not forked gets the items alone: copies on an accelerator stay in this process
        return {**self.__dict__, "_copies": {}}


class BatchLoader:
    """Sized iterable of batches; cheap to make, so one may be made for every epoch.

    A batch holds the ``views``, the other tensors of the source and ``index [B]`` (row numbers in the source).
    With ``unlabeled_views`` it also holds ``unlabeled``: such a batch of the same number of items from an
    order of its own. Each item comes once an epoch. A last batch of one item joins the batch before it,
    because batch normalisation cannot train on one item.

    Args:
        source: the items.
        items: rows ``[n]`` of the source that this loader gives; None: all.
        augmenter: makes the views.
        views: key in the batch -> augmentation.
        unlabeled_views: likewise for the unlabelled batch; empty: there is none.
        batch_size: items a batch.
        shuffle: whether each epoch has its own random order.
        seed: seed of order and augmentation.
        epoch: tells the number of the current epoch; asked when the first batch is.
        device: where the batches go.
        num_workers: processes that gather items; 0: this one. Never changes a batch.

    Raises:
        ValueError: if there are no items or the batch size is below 1.
    """

    def __init__(
        self,
        source: Source,
        *,
        augmenter: Augmenter,
        views: Mapping[str, str],
        batch_size: int,
        shuffle: bool,
        seed: int,
        items: Tensor | None = None,
        unlabeled_views: Mapping[str, str] | None = None,
        epoch: Callable[[], int] = lambda: 0,
        device: torch.device | str = "cpu",
        num_workers: int = 0,
    ) -> None:
        self.source = source
        self.items = torch.arange(len(source)) if items is None else items
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; at least 1 is needed")
        if len(self.items) == 0:
            raise ValueError("the loader has no items; check n_train and val_fraction")
        self.augmenter = augmenter
        self.views = dict(views)
        self.unlabeled_views = dict(unlabeled_views or {})
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = epoch
        self.device = torch.device(device)
        self.num_workers = num_workers

    def __len__(self) -> int:
        return len(self._sizes())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._batches()

    # --- within -------------------------------------------------------------------------------

    def _sizes(self) -> list[int]:
        whole, rest = divmod(len(self.items), self.batch_size)
        sizes = [self.batch_size] * whole
        if rest == 1 and whole:
            sizes[-1] += 1
        elif rest:
            sizes.append(rest)
        return sizes

    def _batches(self) -> Iterator[dict[str, Any]]:
        # asked with the first batch, not before: Lightning makes an iterator before it has restored the epoch
        epoch = self.epoch()
        for number, (labelled, *unlabelled) in enumerate(self._gathered(self._rows(epoch))):
            batch: dict[str, Any] = self._with_views(labelled, self.views, epoch, number, "labelled")
            for part in unlabelled:
                batch["unlabeled"] = self._with_views(part, self.unlabeled_views, epoch, number, "unlabelled")
            yield batch

    def _rows(self, epoch: int) -> list[list[Tensor]]:
        """For each batch the rows of the labelled part and, where asked for, of the unlabelled one."""
        parts = [self._order(epoch, "labelled")]
        if self.unlabeled_views:
            parts.append(self._order(epoch, "unlabelled"))
        return [list(batch) for batch in zip(*(part.split(self._sizes()) for part in parts), strict=True)]

    def _order(self, epoch: int, purpose: str) -> Tensor:
        if not self.shuffle:
            return self.items
        generator = self._generator(epoch=epoch, purpose=f"order/{purpose}")
        return self.items[torch.randperm(len(self.items), generator=generator)]

    def _gathered(self, rows: list[list[Tensor]]) -> Iterable[Gathered]:
        if self.num_workers == 0:
            place = self.device if self.source.fits(self.device) else torch.device("cpu")
            return (self.source[[part.to(place) for part in batch]] for batch in rows)
        return DataLoader(
            self.source,
            sampler=rows,
            batch_size=None,
            num_workers=self.num_workers,
            collate_fn=_unchanged,
            # without a generator of its own a DataLoader draws from the global one, and the number of
            # workers would change what the method draws next
            generator=torch.Generator(),
        )

    def _with_views(
        self, raw: dict[str, Tensor], views: Mapping[str, str], epoch: int, number: int, part: str
    ) -> dict[str, Tensor]:
        batch = {name: tensor.to(self.device, non_blocking=True) for name, tensor in raw.items()}
        x = batch.pop("x")
        for key, policy in views.items():
            generator = self._generator(epoch=epoch, batch=number, purpose=f"view/{part}/{key}")
            batch[key] = self.augmenter(policy, x, generator)
        return batch

    def _generator(self, **axes: str | int) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(seed=self.seed, **axes))


def _unchanged(gathered: Gathered) -> Gathered:
    return gathered
