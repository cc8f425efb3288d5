"""Splits: parts are apart, sized as said, the released one is scikit-learn's, and no exemplar is on both sides."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from datamodules.split import exemplar_split, random_split, released_split

SEEDS = st.integers(0, 2**31 - 1)


@given(n_items=st.integers(4, 400), seed=SEEDS)
def test_a_random_split_covers_all_items_once(n_items: int, seed: int) -> None:
    split = random_split(n_items, seed)
    assert torch.equal(torch.cat([split.learn, split.test]).sort().values, torch.arange(n_items))
    assert len(split.test) == round(0.15 * n_items)
    assert torch.equal(split.test, random_split(n_items, seed).test)


def test_too_few_items_are_refused() -> None:
    with pytest.raises(ValueError, match="2 items cannot be split"):
        random_split(2, 0)
    with pytest.raises(ValueError, match="at least 5"):
        released_split(4)


@given(n_items=st.integers(5, 400))
def test_the_released_split_is_that_of_the_scripts(n_items: int) -> None:
    names = [f"item{number}" for number in range(n_items)]
    train, aside = train_test_split(names, test_size=0.3, random_state=42)
    val, test = train_test_split(aside, test_size=0.5, random_state=42)
    split = released_split(n_items)
    assert split.val_items is not None
    held_out = torch.zeros(len(split.learn), dtype=torch.bool)
    held_out[split.val_items] = True
    parts = (split.learn[~held_out], split.learn[held_out], split.test)
    assert [{names[row] for row in part.tolist()} for part in parts] == [set(train), set(val), set(test)]


def test_street_has_645_test_items() -> None:
    assert len(released_split(4_300).test) == 645


@given(
    pairs=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 5)), min_size=1, max_size=80, unique=True), seed=SEEDS
)
def test_no_exemplar_is_both_tested_and_learned_from(pairs: list[tuple[int, int]], seed: int) -> None:
    # 12 shapes and 6 textures of 3 classes
    exemplars = [(f"shape{shape}", f"texture{texture}") for shape, texture in pairs]
    split = exemplar_split(exemplars, [(shape % 3, texture % 3) for shape, texture in pairs], (0.3, 0.5), seed)
    learned, tested = ([exemplars[row] for row in part.tolist()] for part in (split.learn, split.test))
    for kind in (0, 1):
        assert not {pair[kind] for pair in learned} & {pair[kind] for pair in tested}
    assert not set(split.learn.tolist()) & set(split.test.tolist())


def test_every_class_keeps_exemplars_on_both_sides() -> None:
    exemplars = [(f"s{shape}", f"t{texture}") for shape in range(12) for texture in range(6)]
    classes = [(shape % 3, texture % 3) for shape in range(12) for texture in range(6)]
    split = exemplar_split(exemplars, classes, (0.25, 0.5), seed=1)
    assert len(split.test) == 3 * 3 and len(split.learn) == 9 * 3
    for part in (split.learn, split.test):
        for kind in (0, 1):
            assert {classes[row][kind] for row in part.tolist()} == {0, 1, 2}
