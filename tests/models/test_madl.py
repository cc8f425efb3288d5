"""MaDL: a classifier, and confusions of annotators."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Gamma

from benchmark.testing import iter_checks
from datamodules.base import DataInfo
from models.madl.confusions import (
    GAMMA_START,
    annotator_weights,
    label_log_probabilities,
    starting_logits,
    weighted_loss,
)
from models.madl.module import Madl

TOKENS = DataInfo(n_classes=5, n_annotators=6, input_shape=(4, 8))


def items() -> Tensor:
    return torch.randn(7, 4, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("check", list(iter_checks(Madl, data_info=TOKENS)), ids=str)
def test_contract(check) -> None:  # type: ignore[no-untyped-def]
    check()


@pytest.mark.parametrize("check", list(iter_checks(Madl, data_info=TOKENS, item_dependent=False)), ids=str)
def test_contract_of_confusions_that_no_item_changes(check) -> None:  # type: ignore[no-untyped-def]
    check()


def test_a_label_comes_from_the_row_of_the_true_class() -> None:
    torch.manual_seed(0)
    classes, confusions = torch.randn(7, 5), torch.randn(7, 6, 5, 5)
    expected = torch.einsum("bc,brck->brk", classes.softmax(-1), confusions.softmax(-1))
    found = label_log_probabilities(classes, confusions)
    torch.testing.assert_close(found.exp(), expected)
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(7, 6))


@pytest.mark.parametrize("item_dependent", [True, False])
@pytest.mark.parametrize("eta", [0.8, 0.3])
def test_before_training_the_share_of_right_labels_is_eta(item_dependent: bool, eta: float) -> None:
    method = Madl(TOKENS, eta=eta, item_dependent=item_dependent).eval()
    confusion = method.confusion_logits(method.pooled(items())).softmax(-1)
    torch.testing.assert_close(confusion.diagonal(dim1=2, dim2=3), torch.full_like(confusion[..., 0], eta))
    others = confusion[..., 0, 1:]
    torch.testing.assert_close(others, torch.full_like(others, (1 - eta) / 4))
    if not item_dependent:
        torch.testing.assert_close(method.annotator_skill(), torch.full((6,), eta))


def test_starting_logits_by_hand() -> None:
    rows = starting_logits(3, 0.5).unflatten(0, (3, 3)).softmax(-1)
    torch.testing.assert_close(rows, torch.full((3, 3), 0.25) + 0.25 * torch.eye(3))


def test_annotators_who_are_alike_share_a_weight() -> None:
    """Two clones and one far away: 1/2, 1/2 and 1, scaled to a mean of 1."""
    embeddings = torch.tensor([[0.0, 0.0], [0.0, 0.0], [100.0, 0.0]])
    weights = annotator_weights(embeddings, torch.tensor(1.0))
    torch.testing.assert_close(weights, torch.tensor([0.75, 0.75, 1.5]))
    spread = annotator_weights(100 * torch.eye(4), torch.tensor(1.0))
    torch.testing.assert_close(spread, torch.ones(4))


def test_loss_by_hand_counts_labels_only() -> None:
    log_probabilities = torch.randn(3, 2, 4).log_softmax(-1)
    labels = torch.tensor([[0, -1], [3, 2], [-1, -1]])
    weights, gamma = torch.tensor([0.5, 1.5]), torch.tensor(0.7)
    likelihood = 0.5 * (log_probabilities[0, 0, 0] + log_probabilities[1, 0, 3]) + 1.5 * log_probabilities[1, 1, 2]
    expected = -likelihood / 3 - Gamma(1.25, 0.25).log_prob(gamma)
    torch.testing.assert_close(weighted_loss(log_probabilities, labels, weights, gamma), expected)


def test_gamma_starts_where_its_prior_is_densest_and_may_leave_the_positive_numbers() -> None:
    gamma = torch.tensor(GAMMA_START, requires_grad=True)
    log_probabilities, labels = torch.zeros(1, 1, 2).log_softmax(-1), torch.zeros(1, 1, dtype=torch.int64)
    weighted_loss(log_probabilities, labels, torch.ones(1), gamma).backward()
    assert gamma.grad is not None and float(gamma.grad) == pytest.approx(0, abs=1e-6)
    below = weighted_loss(log_probabilities, labels, torch.ones(1), torch.tensor(-3.0))
    assert bool(below.isfinite()) and bool(annotator_weights(torch.eye(3), torch.tensor(-3.0)).isfinite().all())


def test_an_annotator_who_swaps_two_classes_is_found_out() -> None:
    """Labels of five who are right and of one who turns 0 into 1: tendency follows each, consensus the five."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    classes = torch.randint(3, (240,), generator=generator)
    x = torch.eye(3)[classes] + 0.1 * torch.randn(240, 3, generator=generator)
    labels = classes[:, None].repeat(1, 6)
    labels[:, 5] = torch.tensor([1, 0, 2])[classes]
    method = Madl(DataInfo(3, 6, (3,)), item_dependent=False)
    optimiser = torch.optim.AdamW(method.parameters(), 0.01)
    for _ in range(60):
        loss = method.loss({"x": x}, labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    method.eval()
    with torch.no_grad():
        assert float((method.predict_annotators(x).argmax(-1) == labels).float().mean()) > 0.95
        assert float((method.predict_consensus(x).argmax(-1) == classes).float().mean()) > 0.95
        skill = method.annotator_skill()
    assert skill is not None and float(skill[5]) < float(skill[:5].min())


def test_an_eta_that_is_no_share_is_refused() -> None:
    with pytest.raises(ValueError, match="eta is 1"):
        Madl(TOKENS, eta=1.0)
