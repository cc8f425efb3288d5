"""The variational EM: a lower bound that never falls, its equations by hand, and the limits in which it is the EM."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Dirichlet, Normal

from models.meta_em.em import query_log_posterior, unrolled_em
from models.meta_em.variational import VariationalState, query_log_predictive, variational_em

DOUBLE = torch.float64


def episodes(
    seed: int = 0, n_episodes: int = 2, n_items: int = 12, n_classes: int = 3, width: int = 4, missing: float = 0.3
) -> tuple[Tensor, Tensor]:
    """Embeddings ``[T, N, M]`` around random means and labels ``[T, N, 3]`` that are right with 0.7."""
    generator = torch.Generator().manual_seed(seed)
    truth = (torch.arange(n_items) % n_classes).expand(n_episodes, n_items)
    means = torch.randn(n_episodes, n_classes, width, generator=generator, dtype=DOUBLE)
    noise = torch.randn(n_episodes, n_items, width, generator=generator, dtype=DOUBLE)
    u = means.gather(1, truth.unsqueeze(2).expand(-1, -1, width)) + 0.7 * noise
    shape = (n_episodes, n_items, 3)
    right = torch.rand(shape, generator=generator) < 0.7
    labels = torch.where(right, truth.unsqueeze(2), torch.randint(n_classes, shape, generator=generator))
    labels[torch.rand(shape, generator=generator) < missing] = -1
    return u, labels


def log_evidence(u: Tensor, labels: Tensor, K: int, tau: float, b: float, c: float) -> float:
    """``log p(U, Y)`` of one small episode: the sum over all assignments of true classes, each in closed form."""

    def dirichlet(counts: list[float], prior: float) -> float:
        total = math.lgamma(K * prior) - math.lgamma(K * prior + sum(counts))
        return total + sum(math.lgamma(prior + count) - math.lgamma(prior) for count in counts)

    N, M = u.shape
    terms = []
    for assignment in itertools.product(range(K), repeat=N):
        total = dirichlet([assignment.count(k) for k in range(K)], b + 1)
        for k in range(K):
            members = [n for n in range(N) if assignment[n] == k]
            covariance = torch.eye(len(members), dtype=DOUBLE) + 1 / tau
            if members:
                normal = torch.distributions.MultivariateNormal(torch.zeros(len(members), dtype=DOUBLE), covariance)
                total += float(normal.log_prob(u[members].T).sum())
            for r in range(labels.shape[1]):
                counts = [sum(int(labels[n, r]) == label for n in members) for label in range(K)]
                total += dirichlet([float(count) for count in counts], c + 1)
        terms.append(total)
    return float(torch.tensor(terms, dtype=DOUBLE).logsumexp(0))


@pytest.mark.parametrize(("tau", "b", "c"), [(1.0, 0.0, 0.0), (0.3, 10.0, 1.0), (20.0, 1.0, 5.0)])
def test_the_bound_lies_below_the_exact_evidence_and_not_far(tau: float, b: float, c: float) -> None:
    u, labels = episodes(n_items=6, width=2)
    found = variational_em(u, labels, 3, 30, tau, b, c).elbo[:, -1]
    for t in range(2):
        gap = log_evidence(u[t], labels[t], 3, tau, b, c) - float(found[t])
        assert 0 <= gap < 6, gap  # log 3! of it: the bound sees one of the classes' orders, the evidence all


def test_one_item_of_one_class_makes_the_bound_exact() -> None:
    """With K = 1 nothing is approximated: the posterior of the mean is Gaussian."""
    u = torch.tensor([[[0.5, -2.0], [1.0, 0.0]]], dtype=DOUBLE)
    labels = torch.zeros(1, 2, 3, dtype=torch.long)
    found = variational_em(u, labels, 1, 2, 0.7, 3.0, 2.0).elbo
    torch.testing.assert_close(
        found[0, -1], torch.tensor(log_evidence(u[0], labels[0], 1, 0.7, 3.0, 2.0), dtype=DOUBLE)
    )


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    tau=st.sampled_from([0.01, 1.0, 30.0]),
    b=st.sampled_from([0.0, 1.0, 100.0]),
    c=st.sampled_from([0.0, 1.0, 20.0]),
    missing=st.sampled_from([0.0, 0.5, 0.95]),
    double=st.booleans(),
)
def test_the_bound_never_falls(seed: int, tau: float, b: float, c: float, missing: float, double: bool) -> None:
    u, labels = episodes(seed, missing=missing)
    history = variational_em(u if double else u.float(), labels, 3, 12, tau, b, c).elbo
    rounding = (1e-11 if double else 1e-5) * (1 + history.abs() + (b + c) * 10)
    assert torch.isfinite(history).all() and (history.diff(dim=1) >= -rounding[:, 1:]).all()


def test_one_step_is_the_equations_with_library_distributions() -> None:
    u, labels = episodes(n_episodes=1)
    tau, b, c = 0.5, 2.0, 1.0
    state = variational_em(u, labels, 3, 2, tau, b, c)
    before = variational_em(u, labels, 3, 1, tau, b, c).log_resp[0].exp()
    weight = before.sum(0)
    torch.testing.assert_close(state.precision[0], tau + weight)
    torch.testing.assert_close(state.mu[0], before.T @ u[0] / (tau + weight).unsqueeze(1))
    torch.manual_seed(0)  # library distributions draw from the global generator
    pi = Dirichlet(b + 1 + weight)
    torch.testing.assert_close(state.log_pi[0].exp(), pi.mean)
    for r in range(3):
        counts = torch.stack([before[labels[0, :, r] == label].sum(0) for label in range(3)], dim=1)
        torch.testing.assert_close(state.log_alpha[0, r].exp(), Dirichlet(c + 1 + counts).mean)
    # the E-step's expectations, by sampling the posteriors
    scores = pi.sample((200_000,)).log().mean(0).expand(12, 3).clone()
    for r in range(3):
        counts = torch.stack([before[labels[0, :, r] == label].sum(0) for label in range(3)], dim=1)
        expected = Dirichlet(c + 1 + counts).sample((200_000,)).log().mean(0)
        given_label = labels[0, :, r]
        scores[given_label >= 0] += expected[:, given_label[given_label >= 0]].T
    scores -= 0.5 * (torch.cdist(u[0], state.mu[0]).square() + 4 / state.precision[0])
    torch.testing.assert_close(state.log_resp[0].exp(), scores.softmax(1), rtol=0, atol=5e-3)


def test_queries_see_the_predictive_distribution() -> None:
    u, labels = episodes()
    state = variational_em(u, labels, 3, 2, 0.5, 1.0, 1.0)
    queries = u[:, :5] + 50.0  # far from all means, where variances decide
    deviation = (1 + 1 / state.precision).sqrt()[:, None, :, None]
    densities = Normal(state.mu.unsqueeze(1), deviation).log_prob(queries.unsqueeze(2)).sum(3)
    torch.testing.assert_close(query_log_predictive(state, queries), (state.log_pi[:, None] + densities).log_softmax(2))


def _gap(u: Tensor, labels: Tensor, *prior: float) -> float:
    queries = u[:, :6] + 0.2
    variational, plain = variational_em(u, labels, 3, 3, *prior), unrolled_em(u, labels, 3, 3, *prior)
    gaps = (variational.log_resp.exp() - plain.log_resp.exp()).abs().max()
    answers = query_log_predictive(variational, queries).exp() - query_log_posterior(plain, queries).exp()
    return max(float(gaps), float(answers.abs().max()))


def test_with_many_items_it_is_the_em() -> None:
    """The same items over and over: what is not known of the parameters falls as 1 / N."""
    u, labels = episodes(missing=0.1)
    gaps = [_gap(u.repeat(1, times, 1), labels.repeat(1, times, 1), 1.0, 1.0, 1.0) for times in (1, 10, 100, 1000)]
    assert gaps[0] > 0.01 and gaps[1] < gaps[0] and gaps[2] < gaps[1] and gaps[3] < 0.15 * gaps[2]


def test_with_large_pseudo_counts_it_is_the_em() -> None:
    u, labels = episodes()
    gaps = [_gap(u, labels, size, size, size) for size in (1.0, 100.0, 1e4, 1e6)]
    assert gaps[0] > 0.01 and gaps[1] < gaps[0] and gaps[2] < 1e-3 and gaps[3] < 1e-5


def test_gradients_are_the_finite_differences() -> None:
    u, labels = episodes(n_items=6, width=2)
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1, 4:] = False

    def run(u: Tensor) -> tuple[Tensor, ...]:
        state = variational_em(u, labels, 3, 2, 0.5, 1.0, 1.0, mask=mask)
        return *state, query_log_predictive(state, u)

    assert torch.autograd.gradcheck(run, u.requires_grad_())


@pytest.mark.parametrize("scale", [0.0, 1.0, 1000.0])
@pytest.mark.parametrize("case", ["nobody", "one class", "idle annotator", "no annotators"])
def test_degenerate_supports_stay_finite_in_float32(case: str, scale: float) -> None:
    labels = {
        "nobody": torch.full((2, 6, 3), -1),
        "one class": torch.ones(2, 6, 3, dtype=torch.long),
        "idle annotator": torch.tensor([[0, 0, -1], [1, 1, -1], [2, 1, -1]] * 2).expand(2, 6, 3),
        "no annotators": torch.empty(2, 6, 0, dtype=torch.long),
    }[case]
    u = (scale * torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))).requires_grad_()
    state = variational_em(u, labels, 3, 4, 1e-3, 0.0, 0.0)
    answers = query_log_predictive(state, u)
    (gradient,) = torch.autograd.grad(sum(part.sum() for part in (*state, answers)), u)
    assert all(torch.isfinite(part).all() for part in (*state, answers, gradient))


def test_padding_changes_nothing_and_permuting_classes_permutes_the_result() -> None:
    u, labels = episodes()
    plain = variational_em(u, labels, 3, 3, 0.5, 1.0, 1.0)
    mask = torch.tensor([True] * 12 + [False] * 3).expand(2, 15)
    longer = torch.cat([u, torch.full((2, 3, 4), math.nan, dtype=DOUBLE)], dim=1)
    padded = variational_em(longer, torch.cat([labels, labels[:, :3]], dim=1), 3, 3, 0.5, 1.0, 1.0, mask=mask)
    _same(plain, padded._replace(log_resp=padded.log_resp[:, :12]))
    order = torch.tensor([2, 0, 1])
    renamed = variational_em(u, torch.where(labels >= 0, order[labels.clamp_min(0)], -1), 3, 3, 0.5, 1.0, 1.0)
    back = VariationalState(
        renamed.mu[:, order],
        renamed.precision[:, order],
        renamed.log_pi[:, order],
        renamed.log_alpha[:, :, order][..., order],
        renamed.log_resp[..., order],
        renamed.elbo,
    )
    _same(plain, back)


def _same(ours: VariationalState, other: VariationalState) -> None:
    for name, left, right in zip(VariationalState._fields, ours, other, strict=True):
        torch.testing.assert_close(left, right, msg=lambda m, n=name: f"{n}: {m}")


def test_a_flat_prior_of_the_means_is_refused() -> None:
    u, labels = episodes()
    with pytest.raises(ValueError, match="tau is 0; the variational version needs"):
        variational_em(u, labels, 3, 2, 0.0, 1.0, 1.0)
