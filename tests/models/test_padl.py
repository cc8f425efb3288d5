"""PADL: normal distributions over logits, a common one and each annotator's."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmark.testing import iter_checks
from datamodules.base import DataInfo
from models.annotator_module import labelled_cross_entropy
from models.padl.module import Padl
from models.padl.network import LogitDistributions, PadlHeads, sampled_loss

TOKENS = DataInfo(n_classes=5, n_annotators=6, input_shape=(4, 8))


def hidden(n_items: int = 7) -> Tensor:
    return torch.rand(n_items, 256, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("check", list(iter_checks(Padl, data_info=TOKENS)), ids=str)
def test_contract(check) -> None:  # type: ignore[no-untyped-def]
    check()


def test_the_heads_are_the_papers_equations() -> None:
    """Written out one annotator at a time, with the batch norms in evaluation mode."""
    torch.manual_seed(0)
    heads = PadlHeads(3, 4).eval()
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.normal_(0, 0.3)
        h = hidden()
        found = heads(h)
        mu = F.linear(h, heads.mu.weight, heads.mu.bias)
        p = mu.softmax(-1)
        entropy = 1 + -(p * p.log()).sum(-1, keepdim=True) / math.log(4)
        torch.testing.assert_close(found.mu, mu)
        common = torch.cat([entropy * heads.red_sigma(h)[:, 0], mu], 1)
        torch.testing.assert_close(found.sigma, (common @ heads.sigma.weight[0] + heads.sigma.bias[0]).abs())
        for r in range(3):
            read = torch.cat([entropy * heads.red_delta(h)[:, r], mu], 1)
            mu_r = mu + read @ heads.delta.weight[r] + heads.delta.bias[r]
            torch.testing.assert_close(found.annotator_mu[:, r], mu_r)
            read = torch.cat([entropy * heads.red_annotator_sigma(h)[:, r], mu_r], 1)
            sigma_r = (read @ heads.annotator_sigma.weight[r] + heads.annotator_sigma.bias[r]).abs()
            torch.testing.assert_close(found.annotator_sigma[:, r], sigma_r)


def test_with_no_spread_the_loss_is_two_cross_entropies() -> None:
    torch.manual_seed(0)
    mu, own = torch.randn(7, 5), torch.randn(7, 6, 5)
    labels = torch.randint(-1, 5, (7, 6))
    sure = LogitDistributions(mu, torch.zeros(7, 5), own, torch.zeros(7, 6, 5))
    expected = labelled_cross_entropy(mu.unsqueeze(1).expand(-1, 6, -1), labels) + labelled_cross_entropy(own, labels)
    torch.testing.assert_close(sampled_loss(sure, labels), expected)


def test_draws_have_the_stated_mean_and_spread() -> None:
    """Two classes, label 0: E[softplus(z1 - z0)] with z1 - z0 normal, by numerical integration."""
    torch.manual_seed(0)
    n_items = 60_000
    mu, sigma = torch.tensor([0.5, -0.2]), torch.tensor([1.2, 0.7])
    own, spread = torch.tensor([-0.4, 0.3]), torch.tensor([0.6, 0.9])
    many = LogitDistributions(
        mu.expand(n_items, -1),
        sigma.expand(n_items, -1),
        own.expand(n_items, 1, -1),
        spread.expand(n_items, 1, -1),
    )
    noise = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    density = (-noise.square() / 2).exp() / (-noise.square() / 2).exp().sum()
    expected = sum(
        float((density * F.softplus((m[1] - m[0]) + noise * s.square().sum().sqrt())).sum())
        for m, s in ((mu, sigma), (own, spread))
    )
    assert float(sampled_loss(many, torch.zeros(n_items, 1, dtype=torch.int64))) == pytest.approx(expected, rel=0.01)


def test_predictions_are_the_means_and_draw_nothing() -> None:
    torch.manual_seed(0)
    method = Padl(TOKENS).eval()
    x = torch.randn(7, 4, 8)
    found = method.distributions(x)
    torch.testing.assert_close(method.predict_annotators(x), found.annotator_mu.log_softmax(-1))
    torch.testing.assert_close(method.predict_consensus(x), found.mu.log_softmax(-1))


def test_the_loss_reaches_every_weight() -> None:
    torch.manual_seed(0)
    method = Padl(TOKENS).train()
    method.loss({"x": torch.randn(7, 4, 8)}, torch.randint(5, (7, 6))).backward()
    assert all(parameter.grad is not None for parameter in method.parameters())
