"""Crowd layer and CoNAL on the features of a few items, for many episodes at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn import functional as F

from models.crowd_heads import (
    CrowdHead,
    common_share,
    conal_loss,
    crowd_layer_loss,
    fit_conal,
    fit_crowd_layer,
    predict,
)

FITS = pytest.mark.parametrize("fit", [fit_crowd_layer, fit_conal], ids=["crowd_layer", "conal"])
Fit = Callable[..., CrowdHead]


def episodes(n_episodes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Features ``[T, 8, 5]`` around four centres, labels ``[T, 8, 3]``, a quarter missing, classes ``[8]``."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.arange(8) % 4
    centres = 3 * torch.randn(n_episodes, 4, 5, generator=generator)
    features = centres[:, truth] + 0.3 * torch.randn(n_episodes, 8, 5, generator=generator)
    labels = truth.view(1, 8, 1).expand(n_episodes, 8, 3).clone()
    wrong = torch.rand(labels.shape, generator=generator) < 0.2
    labels = torch.where(wrong, torch.randint(4, labels.shape, generator=generator), labels)
    missing = torch.rand(labels.shape, generator=generator) < 0.25
    return features.double(), torch.where(missing, -1, labels), truth


def same(first: CrowdHead, second: CrowdHead) -> None:
    for one, other in zip(first.layers, second.layers, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
    torch.testing.assert_close(first.confusions, second.confusions, rtol=0, atol=1e-9)


# --- oracles --------------------------------------------------------------------------------------


@FITS
@pytest.mark.parametrize("hidden", [0, 6])
def test_all_episodes_at_once_are_a_loop_over_them(fit: Fit, hidden: int) -> None:
    features, labels, _ = episodes()
    together = fit(features, labels, 4, steps=15, lr=0.05, hidden=hidden)
    for t in range(3):
        alone = fit(features[t : t + 1], labels[t : t + 1], 4, steps=15, lr=0.05, hidden=hidden)
        same(
            CrowdHead(tuple((w[t : t + 1], b[t : t + 1]) for w, b in together.layers), together.confusions[t : t + 1]),
            alone,
        )


def test_one_step_of_the_crowd_layer_by_hand() -> None:
    # Adam's first step is the sign of the gradient, here of a plain double loop over items and annotators
    features, labels, _ = episodes(1)
    head = fit_crowd_layer(features, labels, 4, steps=1, lr=0.01)
    weight = torch.zeros(5, 4, dtype=torch.float64, requires_grad=True)
    total = features.new_zeros(())
    for n in range(8):
        p = (features[0, n] @ weight).softmax(0)
        for r in range(3):
            if labels[0, n, r] >= 0:
                total = total - p.log_softmax(0)[labels[0, n, r]]
    total.backward()
    assert weight.grad is not None
    torch.testing.assert_close(head.layers[0][0][0], -0.01 * weight.grad.sign(), rtol=0, atol=1e-6)


def test_identity_confusions_and_clean_labels_are_plain_softmax_regression() -> None:
    features, _, truth = episodes()
    clean = truth.view(1, 8, 1).expand(3, 8, 1)
    p = features[..., :4].softmax(2)
    eye = torch.eye(4, dtype=torch.float64).expand(3, 1, 4, 4)
    # cross-entropy whose scores are p: as published, the layer takes a softmax of a softmax
    plain = torch.stack([F.cross_entropy(one, truth) for one in p])
    torch.testing.assert_close(crowd_layer_loss(p, eye, clean), plain)
    head = fit_crowd_layer(features, clean, 4, steps=200, lr=0.05)
    queries = features + 0.1
    for t in range(3):
        regression = LogisticRegression().fit(features[t], truth)
        assert predict(head, queries)[t].argmax(1).tolist() == regression.predict(queries[t]).tolist()


def test_conal_loss_by_hand() -> None:
    generator = torch.Generator().manual_seed(1)
    p = torch.randn(1, 2, 3, generator=generator).softmax(2)
    omega = torch.rand(1, 2, 2, generator=generator)
    common, own = torch.randn(1, 3, 3, generator=generator), torch.randn(1, 2, 3, 3, generator=generator)
    labels = torch.tensor([[[2, -1], [0, 1]]])
    expected = torch.zeros(())
    for n, r in [(0, 0), (1, 0), (1, 1)]:
        z = omega[0, n, r] * (p[0, n] @ common[0]) + (1 - omega[0, n, r]) * (p[0, n] @ own[0, r])
        expected = expected - (z[labels[0, n, r]] - z.exp().sum().log())
    expected = expected / 3 - 0.1 * sum((own[0, r] - common[0]).square().sum().sqrt() for r in range(2))
    torch.testing.assert_close(conal_loss(p, omega, common, own, labels, 0.1), expected.view(1))


def test_the_common_share_is_the_sigmoid_of_a_cosine() -> None:
    items, annotators = torch.tensor([[[3.0, 0.0], [0.0, 0.0]]]), torch.tensor([[[2.0, 0.0], [0.0, -1.0], [-5.0, 0.0]]])
    expected = torch.tensor([[[1.0, 0.0, -1.0], [0.0, 0.0, 0.0]]]).sigmoid()
    torch.testing.assert_close(common_share(items, annotators), expected)


# --- missing labels -------------------------------------------------------------------------------


@FITS
def test_items_and_annotators_without_labels_change_nothing(fit: Fit) -> None:
    features, labels, _ = episodes()
    plain = fit(features, labels, 4, steps=20, lr=0.05)
    more_items = torch.cat([features, torch.full_like(features[:, :2], 7.0)], dim=1)
    more_labels = torch.cat([labels, torch.full_like(labels[:, :2], -1)], dim=1)
    same(plain, fit(more_items, more_labels, 4, steps=20, lr=0.05))
    idle = fit(features, F.pad(labels, (0, 1), value=-1), 4, steps=20, lr=0.05)
    same(plain, idle._replace(confusions=idle.confusions[:, :3]))
    start = torch.eye(4, dtype=torch.float64) * (1 if fit is fit_crowd_layer else 2)
    torch.testing.assert_close(idle.confusions[:, 3], start.expand(3, 4, 4))


@FITS
def test_without_any_label_all_classes_stay_equally_likely(fit: Fit) -> None:
    features, labels, _ = episodes()
    head = fit(features, torch.full_like(labels, -1), 4, steps=20, lr=0.05, hidden=3)
    torch.testing.assert_close(predict(head, features).exp(), torch.full((3, 8, 4), 0.25, dtype=torch.float64))


# --- what else is promised ------------------------------------------------------------------------


@FITS
def test_learns_the_classes_through_a_spammer(fit: Fit) -> None:
    features, _, truth = episodes()
    right = truth.view(1, 8, 1).expand(3, 8, 2)
    labels = torch.cat([right, torch.zeros(3, 8, 1, dtype=torch.long)], dim=2)
    head = fit(features, labels, 4, steps=150, lr=0.05)
    assert (predict(head, features).argmax(2) == truth).double().mean() > 0.95


@FITS
def test_fits_in_inference_mode_and_leaves_the_random_state_alone(fit: Fit) -> None:
    features, labels, _ = episodes()
    expected = fit(features, labels, 4, steps=5, hidden=3)
    before = torch.get_rng_state()
    with torch.inference_mode():
        found = fit(features.clone(), labels.clone(), 4, steps=5, hidden=3)
    same(expected, found)
    assert torch.equal(before, torch.get_rng_state())


def test_the_order_of_items_annotators_and_classes_does_not_matter() -> None:
    features, labels, _ = episodes()
    plain = predict(fit_crowd_layer(features.float(), labels, 4, steps=50), features.float())
    classes = torch.tensor([2, 0, 3, 1])
    renamed = torch.where(labels >= 0, classes[labels.clamp_min(0)], -1)
    other = fit_crowd_layer(features.float().flip(1), renamed.flip(1, 2), 4, steps=50)
    torch.testing.assert_close(predict(other, features.float())[..., classes], plain, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_classes": 2}, "labels holds class 3"),
        ({"steps": 0}, "steps 0"),
        ({"lr": 0.0}, "lr 0.0"),
        ({"labels": torch.zeros(3, 7, 3, dtype=torch.long)}, "fit"),
        ({"labels": torch.zeros(3, 8, 3)}, "integers"),
    ],
)
@FITS
def test_bad_input_is_named(fit: Fit, change: dict[str, object], message: str) -> None:
    features, labels, _ = episodes()
    with pytest.raises(ValueError, match=message):
        fit(**{"features": features, "labels": labels, "n_classes": 4, **change})
