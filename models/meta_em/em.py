"""A Gaussian mixture with annotator confusions, fitted by unrolled EM to many episodes at once.

Source: Kumagai, Iwata, Nishiyama, Ida, Fujiwara, "Meta-learning Representations for Learning from Multiple
Annotators" (arXiv 2506.10259): the M-step, the E-step and the query predictor (Eq. 8). With t the true class:

- ``t_n ~ Cat(pi)``, ``u_n | t_n = k ~ N(mu_k, I)``, ``y_n^r | t_n = k ~ Cat(alpha^r_k)``
- priors ``mu_k ~ N(0, I / tau)``, ``p(pi) ∝ prod_k pi_k^b``, ``p(alpha^r_k) ∝ prod_l (alpha^r_kl)^c``: with these
  exponents ``b`` and ``c`` are the pseudo-counts of the closed forms (Dirichlet parameters ``b + 1`` and ``c + 1``)

T is the number of episodes, N of support items, M of dimensions, R of annotators, K of classes. Annotations are
kept as the A that are there: nothing allocates items x annotators x classes, nor items x classes x dimensions.

>>> import torch
>>> u = torch.tensor([[[0.0], [0.2], [4.0], [4.2]]])  # one episode, four items in one dimension
>>> labels = torch.tensor([[[0, 0], [0, 1], [1, 1], [1, -1]]])  # two annotators; the last label is missing
>>> state = unrolled_em(u, labels, n_classes=2, steps=2, tau=0.1, b=1.0, c=1.0)
>>> query_log_posterior(state, torch.tensor([[[0.1], [4.1]]])).argmax(-1).tolist()
[[0, 1]]
"""

from __future__ import annotations

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

#: Counts are kept above this before a logarithm is taken; it matters where b or c is 0 only. It is small enough
#: to change no result and large enough that float32 gradients through the logarithm do not overflow.
SMALLEST = 1e-30


class EMState(NamedTuple):
    """What EM found in each of T episodes: the last M-step's parameters and the last E-step's responsibilities.

    Attributes:
        mu: class means ``[T, K, M]``.
        log_pi: log-probabilities of the classes ``[T, K]``.
        log_alpha: log-confusions of the annotators ``[T, R, K, K]`` (true class, then given label).
        log_resp: log-responsibilities lambda ``[T, N, K]``: of each support item's true class, given its
            embedding and its labels. Padded items have equal ones.
        log_posterior: ``log p(U, Y | mu, pi, alpha) + log p(mu, pi, alpha)`` in nats ``[T, steps]``, at the
            parameters of each step's M-step and up to a constant that does not depend on them; never falls.
    """

    mu: Tensor
    log_pi: Tensor
    log_alpha: Tensor
    log_resp: Tensor
    log_posterior: Tensor


class _Prior(NamedTuple):
    """Pseudo-counts of the means, the class prior and the confusions."""

    tau: float
    b: float
    c: float


class _Parameters(NamedTuple):
    """``mu [T, K, M]``, ``log_pi [T, K]`` and ``log_alpha [T, R, K, K]`` (given label, then true class)."""

    mu: Tensor
    log_pi: Tensor
    log_alpha: Tensor


def unrolled_em(
    u: Tensor,
    labels: Tensor,
    n_classes: int,
    steps: int,
    tau: float,
    b: float,
    c: float,
    *,
    mask: Tensor | None = None,
    last_step_only: bool = False,
) -> EMState:
    """EM from vote fractions: ``steps`` times an M-step, then an E-step (Algorithm 1), differentiable in ``u``.

    An item that nobody labelled starts with equal responsibilities and counts like any other; a padded one,
    which only ``mask`` can tell, changes nothing, whatever its row of ``u`` holds. A class without any weight has
    its mean at 0 (the limit of a vanishing ``tau``). An annotator without labels has equal confusions.

    Args:
        u: embeddings of the support items ``[T, N, M]``, float32 or float64.
        labels: class ids ``[T, N, R]``, -1 where missing.
        n_classes: K.
        steps: J, at least 1.
        tau: precision of the means' prior, which pulls them to 0; a pseudo-count. 0: flat.
        b: pseudo-count of each class. 0: flat.
        c: pseudo-count of each entry of the confusions. 0: flat; a label that an annotator never gave to a class
            then all but rules that class out.
        mask: True where an item is real, False where it is padded ``[T, N]``; None: all are real.
        last_step_only: gradients flow through the last M-step and E-step only; the responsibilities before
            them, and all but the last ``log_posterior``, are constants.

    Raises:
        ValueError: if shapes, the embeddings' type, a label or a setting is not as above.
    """
    check_settings(n_classes, steps, tau, b, c)
    check_shapes(u, labels, mask)
    # rounding to half precision would cost more than it gains: these are small products
    with torch.autocast(u.device.type, enabled=False):
        support = collect(u, labels, n_classes, mask)
        return _unroll(support, _Prior(tau, b, c), steps, last_step_only)


def query_log_posterior(state: EMState, u: Tensor) -> Tensor:
    """Log-probabilities ``[T, Q, K]`` of the true class of queries ``u [T, Q, M]`` (Eq. 8).

    ``log p(t = k | u) = log pi_k - |u - mu_k|^2 / 2`` up to a constant: the confusions take no part.
    """
    with torch.autocast(u.device.type, enabled=False):
        scores = state.log_pi.unsqueeze(1) + log_gaussian(*centred(u, state.mu))
        return scores.log_softmax(dim=2)


# --- steps ----------------------------------------------------------------------------------------


def _unroll(support: Support, prior: _Prior, steps: int, last_step_only: bool) -> EMState:
    log_resp = vote_log_fractions(support)
    frozen = support._replace(u=support.u.detach())
    log_posteriors: list[Tensor] = []
    for step in range(steps):
        seen = frozen if last_step_only and step < steps - 1 else support
        parameters = _maximise(seen, log_resp, prior)
        log_resp, log_likelihood = _expect(seen, parameters)
        log_posteriors.append(log_likelihood + _log_prior(parameters, prior))
    mu, log_pi, log_alpha = parameters
    log_resp = uniform_padding(support, log_resp)
    return EMState(mu, log_pi, log_alpha.transpose(2, 3), log_resp, torch.stack(log_posteriors, dim=1))


def _maximise(support: Support, log_resp: Tensor, prior: _Prior) -> _Parameters:
    """M-step: the parameters that maximise the expected log posterior under responsibilities ``[T, N, K]``."""
    log_weight = log_resp.logsumexp(dim=1)
    return _Parameters(
        mu=shrunk_means(support, log_resp, log_weight, prior.tau),
        log_pi=_log_shares(log_weight.exp() + prior.b, dim=1),
        log_alpha=_log_shares(label_counts(support, log_resp) + prior.c, dim=2),
    )


def _log_shares(counts: Tensor, dim: int) -> Tensor:
    return counts.clamp_min(SMALLEST).log().log_softmax(dim=dim)


def _expect(support: Support, parameters: _Parameters) -> tuple[Tensor, Tensor]:
    """E-step: log-responsibilities ``[T, N, K]`` and ``log p(U, Y | mu, pi, alpha)`` ``[T]``, up to a constant."""
    u, mu = centred(support.u, parameters.mu)
    joint = parameters.log_pi.unsqueeze(1) + log_gaussian(u, mu)
    joint = add_votes(support, joint, parameters.log_alpha)
    evidence = joint.logsumexp(dim=2)
    per_item = evidence - 0.5 * u.square().sum(dim=2)
    if support.real is not None:
        per_item = per_item * support.real
    return without_padding(support, joint - evidence.unsqueeze(2)), per_item.sum(dim=1)


def _log_prior(parameters: _Parameters, prior: _Prior) -> Tensor:
    """Log-density ``[T]`` of the parameters; no normaliser, because a flat prior has none."""
    mu, log_pi, log_alpha = parameters
    means = -0.5 * prior.tau * mu.square().sum(dim=(1, 2))
    return means + prior.b * log_pi.sum(dim=1) + prior.c * log_alpha.sum(dim=(1, 2, 3))
