"""The variational version of the EM: posteriors of means, class prior and confusions in place of their best values.

The paper leaves this open. The model and the start are those of :mod:`models.meta_em.em`, with the priors written out
in full: ``mu_k ~ N(0, I / tau)``, ``pi ~ Dirichlet(b + 1)``, ``alpha^r_k ~ Dirichlet(c + 1)``, whose modes are the
closed forms there. Mean field ``q(t) q(mu) q(pi) q(alpha)`` (Bishop 2006, section 10.2), with
``N_k = sum_n lambda_nk``:

- M-step: ``q(mu_k) = N(m_k, I / (tau + N_k))`` with ``m_k = sum_n lambda_nk u_n / (tau + N_k)``;
  ``q(pi) = Dirichlet(b + 1 + N_k)``; ``q(alpha^r_k) = Dirichlet(c + 1 + sum_n lambda_nk 1[y_n^r = l])``
- E-step: ``log lambda_nk = E log pi_k - |u_n - m_k|^2 / 2 - M / (2 (tau + N_k)) + sum_r E log alpha^r_{y_n^r, k}``
  up to a constant, where ``E log pi_k = digamma(a_k) - digamma(sum_j a_j)`` for ``pi ~ Dirichlet(a)``
- queries: ``p(t = k | u)`` is ``E pi_k N(u; m_k, (1 + 1 / (tau + N_k)) I)``, normalised: the predictive distribution

The term ``M / (2 (tau + N_k))`` is the price of not knowing a mean: in many dimensions it holds back a class with few
items. It vanishes as items or ``tau`` grow, and with pseudo-counts that grow all of it becomes the other version.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from models.meta_em.support import (
    Support,
    add_votes,
    centred,
    check_settings,
    check_shapes,
    collect,
    label_counts,
    log_gaussian,
    shrunk_means,
    uniform_padding,
    vote_log_fractions,
    without_padding,
)


class VariationalState(NamedTuple):
    """What variational EM found in each of T episodes; shapes as in :class:`models.meta_em.em.EMState`.

    Attributes:
        mu: means ``m_k`` of the posteriors of the class means ``[T, K, M]``.
        precision: their precisions ``tau + N_k`` ``[T, K]``, the same in each dimension.
        log_pi: ``log E pi_k`` ``[T, K]``.
        log_alpha: ``log E alpha^r`` ``[T, R, K, K]`` (true class, then given label).
        log_resp: ``log q(t_n = k)`` ``[T, N, K]``. Padded items have equal ones.
        elbo: lower bound of ``log p(U, Y)`` in nats ``[T, steps]``, after each step's E-step; never falls.
    """

    mu: Tensor
    precision: Tensor
    log_pi: Tensor
    log_alpha: Tensor
    log_resp: Tensor
    elbo: Tensor


class _Posterior(NamedTuple):
    """``mu [T, K, M]``, ``precision [T, K]``, Dirichlet ``pi [T, K]`` and ``alpha [T, R, K, K]`` (given, then true)."""

    mu: Tensor
    precision: Tensor
    pi: Tensor
    alpha: Tensor


def variational_em(
    u: Tensor,
    labels: Tensor,
    n_classes: int,
    steps: int,
    tau: float,
    b: float,
    c: float,
    *,
    mask: Tensor | None = None,
) -> VariationalState:
    """Mean-field posteriors from vote fractions: ``steps`` times an M-step, then an E-step, differentiable in ``u``.

    Args:
        u: embeddings of the support items ``[T, N, M]``, float32 or float64.
        labels: class ids ``[T, N, R]``, -1 where missing.
        n_classes: K.
        steps: at least 1.
        tau: precision of the means' prior; above 0, because a flat prior has no posterior for a class without items.
        b: the class prior's Dirichlet parameters are ``b + 1``.
        c: those of each row of the confusions are ``c + 1``.
        mask: True where an item is real, False where it is padded ``[T, N]``; None: all are real.

    Raises:
        ValueError: if shapes, the embeddings' type, a label or a setting is not as above.
    """
    check_settings(n_classes, steps, tau, b, c)
    if tau == 0:
        raise ValueError("tau is 0; the variational version needs a proper prior of the means, tau above 0")
    check_shapes(u, labels, mask)
    with torch.autocast(u.device.type, enabled=False):
        support = collect(u, labels, n_classes, mask)
        log_resp = vote_log_fractions(support)
        elbos: list[Tensor] = []
        for _ in range(steps):
            posterior = _maximise(support, log_resp, tau, b, c)
            log_resp, evidence = _expect(support, posterior)
            elbos.append(evidence - _divergence(posterior, tau, b, c))
    return VariationalState(
        mu=posterior.mu,
        precision=posterior.precision,
        log_pi=_log_mean(posterior.pi, dim=1),
        log_alpha=_log_mean(posterior.alpha, dim=2).transpose(2, 3),
        log_resp=uniform_padding(support, log_resp),
        elbo=torch.stack(elbos, dim=1),
    )


def query_log_predictive(state: VariationalState, u: Tensor) -> Tensor:
    """Log-probabilities ``[T, Q, K]`` of the true class of queries ``u [T, Q, M]``.

    Means and class prior are integrated out. The variance of class k is ``1 + 1 / precision_k``.
    """
    with torch.autocast(u.device.type, enabled=False):
        around, mu = centred(u, state.mu)
        # the item's own term no longer cancels between classes: their variances differ
        distance = around.square().sum(dim=2, keepdim=True) - 2 * log_gaussian(around, mu)
        variance = (1 + 1 / state.precision).unsqueeze(1)
        scores = state.log_pi.unsqueeze(1) - 0.5 * (distance / variance + u.shape[2] * variance.log())
        return scores.log_softmax(dim=2)


# --- steps ----------------------------------------------------------------------------------------


def _maximise(support: Support, log_resp: Tensor, tau: float, b: float, c: float) -> _Posterior:
    """M-step: the posteriors under responsibilities ``[T, N, K]``."""
    log_weight = log_resp.logsumexp(dim=1)
    weight = log_weight.exp()
    return _Posterior(
        mu=shrunk_means(support, log_resp, log_weight, tau),
        precision=tau + weight,
        pi=b + 1 + weight,
        alpha=c + 1 + label_counts(support, log_resp),
    )


def _expect(support: Support, posterior: _Posterior) -> tuple[Tensor, Tensor]:
    """E-step: log-responsibilities ``[T, N, K]``, and the sum ``[T]`` of the logarithms of their normalisers."""
    width = support.u.shape[2]
    u, mu = centred(support.u, posterior.mu)
    per_class = _mean_log(posterior.pi, dim=1) - 0.5 * width / posterior.precision
    joint = add_votes(support, per_class.unsqueeze(1) + log_gaussian(u, mu), _mean_log(posterior.alpha, dim=2))
    evidence = joint.logsumexp(dim=2)
    per_item = evidence - 0.5 * (u.square().sum(dim=2) + width * math.log(2 * math.pi))
    if support.real is not None:
        per_item = per_item * support.real
    return without_padding(support, joint - evidence.unsqueeze(2)), per_item.sum(dim=1)


def _divergence(posterior: _Posterior, tau: float, b: float, c: float) -> Tensor:
    """``KL(q(mu, pi, alpha) || p(mu, pi, alpha))`` ``[T]``."""
    mu, precision, pi, alpha = posterior
    width = mu.shape[2]
    ratio = tau / precision
    means = 0.5 * (tau * mu.square().sum(dim=2) + width * (ratio - 1 - ratio.log()))
    confusions = _dirichlet_divergence(alpha, c + 1, dim=2)
    return means.sum(dim=1) + _dirichlet_divergence(pi, b + 1, dim=1) + confusions.sum(dim=(1, 2))


def _dirichlet_divergence(parameters: Tensor, prior: float, dim: int) -> Tensor:
    """``KL(Dirichlet(parameters) || Dirichlet(prior, ..., prior))`` along ``dim``."""
    count = parameters.shape[dim]
    own = parameters.sum(dim).lgamma() - parameters.lgamma().sum(dim)
    other = math.lgamma(count * prior) - count * math.lgamma(prior)
    return own - other + ((parameters - prior) * _mean_log(parameters, dim)).sum(dim)


def _mean_log(parameters: Tensor, dim: int) -> Tensor:
    """``E log p_k`` under a Dirichlet along ``dim``."""
    return parameters.digamma() - parameters.sum(dim, keepdim=True).digamma()


def _log_mean(parameters: Tensor, dim: int) -> Tensor:
    """``log E p_k`` under a Dirichlet along ``dim``."""
    return parameters.log() - parameters.sum(dim, keepdim=True).log()
