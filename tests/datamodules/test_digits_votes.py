"""The embedded data with votes: doubt follows the image, budgets are shared and nested, features replace items."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.base import hash_tensors
from datamodules.digits import Digits, digit_images
from datamodules.digits_votes import VOTES_AN_IMAGE, DigitsVotes, simulated_votes, vote_probabilities
from datamodules.names import UnknownName
from datamodules.pooled import pooled_annotations
from datamodules.votes import VoteError

SEEDS = st.integers(0, 2**31 - 1)


def _entropy(votes: torch.Tensor) -> torch.Tensor:
    shares = votes.double() / votes.sum(1, keepdim=True)
    return -torch.special.xlogy(shares, shares).sum(1)


# --- the votes ------------------------------------------------------------------------------------


def test_votes_are_spread_like_cifar10hs() -> None:
    votes = simulated_votes()
    counts, (_, classes) = votes.sum(1), digit_images()
    assert counts.min() == 47 and counts.max() <= 63 and abs(float(counts.double().mean()) - 51.1) < 0.1
    assert sum(VOTES_AN_IMAGE.values()) == 10_000
    # what the module's text says, which is about CIFAR-10H's 43.9 %, 0.1545 and 99.21 %
    assert float((votes.max(1).values == counts).double().mean()) == pytest.approx(0.447, abs=0.005)
    assert float(_entropy(votes).mean()) == pytest.approx(0.150, abs=0.003)
    assert float((votes.argmax(1) == classes).double().mean()) == pytest.approx(0.990, abs=0.003)


def test_doubt_follows_the_image() -> None:
    # people who see the same image doubt it alike: votes scatter where the probabilities do, and only there
    expected = -torch.special.xlogy(*[vote_probabilities(*digit_images())] * 2).sum(1)
    measured = _entropy(simulated_votes())
    ranks = torch.stack([expected.argsort().argsort(), measured.argsort().argsort()]).double()
    assert float(torch.corrcoef(ranks)[0, 1]) > 0.6
    hardest = expected.argsort(descending=True)[:180]
    assert measured[hardest].mean() > 4 * measured.mean()


def test_probabilities_do_not_look_at_the_image_itself() -> None:
    # an image twice in the set is near to its copy, but never to itself
    images, classes = digit_images()
    few = torch.arange(200)
    probabilities = vote_probabilities(images[few], classes[few])
    torch.testing.assert_close(probabilities.sum(1), torch.ones(200, dtype=torch.float64))
    assert (probabilities > 0).all()


def test_votes_and_test_images_are_the_same_whatever_the_seeds() -> None:
    first, other = DigitsVotes("full").data, DigitsVotes("full", annotation_seed=3, split_seed=4, loader_seed=5).data
    assert first.full_votes is not None and other.full_votes is not None
    assert torch.equal(first.full_votes, other.full_votes) and torch.equal(first.test_x, other.test_x)
    assert torch.equal(first.test_x, Digits("clean").data.test_x)


# --- budgets --------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(k=st.integers(1, 59), seed=SEEDS)
def test_fewer_votes_are_part_of_the_items_votes_and_of_more_votes(k: int, seed: int) -> None:
    fewer, more = (DigitsVotes(f"votes={n}", annotation_seed=seed).data for n in (k, min(59, k + 5)))
    kept, wider, full = fewer.annotations.votes(), more.annotations.votes(), fewer.full_votes
    assert full is not None
    assert (kept <= wider).all() and (wider <= full).all()
    assert torch.equal(kept.sum(1), full.sum(1).clamp_max(k))
    has_fewer = full.sum(1) <= k
    assert torch.equal(kept[has_fewer], full[has_fewer])


@settings(max_examples=10)
@given(k=st.integers(1, 200), seed=SEEDS)
def test_with_replacement_every_item_has_k_votes_of_its_own_classes(k: int, seed: int) -> None:
    data = DigitsVotes(f"votes={k}", annotation_seed=seed, replacement=True).data
    kept = data.annotations.votes()
    assert data.full_votes is not None
    assert (kept.sum(1) == k).all() and (kept[data.full_votes == 0] == 0).all()


def test_one_seed_is_one_draw_whatever_else_differs() -> None:
    base = DigitsVotes("votes=5", annotation_seed=3)
    same = DigitsVotes("votes=5", annotation_seed=3, split_seed=9, loader_seed=9, batch_size=7, val_fraction=0.2)
    other = DigitsVotes("votes=5", annotation_seed=4)
    assert base.data.annotations.equals(same.data.annotations) and base.digest() == same.digest()
    assert not base.data.annotations.equals(other.data.annotations) and base.digest() != other.digest()


def test_held_out_items_have_the_budget_too_and_test_items_all_votes() -> None:
    module = DigitsVotes("votes=5")
    assert module.val_annotations.labels_per_item()[module.val_items].unique().tolist() == [5]
    tested, full = module.data.test_annotations, DigitsVotes("full").data.test_annotations
    assert tested is not None and full is not None and tested.equals(full)
    assert int(tested.labels_per_item().min()) >= 47


def test_more_votes_than_anybody_has_are_refused_with_both_numbers() -> None:
    with pytest.raises(VoteError, match=r"'votes=64' of data set 'digits_votes': K is 64, .* more than 61 votes"):
        DigitsVotes("votes=64").digest()
    assert DigitsVotes("votes=64", replacement=True).data.annotations.n_annotators == 64


@settings(max_examples=30)
@given(rows=st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=6))
def test_pooled_votes_keep_their_counts(rows: list[list[int]]) -> None:
    votes = torch.tensor(rows)
    noted = pooled_annotations(votes)
    assert torch.equal(noted.votes(), votes)
    annotators, _ = noted.padded()
    for row, count in zip(annotators.tolist(), votes.sum(1).tolist(), strict=True):
        assert [number for number in row if number != -1] == list(range(count))


def test_data_is_declared_as_votes_without_annotators() -> None:
    assert DigitsVotes.provides == {"images", "votes"}
    assert len({DigitsVotes.regime_family(regime) for regime in ("full", "votes=5", "votes=10")}) == 1


# --- features in the items' place -----------------------------------------------------------------


def _features(module: DigitsVotes) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(x.flatten(1).float() / 255 for x in (module.data.x, module.data.test_x))  # type: ignore[return-value]


def test_features_reach_every_batch_unchanged() -> None:
    module = DigitsVotes("votes=5", batch_size=64)
    items, digest = module.train_items, module.digest()
    train, tested = _features(module)
    module.represent(train, tested)
    assert module.info.input_shape == (64,) and module.digest() == digest
    module.request({"x": "standard", "weak": "weak_noflip"}, {})
    seen = []
    for batch in module.train_dataloader():
        assert torch.equal(batch["x"], train[batch["index"]]) and torch.equal(batch["weak"], batch["x"])
        seen.append(batch["index"])
    assert torch.equal(torch.cat(seen).sort().values, items)
    assert torch.equal(torch.cat([batch["x"] for batch in module.test_dataloader()]), tested)
    given = torch.cat([batch["x"] for batch in module.item_dataloader(train[:9], batch_size=4)])
    assert torch.equal(given, train[:9])


def test_features_that_do_not_fit_are_refused() -> None:
    module = DigitsVotes("full")
    train, tested = _features(module)
    for features, message in (
        ((train[1:], tested), "train_x: 1256 rows of features for 1257 items"),
        ((train, tested[:, 1:]), r"an item is \(64,\) in train_x and \(63,\) in test_x"),
        ((train.long(), tested), "train_x: torch.int64"),
        ((train, tested / 0), "test_x: the features hold NaN or infinite"),
        ((module.data.x, tested), "give floats"),
    ):
        with pytest.raises(ValueError, match=message):
            module.represent(*features)
    assert module.info.input_shape == (1, 8, 8)
    module.test_dataloader()
    with pytest.raises(RuntimeError, match="call represent"):
        module.represent(train, tested)


def test_items_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"items have shape \(3, 8, 8\); those of digits_votes \(1, 8, 8\)"):
        DigitsVotes("full").item_dataloader(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))


# --- images of other things -----------------------------------------------------------------------


def test_out_of_distribution_images_have_the_form_of_the_items() -> None:
    module = DigitsVotes("full")
    found = {name: module.load_ood(name) for name in module.ood_sets}
    assert {name: tuple(images.shape) for name, images in found.items()} == {
        "photographs": (520, 1, 8, 8),
        "shuffled_digits": (540, 1, 8, 8),
    }
    for name, images in found.items():
        assert images.dtype == torch.uint8 and module.ood_digest(name) == hash_tensors(images)


def test_shuffled_digits_keep_each_images_pixels_and_lose_the_digit() -> None:
    module = DigitsVotes("full")
    shuffled, tested = module.load_ood("shuffled_digits"), module.data.test_x
    assert torch.equal(shuffled.flatten(1).sort(1).values, tested.flatten(1).sort(1).values)
    assert not (shuffled == tested).flatten(1).all(1).any()


def test_unknown_set_lists_those_there_are() -> None:
    for ask in (DigitsVotes("full").load_ood, DigitsVotes("full").ood_digest):
        with pytest.raises(UnknownName, match="did you mean photographs"):
            ask("photograph")
    with pytest.raises(UnknownName, match="there are: none"):
        Digits("clean").load_ood("svhn")
