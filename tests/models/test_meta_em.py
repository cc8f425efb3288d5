"""The unrolled EM against its equations, its special cases, its symmetries and its degenerate inputs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from crowdkit.aggregation import DawidSkene as CrowdKitDawidSkene
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from datamodules.annotations import Annotations
from models.aggregation import dawid_skene
from models.meta_em.em import EMState, query_log_posterior, unrolled_em

DOUBLE = torch.float64
Episodes = tuple[Tensor, Tensor, Tensor]


def episodes(
    seed: int = 0,
    n_episodes: int = 3,
    n_items: int = 12,
    n_annotators: int = 3,
    n_classes: int = 4,
    width: int = 5,
    missing: float = 0.3,
    spread: float = 1.0,
) -> Episodes:
    """Embeddings around random class means, labels that are right with 0.7 where they are there, true classes."""
    generator = torch.Generator().manual_seed(seed)
    truth = (torch.arange(n_items) % n_classes).expand(n_episodes, n_items)
    means = spread * torch.randn(n_episodes, n_classes, width, generator=generator, dtype=DOUBLE)
    noise = torch.randn(n_episodes, n_items, width, generator=generator, dtype=DOUBLE)
    u = means.gather(1, truth.unsqueeze(2).expand(-1, -1, width)) + 0.5 * noise
    shape = (n_episodes, n_items, n_annotators)
    right = torch.rand(shape, generator=generator) < 0.7
    labels = torch.where(right, truth.unsqueeze(2), torch.randint(n_classes, shape, generator=generator))
    labels[torch.rand(shape, generator=generator) < missing] = -1
    return u, labels, truth


def same(ours: EMState, other: EMState, tolerance: float = 1e-10) -> None:
    for name, left, right in zip(EMState._fields, ours, other, strict=True):
        torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


def finite(*tensors: Tensor) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


# --- the equations --------------------------------------------------------------------------------


def by_loops(u: Tensor, labels: Tensor, K: int, steps: int, tau: float, b: float, c: float) -> dict[str, Tensor]:
    """One episode, ``u [N, M]``, ``labels [N, R]``: every equation as a loop over plain numbers."""
    (N, M), R = u.shape, labels.shape[1]
    x, y = u.tolist(), labels.tolist()
    lam = [[1 / K] * K for _ in range(N)]
    for n in range(N):
        votes = [label for label in y[n] if label >= 0]
        for k in range(K):
            if votes:
                lam[n][k] = votes.count(k) / len(votes)
    history = []
    for _ in range(steps):
        weight = [sum(lam[n][k] for n in range(N)) for k in range(K)]
        mu = [[sum(lam[n][k] * x[n][m] for n in range(N)) / (tau + weight[k]) for m in range(M)] for k in range(K)]
        pi = [(weight[k] + b) / (N + K * b) for k in range(K)]
        alpha = [[[0.0] * K for _ in range(K)] for _ in range(R)]
        for r in range(R):
            for k in range(K):
                labelled = sum(lam[n][k] for n in range(N) if y[n][r] >= 0)
                for label in range(K):
                    chosen = sum(lam[n][k] for n in range(N) if y[n][r] == label)
                    alpha[r][k][label] = (chosen + c) / (labelled + K * c)
        total = -tau / 2 * sum(value**2 for row in mu for value in row) + b * sum(math.log(p) for p in pi)
        total += c * sum(math.log(p) for matrix in alpha for row in matrix for p in row)
        for n in range(N):
            joint = []
            for k in range(K):
                score = math.log(pi[k]) - sum((x[n][m] - mu[k][m]) ** 2 for m in range(M)) / 2
                joint.append(score + sum(math.log(alpha[r][k][y[n][r]]) for r in range(R) if y[n][r] >= 0))
            evidence = math.log(sum(math.exp(score) for score in joint))
            lam[n] = [math.exp(score - evidence) for score in joint]
            total += evidence
        history.append(total)
    found = {"mu": mu, "log_pi": pi, "log_alpha": alpha, "log_resp": lam, "log_posterior": history}
    tensors = {name: torch.tensor(value, dtype=DOUBLE) for name, value in found.items()}
    return {
        name: value.log() if name in ("log_pi", "log_alpha", "log_resp") else value for name, value in tensors.items()
    }


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize(("tau", "b", "c"), [(1.0, 10.0, 1.0), (0.0, 0.5, 0.1), (3.0, 0.0, 2.0)])
def test_every_number_is_the_double_loops(steps: int, tau: float, b: float, c: float) -> None:
    u, labels, _ = episodes(missing=0.6)
    assert (labels < 0).all(dim=2).any(), "an item without labels belongs to this test"
    state = unrolled_em(u, labels, 4, steps, tau, b, c)
    queries = u[:, :4] + 0.3
    answers = query_log_posterior(state, queries).exp()
    for t in range(len(u)):
        expected = by_loops(u[t], labels[t], 4, steps, tau, b, c)
        for name, value in expected.items():
            torch.testing.assert_close(getattr(state, name)[t], value, rtol=0, atol=1e-8, msg=name)
        for q in range(4):
            distance = (queries[t, q] - expected["mu"]).square().sum(1)
            scores = (expected["log_pi"] - distance / 2).exp()
            torch.testing.assert_close(answers[t, q], scores / scores.sum(), rtol=0, atol=1e-8)


def test_probabilities_sum_to_one_along_the_documented_axes() -> None:
    u, labels, _ = episodes()
    state = unrolled_em(u, labels, 4, 2, 1.0, 1.0, 1.0)
    assert state.mu.shape == (3, 4, 5) and state.log_pi.shape == (3, 4) and state.log_alpha.shape == (3, 3, 4, 4)
    assert state.log_resp.shape == (3, 12, 4) and state.log_posterior.shape == (3, 2)
    for logs, axis in ((state.log_pi, 1), (state.log_alpha, 3), (state.log_resp, 2)):
        torch.testing.assert_close(logs.logsumexp(axis), torch.zeros_like(logs.sum(axis)))


# --- gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tau", "b", "c"), [(1.0, 10.0, 1.0), (0.0, 0.0, 0.0)])
@pytest.mark.parametrize("steps", [1, 3])
def test_gradients_are_the_finite_differences(steps: int, tau: float, b: float, c: float) -> None:
    u, labels, _ = episodes(n_episodes=2, n_items=6, n_classes=3, width=2, spread=0.5)
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1, 4:] = False

    def run(u: Tensor, queries: Tensor) -> tuple[Tensor, ...]:
        state = unrolled_em(u, labels, 3, steps, tau, b, c, mask=mask)
        return *state, query_log_posterior(state, queries)

    assert torch.autograd.gradcheck(run, (u.requires_grad_(), u[:, :2].detach().clone().requires_grad_()))


def test_gradient_through_the_last_step_only_leaves_values_alone() -> None:
    u, labels, _ = episodes(spread=0.5)
    gradients = []
    states = []
    for last in (False, True):
        leaf = u.clone().requires_grad_()
        states.append(unrolled_em(leaf, labels, 4, 3, 1.0, 1.0, 1.0, last_step_only=last))
        gradients.append(torch.autograd.grad(states[-1].mu.square().sum(), leaf)[0])
    same(states[0], states[1], 0)
    assert finite(*gradients) and (gradients[0] - gradients[1]).abs().max() > 1e-3
    # by hand: one M-step from responsibilities that are constants
    before = unrolled_em(u, labels, 4, 2, 1.0, 1.0, 1.0).log_resp.exp()
    leaf = u.clone().requires_grad_()
    mu = before.transpose(1, 2) @ leaf / (1 + before.sum(1)).unsqueeze(2)
    torch.testing.assert_close(gradients[1], torch.autograd.grad(mu.square().sum(), leaf)[0])


# --- special cases --------------------------------------------------------------------------------


def clean(seed: int = 0, n_items: int = 12, n_annotators: int = 2, **settings: float) -> Episodes:
    u, _, truth = episodes(seed, n_items=n_items, **settings)
    return u, truth.unsqueeze(2).repeat(1, 1, n_annotators), truth


def prototypical(u: Tensor, truth: Tensor, queries: Tensor) -> Tensor:
    """Snell et al. (2017), with the Gaussian's factor of a half."""
    answers = []
    for t in range(len(u)):
        prototypes = torch.stack([u[t, truth[t] == k].mean(0) for k in range(4)])
        answers.append((-0.5 * torch.cdist(queries[t], prototypes).square()).log_softmax(1))
    return torch.stack(answers)


@pytest.mark.parametrize(("b", "c"), [(0.0, 0.0), (1.0, 1.0), (100.0, 5.0)])
def test_one_step_on_clean_balanced_labels_is_a_prototypical_network(b: float, c: float) -> None:
    """J = 1, tau = 0, every label right, equally many items a class: exact for any b and c.

    Vote fractions are then one-hot, mu_k the class means and pi_k = 1/K; the E-step comes too late to matter.
    """
    u, labels, truth = clean()
    labels[:, 4:, 0] = -1  # every item keeps at least one label
    answers = query_log_posterior(unrolled_em(u, labels, 4, 1, 0.0, b, c), u + 0.1)
    torch.testing.assert_close(answers, prototypical(u, truth, u + 0.1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_later_steps_stay_a_prototypical_network_without_smoothing(spread: float) -> None:
    """J > 1 needs c = 0 besides: alpha^r is then the identity, and no embedding overrules a right label.

    This holds where, for each item and each other class, one of the item's annotators labelled some item of
    that class; else alpha^r of that class is 0/0, taken as uniform.
    """
    u, labels, truth = clean(spread=spread)
    answers = query_log_posterior(unrolled_em(u, labels, 4, 6, 0.0, 0.0, 0.0), u)
    torch.testing.assert_close(answers, prototypical(u, truth, u), rtol=0, atol=1e-10)


def test_unbalanced_classes_are_a_prototypical_network_as_b_grows() -> None:
    u, labels, truth = clean(n_items=11)
    expected = prototypical(u, truth, u)
    gaps = [
        (query_log_posterior(unrolled_em(u, labels, 4, 1, 0.0, b, 1.0), u) - expected).abs().max()
        for b in (1.0, 1e4, 1e8)
    ]
    assert gaps[0] > 0.05 and gaps[1] < 1e-3 and gaps[2] < 1e-7


@pytest.mark.parametrize(("tau", "c", "steps"), [(1.0, 0.0, 1), (0.0, 1.0, 2)])
def test_shrinkage_or_smoothing_makes_it_something_else(tau: float, c: float, steps: int) -> None:
    """The conditions above are needed: with tau > 0, or with c > 0 and J > 1, clean labels are not enough."""
    u, labels, truth = clean(spread=0.5)
    answers = query_log_posterior(unrolled_em(u, labels, 4, steps, tau, 1.0, c), u)
    assert (answers - prototypical(u, truth, u)).abs().max() > 1e-2


def annotated(seed: int, n_items: int = 40) -> tuple[Tensor, Annotations]:
    """Labels ``[1, N, 6]`` with every item labelled, and the same as annotations."""
    _, labels, truth = episodes(seed, n_episodes=1, n_items=n_items, n_annotators=6)
    empty = (labels < 0).all(dim=2)
    labels[..., 0] = torch.where(empty, truth, labels[..., 0])
    return labels, Annotations.from_dense(labels[0], 4)


@pytest.mark.parametrize("c", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("value", [0.0, 3.0])
def test_a_constant_embedding_gives_dawid_skene(c: float, value: float) -> None:
    """Exact with b = 0, tau = 0, every item labelled and every class voted for (then all means coincide)."""
    labels, annotations = annotated(1)
    state = unrolled_em(torch.full((1, 40, 3), value, dtype=DOUBLE), labels, 4, 15, 0.0, 0.0, c)
    torch.testing.assert_close(
        state.log_resp[0].exp(), dawid_skene(annotations, 15, smoothing=c), rtol=0, atol=1e-7 if c == 0 else 1e-10
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_constant_embedding_gives_crowdkits_dawid_skene(seed: int) -> None:
    """Settings coincide at b = c = 0; an embedding of 0 is constant to every tau."""
    labels, annotations = annotated(seed)
    # crowd-kit's bound can fall by a rounding error, so with tol=0 it may stop before n_iter
    theirs = CrowdKitDawidSkene(n_iter=20, tol=-1e9).fit_predict_proba(annotations.to_frame()).sort_index()
    state = unrolled_em(torch.zeros(1, 40, 3, dtype=DOUBLE), labels, 4, 20, 1.0, 0.0, 0.0)
    np.testing.assert_allclose(state.log_resp[0].exp().numpy(), theirs[[0, 1, 2, 3]].to_numpy(), atol=1e-6)


# --- symmetries -----------------------------------------------------------------------------------


def test_permuting_classes_permutes_the_result() -> None:
    u, labels, _ = episodes()
    order = torch.tensor([2, 0, 3, 1])  # class k is now called order[k]
    renamed = torch.where(labels >= 0, order[labels.clamp_min(0)], -1)
    plain, other = (unrolled_em(u, y, 4, 3, 0.5, 1.0, 0.1) for y in (labels, renamed))
    back = EMState(
        other.mu[:, order],
        other.log_pi[:, order],
        other.log_alpha[:, :, order][..., order],
        other.log_resp[..., order],
        other.log_posterior,
    )
    same(plain, back)
    torch.testing.assert_close(query_log_posterior(plain, u), query_log_posterior(other, u)[..., order])


def test_permuting_annotators_or_items_permutes_the_result() -> None:
    u, labels, _ = episodes()
    plain = unrolled_em(u, labels, 4, 3, 0.5, 1.0, 0.1)
    annotators, items = torch.tensor([2, 0, 1]), torch.randperm(12, generator=torch.Generator().manual_seed(0))
    same(
        plain._replace(log_alpha=plain.log_alpha[:, annotators]),
        unrolled_em(u, labels[..., annotators], 4, 3, 0.5, 1.0, 0.1),
    )
    same(
        plain._replace(log_resp=plain.log_resp[:, items]),
        unrolled_em(u[:, items], labels[:, items], 4, 3, 0.5, 1.0, 0.1),
    )


def test_moving_all_embeddings_moves_the_means_only() -> None:
    """tau = 0 knows no origin; float32 far from 0 must not lose what tells the classes apart."""
    u, labels, _ = episodes()
    plain = unrolled_em(u, labels, 4, 3, 0.0, 1.0, 1.0)
    moved = unrolled_em((u + 1000).float(), labels, 4, 3, 0.0, 1.0, 1.0)
    torch.testing.assert_close(moved.log_resp.double(), plain.log_resp, rtol=0, atol=1e-2)


# --- the log posterior ----------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    tau=st.sampled_from([0.0, 0.1, 1.0, 30.0]),
    b=st.sampled_from([0.0, 1.0, 100.0]),
    c=st.sampled_from([0.0, 0.01, 1.0, 20.0]),
    spread=st.sampled_from([0.0, 0.3, 2.0, 30.0]),
    missing=st.sampled_from([0.0, 0.5, 0.95]),
    double=st.booleans(),
)
def test_log_posterior_never_falls(
    seed: int, tau: float, b: float, c: float, spread: float, missing: float, double: bool
) -> None:
    u, labels, _ = episodes(seed, spread=spread, missing=missing)
    history = unrolled_em(u if double else u.float(), labels, 4, 12, tau, b, c).log_posterior
    rounding = (1e-12 if double else 3e-6) * (1 + u.square().sum(dim=(1, 2)).unsqueeze(1) + history.abs())
    assert finite(history) and (history.diff(dim=1) >= -rounding[:, 1:]).all()


# --- degenerate cases -----------------------------------------------------------------------------

DEGENERATE = {
    "nobody labelled anything": torch.full((6, 3), -1),
    "an annotator without labels": torch.tensor([[0, 0, -1], [1, 1, -1], [2, 1, -1]] * 2),
    "items without labels": torch.tensor([[0, 0, 0], [-1, -1, -1], [1, 2, 1]] * 2),
    "one class only": torch.full((6, 3), 1),
    "one class only, one vote": torch.tensor([[-1, -1, 2]] + [[-1, -1, -1]] * 5),
    "always right": torch.arange(6).remainder(3).unsqueeze(1).repeat(1, 3),
    "one always wrong": torch.stack([torch.arange(6) % 3, torch.arange(6) % 3, (torch.arange(6) + 1) % 3], dim=1),
    "all always at odds": torch.stack([(torch.arange(6) + shift) % 3 for shift in range(3)], dim=1),
    "no annotators": torch.empty((6, 0), dtype=torch.long),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("labels", DEGENERATE.values(), ids=DEGENERATE.keys())
@pytest.mark.parametrize("prior", [(0.0, 0.0, 0.0), (1.0, 10.0, 1.0), (1e-6, 1e-6, 1e-6), (1e6, 1e6, 1e6)], ids=str)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1000.0])
def test_degenerate_supports_stay_finite(
    scale: float, prior: tuple[float, float, float], labels: Tensor, dtype: torch.dtype
) -> None:
    """checks.md 5 (chengsoonong/crowdastro#123): log(0) in EM. Distances of 1,000 underflow every responsibility."""
    u = scale * torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0), dtype=DOUBLE).to(dtype)
    u = u.requires_grad_()
    for steps in (1, 2, 8):
        state = unrolled_em(u, labels.expand(2, *labels.shape), 3, steps, *prior)
        answers = query_log_posterior(state, u)
        (gradient,) = torch.autograd.grad(sum(part.sum() for part in (*state, answers)), u)
        assert finite(*state, answers, gradient)
        assert all(part.dtype == dtype for part in state)


def test_identical_embeddings_and_two_classes_that_share_a_mean_stay_finite() -> None:
    u = torch.ones(1, 4, 3, requires_grad=True)
    state = unrolled_em(u, torch.tensor([[[0], [1], [0], [1]]]), 2, 5, 0.0, 1.0, 1.0)
    answers = query_log_posterior(state, u)
    torch.testing.assert_close(answers, torch.full_like(answers, math.log(0.5)))
    assert finite(torch.autograd.grad(answers.sum(), u)[0])


def test_a_class_without_weight_has_its_mean_at_the_limit_of_small_tau() -> None:
    u, labels, _ = episodes()
    labels[labels == 3] = -1
    labels[..., 0] = labels[..., 0].clamp_min(0)  # nobody votes for class 3, every item has a vote
    flat, nearly = (unrolled_em(u, labels, 4, 1, tau, 1.0, 1.0) for tau in (0.0, 1e-12))
    assert (flat.mu[:, 3] == 0).all()
    same(flat, nearly, 1e-8)


def test_a_class_whose_weight_underflows_keeps_its_weighted_mean() -> None:
    """lambda of exp(-2000) is 0 in any precision; plain sums gave 0/0, or a mean that jumped to 0."""
    u = torch.tensor([[[0.0], [0.1], [100.0], [100.1], [60.0]]], requires_grad=True)
    labels = torch.tensor([[[0], [0], [1], [1], [-1]]])
    state = unrolled_em(u, labels, 3, 4, 0.0, 1.0, 1.0)
    assert finite(*state) and state.log_resp.min() < -1000
    assert finite(torch.autograd.grad(query_log_posterior(state, u)[..., 2].sum(), u)[0])


# --- padding and batches --------------------------------------------------------------------------


def test_a_loop_over_episodes_of_different_sizes_is_the_padded_batch() -> None:
    u, labels, _ = episodes(n_episodes=4)
    sizes = (12, 4, 1, 9)
    mask = torch.arange(12) < torch.tensor(sizes).unsqueeze(1)
    leaf = u.masked_fill(~mask.unsqueeze(2), math.nan).requires_grad_()
    batch = unrolled_em(leaf, labels, 4, 3, 0.0, 1.0, 0.1, mask=mask)
    query_log_posterior(batch, u).logsumexp(0).sum().backward()
    assert finite(*batch) and leaf.grad is not None and finite(leaf.grad)
    assert (leaf.grad[~mask] == 0).all()
    torch.testing.assert_close(batch.log_resp[~mask], torch.full_like(batch.log_resp[~mask], -math.log(4)))
    for t, size in enumerate(sizes):
        alone = unrolled_em(u[t : t + 1, :size], labels[t : t + 1, :size], 4, 3, 0.0, 1.0, 0.1)
        same(EMState(*(part[t : t + 1] for part in batch))._replace(log_resp=batch.log_resp[t : t + 1, :size]), alone)


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_an_episode_that_is_all_padding_stays_finite(tau: float) -> None:
    u, labels, _ = episodes(n_episodes=2)
    mask = torch.tensor([[True], [False]]).repeat(1, 12)
    leaf = u.float().requires_grad_()
    state = unrolled_em(leaf, labels, 4, 2, tau, 0.0, 0.0, mask=mask)
    (gradient,) = torch.autograd.grad(query_log_posterior(state, leaf).square().sum(), leaf)
    assert finite(*state, gradient)


def test_an_item_that_nobody_labelled_is_not_padding() -> None:
    """Its embedding tells where the classes lie, and it counts in the class prior."""
    u, labels, _ = episodes(n_episodes=1, missing=0.0)
    labels[:, -4:] = -1
    mask = torch.ones(1, 12, dtype=torch.bool)
    mask[:, -4:] = False
    without, real = (unrolled_em(u, labels, 4, 2, 1.0, 1.0, 1.0, mask=m) for m in (mask, None))
    assert (without.mu - real.mu).abs().max() > 1e-2
    assert (real.log_resp[:, -4:].exp().amax(2) > 0.26).all(), "the E-step gives it responsibilities"


def test_two_runs_give_the_same_bits() -> None:
    u, labels, _ = episodes()

    def run() -> tuple[Tensor, ...]:
        leaf = u.float().requires_grad_()
        state = unrolled_em(leaf, labels, 4, 3, 1.0, 1.0, 1.0)
        return *state, torch.autograd.grad(query_log_posterior(state, leaf)[..., 0].sum(), leaf)[0]

    assert all(torch.equal(left, right) for left, right in zip(run(), run(), strict=True))


def test_autocast_does_not_round_the_products() -> None:
    u, labels, _ = episodes()
    plain = unrolled_em(u.float(), labels, 4, 3, 1.0, 1.0, 1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(plain, unrolled_em(u.float(), labels, 4, 3, 1.0, 1.0, 1.0), 0)
        assert query_log_posterior(plain, u.float()).dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": torch.full((3, 12, 3), 4)}, "labels holds class 4; with n_classes=4 the last is 3"),
        ({"labels": torch.zeros(3, 12, 3)}, "class ids are integers"),
        ({"labels": torch.zeros(3, 11, 3, dtype=torch.long)}, r"\[3, 12, 5\] and labels \[3, 11, 3\]"),
        ({"u": torch.zeros(3, 12, 5, dtype=torch.float16)}, "needs float32 or float64"),
        ({"steps": 0}, "steps 0"),
        ({"tau": -1.0}, "tau is -1.0"),
        ({"c": math.nan}, "c is nan"),
        ({"mask": torch.ones(3, 12)}, "must be bool"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, object], message: str) -> None:
    # A label of n_classes or more would be counted as the next annotator's label 0.
    u, labels, _ = episodes()
    arguments = {"u": u, "labels": labels, "n_classes": 4, "steps": 1, "tau": 1.0, "b": 1.0, "c": 1.0, **change}
    with pytest.raises(ValueError, match=message):
        unrolled_em(**arguments)
