"""The loader: one order and one stream of augmentation, whatever the number of workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning as L
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from datamodules.annotations import Annotations
from datamodules.augment import Augmenter
from datamodules.base import CrowdData, CrowdDataModule
from datamodules.loader import BatchLoader, Source

SHAPE = (3, 8, 8)


def make_source(count: int = 21) -> Source:
    generator = torch.Generator().manual_seed(5)
    return Source(
        {
            "x": torch.randint(256, (count, *SHAPE), dtype=torch.uint8, generator=generator),
            "annotators": torch.randint(-1, 4, (count, 2), generator=generator),
            "labels": torch.arange(count).unsqueeze(1),
        }
    )


def make_loader(source: Source | None = None, **changes: Any) -> BatchLoader:
    settings: dict[str, Any] = {
        "augmenter": Augmenter(SHAPE),
        "views": {"x": "standard"},
        "unlabeled_views": {"weak": "weak", "strong": "strong"},
        "batch_size": 5,
        "shuffle": True,
        "seed": 3,
    }
    return BatchLoader(source or make_source(), **{**settings, **changes})


def flat(batch: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for key, value in sorted(batch.items()):
        if isinstance(value, Tensor):
            yield prefix + key, value
        else:
            yield from flat(value, f"{prefix}{key}/")


def assert_same(first: BatchLoader, second: BatchLoader) -> None:
    pairs = list(zip(first, second, strict=True))
    assert pairs
    for ours, theirs in pairs:
        for (name, left), (other, right) in zip(flat(ours), flat(theirs), strict=True):
            assert name == other and torch.equal(left, right), name


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_batches_are_the_same_to_the_last_bit_for_any_number_of_workers(workers: int) -> None:
    """pytorch/pytorch#5059 (check 21): with draws in the workers, streams depended on their number."""
    assert_same(make_loader(), make_loader(num_workers=workers))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_global_generator_is_left_alone(workers: int) -> None:
    """A DataLoader draws a seed for its workers from the global generator, so that dropout in the method
    would have depended on ``num_workers``."""
    state = torch.random.get_rng_state()
    list(make_loader(num_workers=workers))
    assert torch.equal(state, torch.random.get_rng_state())


def test_an_epoch_repeats_and_the_next_one_differs() -> None:
    epoch = 0
    loader = make_loader(epoch=lambda: epoch)
    assert_same(loader, make_loader(epoch=lambda: 0))
    first = torch.cat([batch["index"] for batch in loader])
    pictures = torch.cat([batch["x"][batch["index"].argsort()] for batch in make_loader(batch_size=21)])
    epoch = 1
    second = torch.cat([batch["index"] for batch in loader])
    later = torch.cat([batch["x"][batch["index"].argsort()] for batch in make_loader(batch_size=21, epoch=lambda: 1)])
    assert not torch.equal(first, second)
    assert (pictures != later).flatten(1).any(1).float().mean() > 0.5


def test_seeds_and_views_have_draws_of_their_own() -> None:
    views = {"first": "weak", "second": "weak"}
    batch = next(iter(make_loader(views=views)))
    assert "x" not in batch and not torch.equal(batch["first"], batch["second"])
    assert not torch.equal(batch["first"], next(iter(make_loader(views=views, seed=4)))["first"])


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 40), batch_size=st.integers(1, 12), shuffle=st.booleans())
def test_every_item_comes_once_and_no_batch_has_a_single_item(count: int, batch_size: int, shuffle: bool) -> None:
    """pytorch/pytorch#7716 (check 22): batch normalisation dies on a last batch of one item."""
    loader = make_loader(make_source(count), batch_size=batch_size, shuffle=shuffle)
    batches = list(loader)
    assert len(batches) == len(loader)
    for part in (batches, [batch["unlabeled"] for batch in batches]):
        assert sorted(torch.cat([batch["index"] for batch in part]).tolist()) == list(range(count))
    sizes = [len(batch["index"]) for batch in batches]
    assert [len(batch["unlabeled"]["index"]) for batch in batches] == sizes
    assert all(size == batch_size for size in sizes[:-1])
    assert sizes[-1] <= batch_size + 1
    assert min(sizes) > 1 or count == 1 or batch_size == 1


def test_one_item_alone_is_a_batch() -> None:
    assert [len(batch["x"]) for batch in make_loader(make_source(1))] == [1]


def test_only_the_chosen_items_come_and_rows_belong_together() -> None:
    items = torch.tensor([2, 3, 7, 11, 19])
    source = make_source()
    loader = make_loader(source, items=items, batch_size=2, views={"x": "none"}, shuffle=False)
    batches = list(loader)
    assert torch.equal(torch.cat([batch["index"] for batch in batches]), items)
    for batch in batches:
        rows = batch["index"]
        assert torch.allclose(batch["x"], source.tensors["x"][rows] / 255)
        assert torch.equal(batch["labels"][:, 0], rows)
        assert torch.equal(batch["annotators"], source.tensors["annotators"][rows])


def test_the_unlabelled_batch_has_an_order_of_its_own() -> None:
    batch = next(iter(make_loader(batch_size=21)))
    assert not torch.equal(batch["index"], batch["unlabeled"]["index"])
    assert set(batch["unlabeled"]) == {"weak", "strong", "annotators", "labels", "index"}
    assert "unlabeled" not in next(iter(make_loader(unlabeled_views={})))


def test_a_loader_does_not_copy_the_items() -> None:
    source = make_source()
    loader = make_loader(source, items=torch.arange(10))
    assert loader.source.on(torch.device("cpu"))["x"].data_ptr() == source.tensors["x"].data_ptr()


def test_malformed_sources_and_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="no tensor 'x'"):
        Source({"labels": torch.zeros(3)})
    with pytest.raises(ValueError, match="one row an item"):
        Source({"x": torch.zeros(3, 1), "labels": torch.zeros(2)})
    with pytest.raises(ValueError, match="no items"):
        make_loader(items=torch.arange(0))
    with pytest.raises(ValueError, match="batch_size is 0"):
        make_loader(batch_size=0)


class _Recorder(L.LightningModule):
    """Notes what Lightning hands to a method."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[tuple[str, int, dict[str, Any]]] = []
        self.untouched = True

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        moved = super().transfer_batch_to_device(batch, device, dataloader_idx)
        same = zip(flat(batch), flat(moved), strict=True)
        self.untouched &= all(a.data_ptr() == b.data_ptr() for (_, a), (_, b) in same)
        return moved

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        self.seen.append(("train", self.current_epoch, batch))
        loss = self.layer(batch["x"].mean().view(1, 1)).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.seen.append(("val", self.current_epoch, batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class _Data(L.LightningDataModule):
    def __init__(self, num_workers: int) -> None:
        super().__init__()
        self.source, self.num_workers = make_source(), num_workers

    def _make(self, **changes: Any) -> BatchLoader:
        assert self.trainer is not None
        trainer = self.trainer
        return make_loader(self.source, num_workers=self.num_workers, epoch=lambda: trainer.current_epoch, **changes)

    def train_dataloader(self) -> BatchLoader:
        return self._make()

    def val_dataloader(self) -> BatchLoader:
        return self._make(shuffle=False, views={"x": "none"}, unlabeled_views={})


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("reload", [0, 1])
@pytest.mark.filterwarnings("error:.*batch_size.*")
@pytest.mark.filterwarnings("error:.*ataloader.*")
def test_lightning_trains_on_the_batches_of_each_epoch(workers: int, reload: int) -> None:
    """Two epochs through the Trainer give the batches of the loader alone, and moving them copies nothing."""
    recorder = _Recorder()
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=1,
        reload_dataloaders_every_n_epochs=reload,
    )
    trainer.fit(recorder, datamodule=_Data(workers))
    assert recorder.untouched
    for epoch in (0, 1):
        given = [batch for kind, when, batch in recorder.seen if (kind, when) == ("train", epoch)]
        expected = list(make_loader(epoch=lambda epoch=epoch: epoch))
        assert len(given) == len(expected) == 4
        for ours, theirs in zip(given, expected, strict=True):
            assert all(torch.equal(a, b) for (_, a), (_, b) in zip(flat(ours), flat(theirs), strict=True))
    assert len([kind for kind, _, _ in recorder.seen if kind == "val"]) == 1 + 2 * 4


class _Crowd(CrowdDataModule):
    name = "crowd"
    regimes = {"only": "two labels an item"}

    def load(self) -> CrowdData:
        items = torch.arange(20).repeat_interleave(2)
        noted = Annotations(items, torch.arange(2).repeat(20), items % 3, 20, 2, 3)
        x = make_source(20).tensors["x"]
        return CrowdData(x, noted, None, x[:4], torch.arange(4), aggregated=torch.arange(20) % 3)


def test_loaders_of_a_data_module_share_the_items_and_split_the_annotations() -> None:
    """Lightning asks for loaders again and again: each used to copy its part of the images."""
    data = _Crowd("only", batch_size=4)
    loaders = data.train_dataloader(), data.val_dataloader(), data.scan_dataloader("weak")
    train, val, scan = (torch.cat([batch["index"] for batch in loader]) for loader in loaders)
    assert {id(loader.source) for loader in loaders} == {id(loaders[0].source)}
    assert loaders[0].source.tensors["x"].data_ptr() == data.data.x.data_ptr()
    assert sorted([*train.tolist(), *val.tolist()]) == list(range(20))
    assert torch.equal(scan, data.train_items) and torch.equal(val, data.val_items)
    for batch in loaders[0]:
        assert torch.equal(batch["aggregated"], batch["index"] % 3)
        assert torch.equal(batch["labels"], (batch["index"] % 3).unsqueeze(1).expand(-1, 2))
    test = next(iter(data.test_dataloader()))
    assert test["labels"].shape == (4, 0) and torch.equal(test["target"], torch.arange(4))
