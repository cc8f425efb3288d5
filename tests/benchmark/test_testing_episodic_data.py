"""The contract of few-shot data: the built-in sets keep it, and each check catches what it is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmark.testing import ContractError, check_datamodule, iter_checks
from datamodules.base import EpisodicDataModule
from datamodules.digits_episodes import DigitsEpisodes
from datamodules.labelme_fewshot import LabelMeFewShot


def test_digits_episodes_keep_the_contract() -> None:
    check_datamodule(DigitsEpisodes)


def test_labelme_tasks_keep_the_contract_with_real_annotators(real_data: Any) -> None:
    check_datamodule(LabelMeFewShot, root=real_data)


class AcceptsAnything(DigitsEpisodes):
    def __init__(self, regime: str, **shared: Any) -> None:
        super().__init__("hammer-spammer", **shared)


class TellsTheTruth(DigitsEpisodes):
    def _annotated_batch(self, *args: Any) -> dict[str, Any]:
        batch = super()._annotated_batch(*args)
        return {**batch, "support_y": batch["support_labels"][..., 0]}


class AsksAgain(DigitsEpisodes):
    def _training_batch(self, *args: Any) -> dict[str, Any]:
        batch = super()._training_batch(*args)
        query = batch["query_x"].clone()
        query[:, 0] = batch["support_x"][:, 0]
        return {**batch, "query_x": query}


class Forgetful(DigitsEpisodes):
    def _generator(self, *args: Any, **axes: Any) -> torch.Generator:
        generator = torch.Generator()
        generator.seed()
        return generator


class DeafToSeeds(DigitsEpisodes):
    def _generator(self, *args: Any, **axes: Any) -> torch.Generator:
        return torch.Generator().manual_seed(0)


class OtherItems(DigitsEpisodes):
    def test_episodes_for(self, annotators: int, spammer_share: float | None) -> Any:
        self.split_seed = annotators
        return super().test_episodes_for(annotators, spammer_share)


class MissingClass(DigitsEpisodes):
    def _training_batch(self, *args: Any) -> dict[str, Any]:
        batch = super()._training_batch(*args)
        return {**batch, "query_y": torch.zeros_like(batch["query_y"])}


class Restless(DigitsEpisodes):
    def digest(self) -> str:
        return str(torch.rand(()))


MUTANTS: list[tuple[type[EpisodicDataModule], str]] = [
    (AcceptsAnything, "unknown_regimes_are_refused"),
    (TellsTheTruth, "target_tasks_are_annotated"),
    (AsksAgain, "support_and_query_share_no_item"),
    (Forgetful, "tasks_follow_from_the_seeds"),
    (DeafToSeeds, "tasks_follow_from_the_seeds"),
    (OtherItems, "items_are_the_same_for_all_numbers_of_annotators"),
    (MissingClass, "training_tasks_have_the_promised_shapes"),
    (Restless, "digest_follows_from_the_data"),
]


@pytest.mark.parametrize(("mutant", "name"), MUTANTS, ids=[f"{cls.__name__}-{name}" for cls, name in MUTANTS])
def test_each_check_catches_what_it_is_for(mutant: type[EpisodicDataModule], name: str) -> None:
    checks: dict[str, Callable[[], None]] = {str(check): check for check in iter_checks(mutant)}
    with pytest.raises(ContractError, match=name):
        checks[name]()
