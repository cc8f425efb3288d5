"""The base class of few-shot data, on the embedded digits and on a small crowd made up here."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from datamodules import base
from datamodules.annotations import Annotations
from datamodules.digits import digit_images
from datamodules.digits_episodes import PARTS, TURNS, DigitsEpisodes, turned_digits
from datamodules.episodes import EpisodicData, EpisodicDataModule, Pool
from datamodules.few_shot_regimes import CROWD_REGIME, SIMULATED
from datamodules.names import UnknownName

Batch = Mapping[str, Any]
N_ANNOTATORS = 6
OUTSIDE: tuple[Any, ...] = ("left_out", "guessed")


def _people(classes: Tensor, seed: int) -> Annotations:
    """Each item labelled by about half of six people, who are right two times in three."""
    generator = torch.Generator().manual_seed(seed)
    size = (len(classes), N_ANNOTATORS)
    wrong = torch.rand(size, generator=generator) < 1 / 3
    said = (classes[:, None] + wrong * torch.randint(1, 5, size, generator=generator)) % 5
    return Annotations.from_dense(said.masked_fill(torch.rand(size, generator=generator) < 0.5, -1), 5)


class Crowded(EpisodicDataModule):
    """Five classes of twelve numbered items each, annotated in the target part; queries are of other items."""

    name = "crowded"
    regimes: ClassVar[Mapping[str, str]] = {**CROWD_REGIME, **SIMULATED}

    def load(self) -> EpisodicData:
        classes = torch.arange(60) % 5
        x = torch.arange(60.0)[:, None]
        test = Pool(x, classes, _people(classes, 0), x[:20] + 1000, classes[:20])
        return EpisodicData(Pool(x, classes), Pool(x, classes), test)


class PooledCrowd(Crowded):
    pooled = True


def _digits(regime: str = "hammer-spammer", **arguments: Any) -> DigitsEpisodes:
    return DigitsEpisodes(regime, **{"train_episodes": 12, "episodes_per_batch": 4, **arguments})


def _at_epoch(module: EpisodicDataModule, epoch: int) -> EpisodicDataModule:
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    module.trainer = SimpleNamespace(current_epoch=epoch, strategy=strategy)  # type: ignore[assignment]
    return module


def _joined(batches: Iterable[Batch], key: str) -> Tensor:
    return torch.cat([batch[key] for batch in batches])


def _living_tensors() -> int:
    # by type: isinstance would ask objects of other libraries for their class, and some warn of it
    return sum(type(found) is Tensor for found in gc.get_objects())


def _same_batches(first: Iterable[Batch], second: Iterable[Batch]) -> bool:
    pairs = list(zip(first, second, strict=True))
    return all(torch.equal(a[key], b[key]) for a, b in pairs for key in a if isinstance(a[key], Tensor))


# --- what batches hold ----------------------------------------------------------------------------


def test_batches_hold_what_methods_are_promised() -> None:
    module = _digits(shots=3, queries=5)
    train, val = next(iter(module.train_dataloader())), next(iter(module.val_dataloader()))
    test = next(iter(module.test_episodes_for(7, 0.3)))
    assert set(train) == {"support_x", "support_y", "query_x", "query_y"}
    assert set(val) == set(test) == {"support_x", "support_labels", "query_x", "query_y", "annotators", "spammer_share"}
    assert train["support_x"].shape == (4, 12, 1, 8, 8) and train["query_x"].shape == (4, 20, 1, 8, 8)
    assert train["support_y"].tolist() == [[0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]] * 4
    assert test["support_labels"].shape == (25, 12, 7) and test["query_y"].shape == (25, 20)
    assert (test["annotators"], test["spammer_share"]) == (7, 0.3)
    assert all(batch["query_x"].dtype == torch.float32 for batch in (train, val, test))
    assert len(module.train_dataloader()) == 3 and len(_joined(module.test_dataloader(), "query_y")) == 50


def test_validation_takes_turns_over_annotators_and_shares() -> None:
    module = _digits(val_episodes=50)
    batches = list(module.val_dataloader())
    turns = {(batch["annotators"], batch["spammer_share"]) for batch in batches}
    assert turns == {(annotators, share) for annotators in (3, 5, 7) for share in (0.1, 0.2, 0.3, 0.4)}
    assert len(_joined(batches, "query_y")) == 50
    few = _digits(val_episodes=5)
    assert len(_joined(few.val_dataloader(), "query_y")) == 5


def test_information_is_of_an_episode() -> None:
    info = _digits(ways=3, annotators=(2, 9)).info
    assert (info.n_classes, info.n_annotators, info.input_shape) == (3, 9, (1, 8, 8))


def test_base_offers_the_names_that_others_import() -> None:
    assert base.EpisodicDataModule is EpisodicDataModule
    assert issubclass(DigitsEpisodes, base.DataModule)


# --- the same and others --------------------------------------------------------------------------


def test_items_are_the_same_for_every_number_of_annotators_and_share() -> None:
    module = _digits(shares_beyond=(0.6,))
    first = list(module.test_episodes_for(3, 0.1))
    for annotators, share in ((5, 0.1), (7, 0.4), (3, 0.6)):
        other = list(module.test_episodes_for(annotators, share))
        for key in ("support_x", "query_x", "query_y"):
            assert torch.equal(_joined(first, key), _joined(other, key))
        assert not torch.equal(_joined(first, "support_labels"), _joined(other, "support_labels")[..., :3])


def test_regimes_differ_in_labels_only() -> None:
    one, other = (_digits(regime) for regime in ("hammer-spammer", "pair-flippers"))
    a, b = (list(module.test_episodes_for(5, 0.4)) for module in (one, other))
    assert torch.equal(_joined(a, "support_x"), _joined(b, "support_x"))
    assert not torch.equal(_joined(a, "support_labels"), _joined(b, "support_labels"))


def test_two_modules_of_one_seed_give_the_same_batches_in_any_order() -> None:
    one, other = _digits(), _digits(num_workers=4)
    list(other.test_episodes_for(7, 0.4))
    assert _same_batches(one.train_dataloader(), other.train_dataloader())
    assert _same_batches(one.val_dataloader(), other.val_dataloader())
    assert _same_batches(one.test_episodes_for(5, 0.2), other.test_episodes_for(5, 0.2))


def test_training_episodes_differ_between_epochs_and_batches() -> None:
    epochs = [list(_at_epoch(_digits(), epoch).train_dataloader()) for epoch in (0, 1, 0)]
    assert _same_batches(epochs[0], epochs[2]) and not _same_batches(epochs[0], epochs[1])
    assert not torch.equal(epochs[0][0]["support_x"], epochs[0][1]["support_x"])
    held = [list(_at_epoch(_digits(), epoch).val_dataloader()) for epoch in (0, 1)]
    assert _same_batches(*held)


@pytest.mark.parametrize(
    ("axis", "changed"),
    [("split_seed", {"val", "items"}), ("annotation_seed", {"labels"}), ("loader_seed", {"train"})],
)
def test_each_seed_changes_what_it_names_and_nothing_else(axis: str, changed: set[str]) -> None:
    def made(module: DigitsEpisodes) -> dict[str, Tensor]:
        test = list(module.test_episodes_for(5, 0.4))
        return {
            "train": _joined(module.train_dataloader(), "support_x"),
            "val": _joined(module.val_dataloader(), "support_x"),
            "items": _joined(test, "support_x"),
            "labels": _joined(test, "support_labels"),
        }

    before, after = made(_digits()), made(_digits("hammer-spammer", **{axis: 1}))
    assert {name for name in before if not torch.equal(before[name], after[name])} == changed


def test_annotators_are_as_good_as_the_regime_says() -> None:
    module = _digits(shots=5, test_episodes=400, expert_share=0.2, hammer_accuracy=0.7)
    truth = torch.arange(4).repeat_interleave(5)[None, :, None]
    right = (_joined(module.test_episodes_for(7, 0.3), "support_labels") == truth).double().mean()
    assert float(right) == pytest.approx(0.2 + 0.5 * 0.7 + 0.3 * 0.25, abs=0.02)


def test_memory_stays_flat_over_two_thousand_training_episodes() -> None:
    module = _at_epoch(_digits(train_episodes=1000, episodes_per_batch=1), 0)
    for _ in zip(range(50), module.train_dataloader(), strict=False):
        pass
    gc.collect()
    tensors = _living_tensors()
    tracemalloc.start()
    try:
        for epoch in range(2):
            for _ in _at_epoch(module, epoch).train_dataloader():
                pass
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert _living_tensors() <= tensors
    assert kept < 100_000


# --- wrong source labels --------------------------------------------------------------------------


def test_wrong_source_labels_are_as_many_as_asked_and_stay_the_same() -> None:
    module, again = (_digits(source_noise=0.25) for _ in range(2))
    module.setup()
    again.setup()
    given, clean = module._prepared["train"].pool.classes, module.data.train.classes
    assert float((given != clean).double().mean()) == pytest.approx(0.25, abs=0.005)
    assert torch.equal(given, again._prepared["train"].pool.classes)
    for part in ("val", "test"):
        assert module._prepared[part].pool.classes is getattr(module.data, part).classes


# --- real annotations -----------------------------------------------------------------------------


@pytest.mark.parametrize("module_class", [Crowded, PooledCrowd])
def test_real_annotators_label_the_same_items_whatever_their_number(module_class: type[Crowded]) -> None:
    module = module_class("crowd", annotators=(2, 4), shots=2, queries=3)
    assert (module.spammer_shares, module.shares_beyond) == ((), ())
    few, many = (list(module.test_episodes_for(n, None)) for n in (2, 4))
    for key in ("support_x", "query_x", "query_y"):
        assert torch.equal(_joined(few, key), _joined(many, key))
    labels = _joined(many, "support_labels")
    assert torch.equal(_joined(few, "support_labels"), labels[..., :2])
    assert int(labels.min()) == -1 and int(labels.max()) == 3
    assert (_joined(many, "query_x") >= 1000).all() and (_joined(many, "support_x") < 1000).all()


def test_answers_outside_an_episode_are_left_out_or_guessed() -> None:
    left_out, guessed = (Crowded("crowd", outside=what, annotators=(3, 5), ways=2, queries=3) for what in OUTSIDE)
    a, b = (_joined(module.test_episodes_for(5, None), "support_labels") for module in (left_out, guessed))
    assert torch.equal(a[a >= 0], b[a >= 0])
    assert (b[a < 0] >= 0).any() and (b < 0).any()


def test_validation_without_real_annotations_simulates_them() -> None:
    module = Crowded("crowd", annotators=(2, 4), queries=3)
    assert {batch["spammer_share"] for batch in module.val_dataloader()} == {0.1, 0.2, 0.3, 0.4}


# --- the digits -----------------------------------------------------------------------------------


def test_every_scan_is_in_one_class_turned_as_its_class_says() -> None:
    images, digits = digit_images()
    turned, classes = turned_digits()
    assert torch.equal(classes // 4, digits)
    for turn in range(4):
        chosen = classes % 4 == turn
        assert torch.equal(turned[chosen], images[chosen].rot90(turn, dims=(-2, -1)))
    assert {(int(c) // 4, int(c) % 4) for c in classes.unique()} == {(d, t) for d, ts in TURNS.items() for t in ts}


def test_digits_are_in_one_part_each() -> None:
    data = _digits().data
    found = [set((pool.classes // 4).tolist()) for pool in (data.train, data.val, data.test)]
    assert found == [set(part) for part in PARTS]
    assert [len(pool.classes.unique()) for pool in (data.train, data.val, data.test)] == [14, 6, 6]


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ways": 7}, "digits_episodes: the validation part has 6 classes, fewer than the 7 ways"),
        ({"shots": 20, "queries": 30}, "digits_episodes: the source part: class .* has 45 items, fewer than 20 shots"),
        ({"ways": 1}, "ways is 1"),
        ({"shots": 0}, "shots is 0"),
        ({"annotators": ()}, "annotators is 0"),
        ({"annotators": (3, 0)}, "annotators is 0"),
        ({"spammer_shares": ()}, "spammer_shares is empty"),
        ({"spammer_shares": (0.95,)}, "sum to at most 1"),
        ({"source_noise": 1.0}, "source_noise is 1.0"),
        ({"hammer_accuracy": 1.5}, "hammer_accuracy is 1.5"),
        ({"outside": "kept"}, "outside is 'kept'"),
    ],
)
def test_bad_arguments_are_one_sentence(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _digits(**arguments).setup()


def test_an_unknown_regime_lists_near_ones() -> None:
    with pytest.raises(UnknownName, match="hammer-spammer"):
        _digits("hammer-spamer")


def test_more_annotators_than_there_are_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="crowded: 7 annotators were asked for, but there are 6 annotators"):
        Crowded("crowd", annotators=(3, 7), queries=3).setup()
    with pytest.raises(ValueError, match="there are at most"):
        PooledCrowd("crowd", annotators=(3,), queries=3).test_episodes_for(50, None)
    assert Crowded("hammer-spammer", annotators=(70,), queries=3).test_episodes_for(70, 0.1)


def test_a_share_must_fit_the_regime() -> None:
    with pytest.raises(ValueError, match="must be None with real annotations"):
        Crowded("crowd", annotators=(3,), queries=3).test_episodes_for(3, 0.1)
    with pytest.raises(ValueError, match="and a number else"):
        _digits().test_episodes_for(3, None)


def test_validation_tasks_are_annotated_alike_under_every_regime() -> None:
    """Else the types of annotators that meta-training never saw would choose its epoch."""
    one, other = (_digits(regime) for regime in ("hammer-spammer", "class-spammers"))
    pairs = list(zip(one.val_dataloader(), other.val_dataloader(), strict=True))
    assert pairs and all(torch.equal(first["support_labels"], second["support_labels"]) for first, second in pairs)
    first, second = (next(iter(data.test_episodes_for(5, 0.4))) for data in (one, other))
    assert not torch.equal(first["support_labels"], second["support_labels"])
