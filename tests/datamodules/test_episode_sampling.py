"""Episodes by index arithmetic: what must hold for any classes, sizes and seeds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from datamodules.annotations import Annotations
from datamodules.crowd_episodes import CrowdLabels
from datamodules.episode_sampling import Episodes, PoolIndex, in_episode, sample_episodes, wrong_labels

SIZES = st.lists(st.integers(5, 12), min_size=3, max_size=7)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _classes(sizes: list[int], seed: int) -> Tensor:
    """Class ids with gaps, shuffled."""
    classes = (3 * torch.arange(len(sizes)) + 2).repeat_interleave(torch.tensor(sizes))
    return classes[torch.randperm(len(classes), generator=_seeded(seed))]


def _all_different(rows: Tensor) -> bool:
    return all(len(row.unique()) == len(row) for row in rows)


@settings(max_examples=40, deadline=None)
@given(
    sizes=SIZES, ways=st.integers(2, 3), shots=st.integers(1, 3), queries=st.integers(1, 2), seed=st.integers(0, 999)
)
def test_support_and_query_are_disjoint_and_labelled_rightly(
    sizes: list[int], ways: int, shots: int, queries: int, seed: int
) -> None:
    classes = _classes(sizes, seed)
    made = sample_episodes(PoolIndex.of(classes), 6, ways, shots, queries, _seeded(seed))
    assert made.support.shape == (6, ways * shots) and made.query.shape == (6, ways * queries)
    assert _all_different(torch.cat([made.support, made.query], 1))
    assert _all_different(made.class_ids)
    for rows, places in ((made.support, made.support_y), (made.query, made.query_y)):
        assert torch.equal(classes[rows], made.class_ids.gather(1, places))


@settings(max_examples=25, deadline=None)
@given(sizes=SIZES, liked=st.floats(0, 1), shots=st.integers(1, 3), seed=st.integers(0, 999))
def test_preferred_items_come_first_and_nothing_else_changes(
    sizes: list[int], liked: float, shots: int, seed: int
) -> None:
    classes = _classes(sizes, seed)
    mask = torch.rand(5, len(classes), generator=_seeded(seed + 1)) < liked
    made = sample_episodes(PoolIndex.of(classes), 5, 3, shots, 2, _seeded(seed), preferred=mask)
    assert _all_different(torch.cat([made.support, made.query], 1))
    assert torch.equal(classes[made.support], made.class_ids.gather(1, made.support_y))
    for episode, row in enumerate(made.support.view(5, 3, shots)):
        for place, items in enumerate(row):
            there = int((mask[episode] & (classes == made.class_ids[episode, place])).sum())
            assert int(mask[episode, items].sum()) == min(there, shots)


def test_every_class_and_item_is_drawn_alike() -> None:
    classes = _classes([5, 10, 20], 0)
    made = sample_episodes(PoolIndex.of(classes), 6000, 2, 1, 2, _seeded(0))
    of_class = torch.bincount(made.class_ids.flatten(), minlength=9)[[2, 5, 8]] / 12_000
    torch.testing.assert_close(of_class, torch.full((3,), 1 / 3), atol=0.02, rtol=0)
    drawn = torch.bincount(made.query.flatten(), minlength=35)
    for label, size in ((2, 5), (5, 10), (8, 20)):
        shares = drawn[classes == label] / drawn[classes == label].sum()
        torch.testing.assert_close(shares, torch.full((size,), 1 / size), atol=0.02, rtol=0)


def test_queries_may_come_from_other_items() -> None:
    classes, others = _classes([5, 6, 7], 0), _classes([3, 3, 3], 1)
    made = sample_episodes(PoolIndex.of(classes), 8, 3, 5, 3, _seeded(0), query_index=PoolIndex.of(others))
    assert torch.equal(classes[made.support], made.class_ids.gather(1, made.support_y))
    assert torch.equal(others[made.query], made.class_ids.gather(1, made.query_y))
    assert _all_different(made.support) and _all_different(made.query)


def test_the_same_seed_gives_the_same_episodes_whatever_lies_between() -> None:
    index = PoolIndex.of(_classes([8] * 6, 0))

    def sample(seed: int) -> Episodes:
        return sample_episodes(index, 4, 3, 2, 3, _seeded(seed))

    first, other, again = sample(1), sample(2), sample(1)
    assert torch.equal(first.support, again.support) and torch.equal(first.query, again.query)
    assert not torch.equal(first.support, other.support)


def test_too_few_classes_or_items_are_one_sentence() -> None:
    index = PoolIndex.of(_classes([5, 6, 7], 0))
    with pytest.raises(ValueError, match="has 3 classes, fewer than the 4 ways"):
        sample_episodes(index, 1, 4, 1, 1, _seeded(0))
    with pytest.raises(ValueError, match="class 2 has 5 items, fewer than 2 shots and 4 queries"):
        sample_episodes(index, 1, 3, 2, 4, _seeded(0))
    with pytest.raises(ValueError, match="of other classes"):
        sample_episodes(index, 1, 3, 2, 4, _seeded(0), query_index=PoolIndex.of(torch.tensor([2, 2, 5])))


@settings(max_examples=25, deadline=None)
@given(sizes=SIZES, share=st.floats(0, 0.6), seed=st.integers(0, 99))
def test_wrong_labels_are_no_more_than_asked_and_classes_keep_their_size(
    sizes: list[int], share: float, seed: int
) -> None:
    classes = _classes(sizes, seed)
    given_labels = wrong_labels(classes, share, _seeded(seed))
    assert torch.equal(classes.sort().values, given_labels.sort().values)
    # of a handful of items, half of them of one class, not all can end up with another one's label
    assert int((classes != given_labels).sum()) <= round(share * len(classes))


def test_wrong_labels_of_many_items_are_exact() -> None:
    classes = torch.arange(20).repeat(50)
    assert int((wrong_labels(classes, 0.4, _seeded(0)) != classes).sum()) == 400


def test_answers_of_other_classes_are_left_out() -> None:
    labels = torch.tensor([[[7, -1, 3], [4, 7, 9]]])
    assert in_episode(labels, torch.tensor([[3, 7]])).tolist() == [[[1, -1, 0], [-1, 1, -1]]]


def _crowd(n_items: int = 60, n_annotators: int = 8) -> Annotations:
    dense = torch.randint(0, 4, (n_items, n_annotators), generator=_seeded(0))
    busy = torch.linspace(0.05, 0.8, n_annotators)
    return Annotations.from_dense(dense.masked_fill(torch.rand(dense.shape, generator=_seeded(1)) > busy, -1), 4)


@pytest.mark.parametrize("outside", ["left_out", "guessed"])
def test_fewer_real_annotators_are_the_first_of_more(outside: Any) -> None:
    # guesses were drawn for as many annotators as were asked, so they changed with their number
    noted = _crowd()
    for pooled in (False, True):
        crowd = CrowdLabels.of(noted, pooled, outside)
        order = crowd.order(5, _seeded(2))
        index = PoolIndex.of(torch.arange(60) % 4)
        made = sample_episodes(index, 5, 3, 2, 3, _seeded(3), preferred=crowd.preferred(order, 3))
        few, many = (crowd.labels(made, order, n, _seeded(4)) for n in (3, 5))
        assert torch.equal(few, many[..., :3])
        assert (few >= 0).any()


def test_real_labels_are_those_that_the_annotators_gave() -> None:
    noted = _crowd()
    crowd = CrowdLabels.of(noted, pooled=False)
    order = crowd.order(5, _seeded(2))
    assert _all_different(order)
    made = sample_episodes(PoolIndex.of(torch.arange(60) % 4), 5, 3, 2, 3, _seeded(3))
    labels = crowd.labels(made, order, 4, _seeded(4))
    triples = zip(noted.items.tolist(), noted.annotators.tolist(), noted.labels.tolist(), strict=True)
    given_labels = {(item, annotator): label for item, annotator, label in triples}
    for episode in range(5):
        places = {int(c): p for p, c in enumerate(made.class_ids[episode])}
        for place, item in enumerate(made.support[episode].tolist()):
            for column, annotator in enumerate(order[episode, :4].tolist()):
                said = places.get(given_labels.get((item, annotator), -1), -1)
                assert int(labels[episode, place, column]) == said


def test_pooled_votes_are_drawn_without_replacement() -> None:
    noted = _crowd()
    crowd = CrowdLabels.of(noted, pooled=True)
    made = sample_episodes(PoolIndex.of(torch.arange(60) % 4), 5, 4, 2, 3, _seeded(3))
    most = crowd.table.shape[1]
    labels = crowd.labels(made, crowd.order(5, _seeded(2)), most, _seeded(4))
    votes = torch.stack([(labels == place).sum(-1) for place in range(4)], -1)
    expected = noted.votes()[made.support].gather(-1, made.class_ids[:, None].expand(-1, 8, -1))
    assert torch.equal(votes, expected)
