"""What every data module of few-shot tasks promises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmark.contracts.core import differing, require, require_shape
from datamodules.base import EpisodicDataModule
from datamodules.names import UnknownName

#: tasks small enough to be made in no time
SMALL: Mapping[str, Any] = {"train_episodes": 4, "val_episodes": 4, "test_episodes": 4, "queries": 3}


@dataclass(frozen=True)
class EpisodicDataCase:
    """A class of data module with the arguments and the regimes that it is checked with."""

    cls: type[EpisodicDataModule]
    args: Mapping[str, Any]
    regimes: tuple[str, ...]

    def build(self, regime: str | None = None, **changes: Any) -> EpisodicDataModule:
        """The module, loaded; small tasks unless the arguments say otherwise."""
        module = self.cls(regime or self.regimes[0], **{**SMALL, **self.args, **changes})
        module.setup()
        return module


def unknown_regimes_are_refused(case: EpisodicDataCase) -> None:
    """A regime that does not exist is named, and not taken for another."""
    try:
        case.cls("no such regime", **case.args)
    except UnknownName:
        return
    require(False, "the regime 'no such regime' was accepted; call super().__init__(regime, ...)")


def training_tasks_have_the_promised_shapes(case: EpisodicDataCase) -> None:
    """Support and query items of each class, with labels by place 0..K-1, and no annotation of the source."""
    module = case.build()
    for batch in module.train_dataloader():
        tasks, ways = len(batch["support_x"]), module.ways
        for part, count in (("support", ways * module.shots), ("query", ways * module.queries)):
            require_shape(f"{part}_x", batch[f"{part}_x"], (tasks, count, *module.info.input_shape))
            labels = batch[f"{part}_y"]
            require_shape(f"{part}_y", labels, (tasks, count))
            if module.source_noise == 0:
                each = torch.nn.functional.one_hot(labels, ways).sum(1)
                require(bool((each == count // ways).all()), f"{part}_y has not {count // ways} items of each class")


def target_tasks_are_annotated(case: EpisodicDataCase) -> None:
    """Labels of R annotators in 0..K-1 or -1, under every regime; only queries have their true class."""
    for regime in case.regimes:
        module = case.build(regime)
        for batch in module.test_dataloader():
            labels = batch["support_labels"]
            tasks, items = batch["support_x"].shape[:2]
            require_shape("support_labels", labels, (tasks, items, module.annotators[0]))
            require(bool(((labels >= -1) & (labels < module.ways)).all()), f"{regime}: a label is not in -1..K-1")
            require("support_y" not in batch, f"{regime}: a target task tells the support items' true classes")
            require(bool((batch["query_y"] >= 0).all()), f"{regime}: a query item has no class")


def support_and_query_share_no_item(case: EpisodicDataCase) -> None:
    """AntreasAntoniou/HowToTrainYourMAMLPytorch#50: items of the support were asked for again."""
    module = case.build()
    for batch in (*module.train_dataloader(), *module.test_dataloader()):
        support, query = (batch[name].flatten(2) for name in ("support_x", "query_x"))
        same = (torch.cdist(support.double(), query.double()) == 0).any()
        require(not bool(same), "an item is in the support and in the query set of one task")


def tasks_follow_from_the_seeds(case: EpisodicDataCase) -> None:
    """The same seeds give the same bits; another seed of training gives other tasks."""
    first, again, other = case.build(), case.build(), case.build(loader_seed=1)
    for name in ("train_dataloader", "val_dataloader", "test_dataloader"):
        one, two = (_tensors(getattr(module, name)()) for module in (first, again))
        require(not differing(one, two), f"{name} gives other batches to another module with the same seeds")
    require(
        bool(differing(_tensors(first.train_dataloader()), _tensors(other.train_dataloader()))),
        "loader_seed changes no training task",
    )


def items_are_the_same_for_all_numbers_of_annotators(case: EpisodicDataCase) -> None:
    """Columns of a table are paired: only the labels differ."""
    module = case.build()
    share = next(iter(module.spammer_shares), None)
    found = [
        {
            name: value
            for name, value in _tensors(module.test_episodes_for(count, share)).items()
            if "_labels" not in name
        }
        for count in module.annotators
    ]
    for others in found[1:]:
        require(not differing(found[0], others), "another number of annotators sees other items")


def digest_follows_from_the_data(case: EpisodicDataCase) -> None:
    """Two modules of the same data have the same digest."""
    first, again = case.build().digest(), case.build().digest()
    require(bool(first) and first == again, f"the digest is {first!r} once and {again!r} then")


def _tensors(batches: Any) -> dict[str, Tensor]:
    """All tensors of ``batches`` by number and name, without what tells annotators and shares."""
    return {
        f"{number}.{name}": value
        for number, batch in enumerate(batches)
        for name, value in batch.items()
        if isinstance(value, Tensor) and value.ndim > 0
    }


EPISODIC_DATA_CHECKS = (
    unknown_regimes_are_refused,
    training_tasks_have_the_promised_shapes,
    target_tasks_are_annotated,
    support_and_query_share_no_item,
    tasks_follow_from_the_seeds,
    items_are_the_same_for_all_numbers_of_annotators,
    digest_follows_from_the_data,
)
