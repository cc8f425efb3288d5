"""Splits of the items of one table into those that methods learn from and those that they are tested on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from datamodules.seeds import derive_seed

#: 70/15/15: of the items, 15 % are tested; of the rest, 15/85 are held out for validation
TEST_SHARE = 0.15
VAL_SHARE = 0.15 / 0.85


@dataclass(frozen=True)
class ItemSplit:
    """Rows of a table of N items.

    Attributes:
        learn: rows ``[n]`` int64, ascending: training and validation items.
        test: rows ``[m]`` int64, ascending.
        val_items: places in ``learn`` of the validation items where they are fixed; None: they are drawn later.
    """

    learn: Tensor
    test: Tensor
    val_items: Tensor | None = None


def random_split(n_items: int, seed: int, test_share: float = TEST_SHARE) -> ItemSplit:
    """Tests a share of the items, drawn at random by ``seed``.

    Raises:
        ValueError: if that leaves no item to test or to learn from.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed=seed, purpose="test items"))
    order = torch.randperm(n_items, generator=generator)
    n_test = round(test_share * n_items)
    if not 0 < n_test < n_items:
        raise ValueError(f"{n_items} items cannot be split into a part to learn from and {test_share:.0%} to test")
    return ItemSplit(order[n_test:].sort().values, order[:n_test].sort().values)


def released_split(n_items: int, random_state: int = 42) -> ItemSplit:
    """The split of QuMATL's released scripts for STREET and AMER, which no seed of ours changes.

    scikit-learn's ``train_test_split`` sets 30 % aside, then halves those: the first half is validation, the
    second test (arXiv 2503.15237; repository QuMAB).

    Raises:
        ValueError: for fewer than 5 items, of which a part would be empty.
    """
    from sklearn.model_selection import train_test_split

    if n_items < 5:
        raise ValueError(f"{n_items} items; at least 5 are needed for a split into 70/15/15")
    train, aside = train_test_split(np.arange(n_items), test_size=0.3, random_state=random_state)
    val, test = train_test_split(aside, test_size=0.5, random_state=random_state)
    learn = np.sort(np.concatenate([train, val]))
    return ItemSplit(
        torch.from_numpy(learn),
        torch.from_numpy(np.sort(test)),
        torch.from_numpy(np.flatnonzero(np.isin(learn, val))),
    )


def exemplar_split(
    exemplars: Sequence[tuple[str, str]], classes: Sequence[tuple[int, int]], held_out: tuple[float, float], seed: int
) -> ItemSplit:
    """No test item shares a part that it is composed of with an item to learn from.

    Of each class a share of its exemplars is set aside. Items of which both parts are set aside are tested, those
    of which none is are learned from; those with one of each are in neither.

    Args:
        exemplars: the two exemplars that each item is composed of, e.g. of shape and of texture.
        classes: their classes.
        held_out: share of a class's exemplars that is set aside, of either kind; at least one is, and one is not.
        seed: seed of the choice.
    """
    chosen = torch.ones(2, len(exemplars), dtype=torch.bool)
    for kind in (0, 1):
        members: dict[int, set[str]] = {}
        for exemplar, label in zip(exemplars, classes, strict=True):
            members.setdefault(label[kind], set()).add(exemplar[kind])
        random = np.random.default_rng(derive_seed(seed=seed, kind=kind, purpose="held-out exemplars"))
        aside = {name for label in sorted(members) for name in _choose(sorted(members[label]), held_out[kind], random)}
        chosen[kind] = torch.tensor([exemplar[kind] in aside for exemplar in exemplars])
    return ItemSplit((~chosen).all(0).nonzero().flatten(), chosen.all(0).nonzero().flatten())


def _choose(names: list[str], share: float, random: np.random.Generator) -> list[str]:
    n_chosen = min(max(1, round(share * len(names))), len(names) - 1)
    return [names[place] for place in random.permutation(len(names))[:n_chosen]]
