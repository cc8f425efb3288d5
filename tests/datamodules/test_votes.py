"""Tables of votes: a budget is part of what there was, the same for one seed, and bad tables are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from datamodules.votes import budget_votes, check_votes

SEEDS = st.integers(0, 2**31 - 1)


@st.composite
def vote_tables(draw: st.DrawFn) -> Tensor:
    """Votes [N, C], at least one an item, with classes nobody voted for."""
    shape = draw(st.tuples(st.integers(1, 9), st.integers(1, 5)))
    table = draw(arrays.arrays(np.int64, shape, elements=st.integers(0, 6)))
    table[:, draw(st.integers(0, shape[1] - 1))] += table.sum(1) == 0
    return torch.from_numpy(table)


@settings(max_examples=40)
@given(votes=vote_tables(), seed=SEEDS, data=st.data())
def test_a_budget_is_a_subset_and_items_with_fewer_votes_keep_all(
    votes: Tensor, seed: int, data: st.DataObject
) -> None:
    counts = votes.sum(1)
    k = data.draw(st.integers(1, int(counts.max())))
    kept = budget_votes(votes, k, seed)
    assert (kept <= votes).all() and (kept >= 0).all()
    assert torch.equal(kept.sum(1), counts.clamp_max(k))
    assert torch.equal(kept[counts <= k], votes[counts <= k])
    assert torch.equal(kept, budget_votes(votes, k, seed))
    assert (budget_votes(votes, max(1, k - 1), seed) <= kept).all()


@settings(max_examples=20)
@given(votes=vote_tables(), seed=SEEDS, k=st.integers(1, 60))
def test_with_replacement_every_item_gets_k_votes_from_its_own_classes(votes: Tensor, seed: int, k: int) -> None:
    drawn = budget_votes(votes, k, seed, replacement=True)
    assert (drawn.sum(1) == k).all() and (drawn[votes == 0] == 0).all()
    assert torch.equal(drawn, budget_votes(votes, k, seed, replacement=True))


def test_budgets_keep_each_vote_with_the_same_probability() -> None:
    votes = torch.tensor([[6, 3, 1]]).repeat(20_000, 1)
    for replacement in (False, True):
        mean = budget_votes(votes, 5, 0, replacement).double().mean(0)
        torch.testing.assert_close(mean, torch.tensor([3, 1.5, 0.5]).double(), atol=0.04, rtol=0)
    # the one vote of the last class is kept at most once without replacement
    assert int(budget_votes(votes, 5, 0)[:, 2].max()) == 1
    assert int(budget_votes(votes, 5, 0, replacement=True)[:, 2].max()) > 1


def test_bad_votes_are_refused_with_their_row_and_the_remedy() -> None:
    good = torch.tensor([[1, 2], [3, 0]])
    for call in (check_votes, lambda votes: budget_votes(votes, 1, 0)):
        with pytest.raises(ValueError, match=r"row 1 are \[-1, 3\]: a count is negative"):
            call(torch.tensor([[1, 2], [-1, 3]]))
        with pytest.raises(ValueError, match=r"row 1 has no votes \(in all 1 of 2 rows\); leave out"):
            call(torch.tensor([[1, 2], [0, 0]]))
        with pytest.raises(ValueError, match=r"row 1 holds \[0.5, 0.5\]; give counts, not frequencies"):
            call(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
        with pytest.raises(ValueError, match=r"votes are float32; .* pass votes.long\(\)"):
            call(good.float())
        with pytest.raises(ValueError, match=r"shape \(2,\); \[items, classes\]"):
            call(good[0])
    with pytest.raises(ValueError, match="k is 0"):
        budget_votes(good, 0, 0)
    with pytest.raises(ValueError, match="k is 4, but no item has more than 3 votes"):
        budget_votes(good, 4, 0)


def test_no_items_have_no_votes() -> None:
    assert budget_votes(torch.zeros(0, 3, dtype=torch.long), 2, 0).shape == (0, 3)
