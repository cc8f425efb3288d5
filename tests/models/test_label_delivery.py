"""Label delivery: every vote its turn, the soft gradient in expectation, and the same labels for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from models.label_delivery.delivery import deliver, parse_delivery, vote_lists

HARD = ["majority", "multipass", "deterministic", "sls", "shuffled_sls", "stale(3)"]
SEEDS = st.integers(0, 2**31 - 1)


def histogram(labels: Tensor, n_classes: int) -> Tensor:
    """How often each class is among labels ``[K, N]``, for each item: ``[N, C]``."""
    return torch.nn.functional.one_hot(labels, n_classes).sum(0)


@st.composite
def vote_tables(draw: st.DrawFn) -> Tensor:
    """Votes [N, C], at least one an item, with classes nobody voted for."""
    shape = draw(st.tuples(st.integers(1, 9), st.integers(1, 5)))
    table = draw(arrays.arrays(np.int64, shape, elements=st.integers(0, 6)))
    table[:, draw(st.integers(0, shape[1] - 1))] += table.sum(1) == 0
    return torch.from_numpy(table)


def people(n: int = 400, n_classes: int = 5, seed: int = 0) -> Tensor:
    """Votes of 1 to 25 people an item, in doubt between few classes."""
    generator = torch.Generator().manual_seed(seed)
    votes = torch.randint(-12, 6, (n, n_classes), generator=generator).clamp_min(0)
    votes[torch.arange(n), torch.randint(n_classes, (n,), generator=generator)] += 1
    return votes


# --- each delivery as it is defined -----------------------------------------------------------


@settings(max_examples=40)
@given(votes=vote_tables(), seed=SEEDS, name=st.sampled_from(["multipass", "deterministic"]), lap=st.integers(0, 3))
def test_multipass_shows_each_vote_exactly_once_in_m_epochs(votes: Tensor, seed: int, name: str, lap: int) -> None:
    for m in votes.sum(1).unique().tolist():
        labels = torch.stack([deliver(name, votes, lap * m + step, seed) for step in range(m)])
        own = votes.sum(1) == m
        assert torch.equal(histogram(labels, votes.shape[1])[own], votes[own])


def test_multipass_repeats_its_order_and_the_control_has_another() -> None:
    votes = torch.full((300, 3), 4)
    laps = [torch.stack([deliver("multipass", votes, lap * 12 + step, 7) for step in range(12)]) for lap in range(2)]
    assert torch.equal(laps[0], laps[1])
    control = torch.stack([deliver("deterministic", votes, step, 7) for step in range(12)])
    assert 0.3 < float((control == laps[0]).double().mean()) < 0.37  # a third by chance
    lists = vote_lists(votes, 7)
    assert torch.equal(torch.stack([lists.entry(step) for step in range(12)]), laps[0])


def test_every_order_of_the_votes_is_equally_likely() -> None:
    votes = torch.tensor([[2, 1, 1]]).repeat(12_000, 1)
    first = torch.stack([deliver("multipass", votes, step, 1) for step in range(4)])
    _, counts = first.unique(dim=1, return_counts=True)
    assert len(counts) == 12  # 4! / 2!
    deviation = (counts - 1000).double() / (1000 * 11 / 12) ** 0.5
    assert float(deviation.abs().max()) < 4.5


@settings(max_examples=30)
@given(votes=vote_tables(), seed=SEEDS, epoch=st.integers(0, 99))
def test_soft_and_majority_are_the_frequencies_and_their_top(votes: Tensor, seed: int, epoch: int) -> None:
    frequencies = deliver("soft", votes, epoch, seed)
    assert frequencies.dtype == torch.float32
    torch.testing.assert_close(frequencies, votes.float() / votes.sum(1, keepdim=True))
    winners = deliver("majority", votes, epoch, seed)
    assert torch.equal(votes.gather(1, winners.unsqueeze(1)).squeeze(1), votes.max(1).values)
    assert torch.equal(winners, deliver("majority", votes, epoch + 1, seed))


def test_ties_of_the_majority_are_broken_evenly() -> None:
    winners = deliver("majority", torch.tensor([[3, 0, 3]]).repeat(4000, 1), 0, 0)
    assert set(winners.tolist()) == {0, 2}
    assert 0.46 < float((winners == 0).double().mean()) < 0.54


@settings(max_examples=30)
@given(
    votes=vote_tables(), seed=SEEDS, epoch=st.integers(0, 99), name=st.sampled_from(["sls", "stale(4)", "multipass"])
)
def test_a_class_without_a_vote_is_never_delivered(votes: Tensor, seed: int, epoch: int, name: str) -> None:
    labels = deliver(name, votes, epoch, seed)
    assert labels.dtype == torch.int64 and labels.shape == votes.shape[:1]
    assert (votes.gather(1, labels.unsqueeze(1)) > 0).all()


@settings(max_examples=20)
@given(seed=SEEDS, kept=st.integers(1, 7), epoch=st.integers(0, 40))
def test_stale_keeps_a_label_for_its_epochs(seed: int, kept: int, epoch: int) -> None:
    votes = people(60)
    begin = epoch // kept * kept
    labels = deliver(f"stale({kept})", votes, epoch, seed)
    assert torch.equal(labels, deliver(f"stale({kept})", votes, begin, seed))
    assert not torch.equal(labels, deliver(f"stale({kept})", votes, begin + kept, seed))
    assert torch.equal(deliver("stale(1)", votes, epoch, seed), deliver("sls", votes, epoch, seed))


@settings(max_examples=20)
@given(seed=SEEDS, epoch=st.integers(0, 40))
def test_shuffled_sls_keeps_the_histogram_and_loses_the_pairing(seed: int, epoch: int) -> None:
    votes = torch.nn.functional.one_hot(torch.arange(600) % 6, 6) * 5  # unanimous: sls has only one answer
    truth, shuffled = deliver("sls", votes, epoch, seed), deliver("shuffled_sls", votes, epoch, seed)
    assert torch.equal(truth, votes.argmax(1))
    assert torch.equal(shuffled.bincount(minlength=6), truth.bincount(minlength=6))
    assert float((shuffled == truth).double().mean()) < 0.3  # 1/6 by chance
    # items are dealt once: with unanimous votes every epoch says the same
    assert torch.equal(shuffled, deliver("shuffled_sls", votes, epoch + 1, seed))


# --- Proposition 1 ----------------------------------------------------------------------------


def gradients(logits: Tensor, labels: Tensor) -> Tensor:
    """Gradient [..., C] of the cross-entropy with regard to logits [C], for labels [...]."""
    leaf = logits.expand(*labels.shape, -1).clone().requires_grad_()
    torch.nn.functional.cross_entropy(leaf.flatten(0, -2), labels.flatten(), reduction="sum").backward()
    assert leaf.grad is not None
    return leaf.grad


def soft_gradient(logits: Tensor, frequencies: Tensor) -> Tensor:
    """Gradient [C] of the soft cross-entropy."""
    leaf = logits.clone().requires_grad_()
    torch.nn.functional.cross_entropy(leaf, frequencies).backward()
    assert leaf.grad is not None
    return leaf.grad


@settings(max_examples=25)
@given(votes=vote_tables(), seed=SEEDS)
def test_over_all_votes_mean_loss_and_gradient_are_the_soft_ones_and_the_covariance_that_of_a_draw(
    votes: Tensor, seed: int
) -> None:
    # exact: a lap of multipass shows every vote once, so its mean is the expectation of a draw
    logits = torch.randn(votes.shape[1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    m = int(votes[0].sum())
    labels = torch.stack([deliver("multipass", votes[:1], step, seed)[0] for step in range(m)])
    found = gradients(logits, labels)
    p = votes[0].double() / m
    torch.testing.assert_close(found.mean(0), soft_gradient(logits, p))
    losses = torch.nn.functional.cross_entropy(logits.expand(m, -1), labels, reduction="none")
    torch.testing.assert_close(losses.mean(), torch.nn.functional.cross_entropy(logits, p))
    centred = found - found.mean(0)
    torch.testing.assert_close(centred.t() @ centred / m, p.diag() - p.outer(p))
    excess = found.square().sum(1).mean() - soft_gradient(logits, p).square().sum()
    torch.testing.assert_close(excess, 1 - p.square().sum())


def test_the_mean_gradient_of_sls_is_the_soft_one_and_its_covariance_is_diag_p_less_pp() -> None:
    n_draws, votes = 200_000, torch.tensor([[5, 0, 2, 1, 12]])
    logits = torch.tensor([0.3, -1.0, 2.0, 0.0, -0.5], dtype=torch.float64)
    p = (votes / votes.sum())[0].double()
    found = gradients(logits, deliver("sls", votes.repeat(n_draws, 1), 3, 0))
    bound = 4.5 * 0.5 / n_draws**0.5  # an entry's standard deviation is at most a half
    torch.testing.assert_close(found.mean(0), soft_gradient(logits, p), atol=bound, rtol=0)
    torch.testing.assert_close(found.t().cov(), p.diag() - p.outer(p), atol=bound, rtol=0)


def test_epochs_of_sls_are_independent_draws() -> None:
    votes = torch.tensor([[1, 1]]).repeat(20_000, 1)
    first, second = (deliver("sls", votes, epoch, 0).double() for epoch in (0, 1))
    assert abs(float(torch.stack([first, second]).corrcoef()[0, 1])) < 4.5 / 20_000**0.5
    assert abs(float(torch.stack([first[1:], first[:-1]]).corrcoef()[0, 1])) < 4.5 / 20_000**0.5


# --- seeds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*HARD, "soft"])
def test_the_same_arguments_give_the_same_bits_whatever_was_drawn_before(name: str) -> None:
    votes = people()
    before = votes.clone()
    first = deliver(name, votes, 5, 11)
    torch.rand(3)
    state = torch.get_rng_state()
    assert torch.equal(first, deliver(name, votes.int(), 5, 11))
    assert torch.equal(state, torch.get_rng_state()) and torch.equal(votes, before)


@pytest.mark.parametrize("name", ["multipass", "deterministic", "sls", "shuffled_sls"])
def test_other_epochs_and_other_seeds_give_other_labels(name: str) -> None:
    votes = people()
    first = deliver(name, votes, 0, 0)
    assert not torch.equal(first, deliver(name, votes, 1, 0))
    assert not torch.equal(first, deliver(name, votes, 0, 1))


# --- bad input --------------------------------------------------------------------------------


def test_bad_votes_are_refused_with_their_row_and_the_remedy() -> None:
    good = torch.tensor([[1, 2], [3, 0]])
    with pytest.raises(ValueError, match=r"row 1 are \[-1, 3\]: a count is negative"):
        deliver("sls", torch.tensor([[1, 2], [-1, 3]]), 0, 0)
    with pytest.raises(ValueError, match=r"row 1 has no votes \(in all 1 of 2 rows\); leave out"):
        deliver("sls", torch.tensor([[1, 2], [0, 0]]), 0, 0)
    with pytest.raises(ValueError, match=r"votes are float32; .* pass votes.long\(\)"):
        deliver("sls", good.float(), 0, 0)
    with pytest.raises(ValueError, match="epoch is -1"):
        deliver("sls", good, -1, 0)


@pytest.mark.parametrize("name", ["multipas", "stale5", "shuffled-sls"])
def test_an_unknown_name_lists_near_ones(name: str) -> None:
    with pytest.raises(ValueError, match=r"unknown delivery: .*(did you mean|there are)"):
        deliver(name, torch.tensor([[1]]), 0, 0)


@pytest.mark.parametrize("name", ["stale", "stale()", "stale(0)", "stale(-1)", "stale(1.5)", "stale(E)"])
def test_stale_needs_a_number_of_epochs(name: str) -> None:
    with pytest.raises(ValueError, match="at least 1, e.g. 'stale"):
        parse_delivery(name)


@pytest.mark.parametrize("name", [*HARD, "soft"])
def test_no_items_are_no_labels(name: str) -> None:
    assert len(deliver(name, torch.zeros(0, 3, dtype=torch.long), 0, 0)) == 0
