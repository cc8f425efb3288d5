"""Encoders: names, arguments, fingerprints, patches against the textbook formulas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.encoders import EncoderError, build_encoder, encoder_arguments, encoder_identity
from models.encoders.patches import (
    PatchEncoder,
    as_filters,
    dictionary,
    normalise_contrast,
    pooled,
    random_patches,
    responses,
    zca,
)

SMALL = {"features": 16, "patches": 400}


def images(count: int, shape: tuple[int, int, int] = (3, 32, 32), seed: int = 0) -> Tensor:
    """Smooth random images, so that patches have structure."""
    noise = torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed))
    smooth = torch.nn.functional.avg_pool2d(noise, 3, 1, 1)
    return (smooth * 255).byte()


# --- names and arguments --------------------------------------------------------------------------


def test_unknown_names_list_near_ones() -> None:
    with pytest.raises(ValueError, match="patches"):
        build_encoder("patchs")
    with pytest.raises(ValueError, match="resnet18"):
        build_encoder("timm/resnet_18")
    with pytest.raises(ValueError, match=r"eva_giant_patch14_clip_224\.laion400m"):
        encoder_arguments("eva_giant_patch14_clip_224.laion400", {})


def test_wrong_arguments_are_named_with_near_ones() -> None:
    with pytest.raises(EncoderError, match="'feature'.*features"):
        encoder_arguments("patches", {"feature": 8})
    with pytest.raises(EncoderError, match=r"patches.*grid"):
        encoder_arguments("patches", {"grid": "two"})
    with pytest.raises(EncoderError, match=r"resnet18.*init"):
        encoder_arguments("resnet18", {"init": "rand"})
    with pytest.raises(EncoderError, match="even number"):
        build_encoder("patches", features=7)


def test_resolved_arguments_hold_every_default_and_resolve_to_themselves() -> None:
    resolved = encoder_arguments("patches", {"features": 64})
    assert resolved["features"] == 64 and resolved["grid"] == 2 and resolved["patch_size"] is None
    assert encoder_arguments("patches", resolved) == resolved
    assert build_encoder("patches", **resolved).dim == 64


def test_identity_holds_the_digest_of_weights_and_no_path(tmp_path: Path) -> None:
    for name, content in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / name).write_bytes(content)
    a, b, c = (encoder_identity("timm/resnet18", {"pretrained": str(tmp_path / name)}) for name in "abc")
    assert a == b != c
    assert str(tmp_path) not in str(a)
    assert encoder_identity("test_vit", {})["pretrained"] == "timm/test_vit.r160_in1k"
    with pytest.raises(FileNotFoundError, match=r"no file .*absent\.pt"):
        encoder_identity("resnet18", {"pretrained": str(tmp_path / "absent.pt")})


# --- patches: the maths ---------------------------------------------------------------------------


def test_whitened_patches_have_the_identity_as_covariance() -> None:
    patches = normalise_contrast(random_patches(images(50).numpy(), 4, 5_000, np.random.default_rng(0)), 10.0)
    whitening = zca(patches, 1e-9)
    covariance = np.cov((patches - whitening.mean) @ whitening.matrix, rowvar=False)
    # the mean of every patch is taken out, so one direction of the 48 is empty
    values = np.linalg.eigvalsh(covariance)
    np.testing.assert_allclose(values[1:], 1, atol=1e-4)
    assert values[0] < 1e-3


@given(epsilon=st.floats(1e-3, 10), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_whitening_shrinks_each_eigenvalue_as_announced(epsilon: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    patches = random.normal(size=(400, 6)) @ random.normal(size=(6, 6))
    whitening = zca(patches, epsilon)
    np.testing.assert_allclose(whitening.matrix, whitening.matrix.T, atol=1e-9)
    values = np.linalg.eigvalsh(np.cov(patches, rowvar=False))
    found = np.linalg.eigvalsh(np.cov((patches - whitening.mean) @ whitening.matrix, rowvar=False))
    np.testing.assert_allclose(found, np.sort(values / (values + epsilon)), rtol=1e-6)


@pytest.mark.parametrize("shape", [(3, 12, 10), (1, 8, 8)], ids=str)
def test_convolution_equals_whitening_each_patch(shape: tuple[int, int, int]) -> None:
    items, size = images(5, shape), 3
    patches = normalise_contrast(random_patches(items.numpy(), size, 2_000, np.random.default_rng(1)), 10.0)
    whitening = zca(patches, 0.1)
    entries = dictionary((patches - whitening.mean) @ whitening.matrix, 7, seed=0)
    filters, biases = as_filters(entries, whitening)
    found = responses(
        items.float(),
        torch.from_numpy(filters).float().reshape(7, shape[0], size, size),
        torch.from_numpy(biases).float(),
        10.0,
    )
    windows = torch.nn.functional.unfold(items.double(), size).transpose(1, 2).reshape(-1, shape[0] * size**2)
    whitened = (normalise_contrast(windows.numpy(), 10.0) - whitening.mean) @ whitening.matrix
    expected = (whitened @ entries.T).reshape(5, -1, 7).swapaxes(1, 2)
    np.testing.assert_allclose(found.flatten(2).numpy(), expected, atol=2e-4)


def test_brighter_images_have_the_same_tokens_and_plain_ones_finite_tokens() -> None:
    encoder = PatchEncoder(**SMALL)
    encoder.fit(images(40))
    items = images(3, seed=1) // 2
    torch.testing.assert_close(encoder.tokens(items), encoder.tokens(items + 100), atol=2e-3, rtol=1e-3)
    assert torch.isfinite(encoder.tokens(torch.full((1, 3, 32, 32), 255, dtype=torch.uint8))).all()


def test_pooling_by_hand() -> None:
    products = torch.tensor([[[[2.0, -3.0], [0.2, 0.0]]]])
    tokens = pooled(products.clone(), threshold=1.0, grid=1)
    torch.testing.assert_close(tokens, torch.tensor([[[(1 / 4) ** 0.5, (2 / 4) ** 0.5]]]))
    grid = pooled(products.clone(), 1.0, 2)
    assert grid.shape == (1, 4, 2)
    torch.testing.assert_close(grid[0], torch.tensor([[1.0, 0.0], [0.0, 2**0.5], [0.0, 0.0], [0.0, 0.0]]))


# --- patches: the encoder -------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (1, 28, 28)], ids=str)
def test_tokens_have_the_announced_shape_and_are_standardised(shape: tuple[int, int, int]) -> None:
    encoder = PatchEncoder(**SMALL)
    items = images(60, shape)
    encoder.fit(items)
    tokens = encoder.tokens(items)
    assert tokens.shape == (60, encoder.n_tokens, encoder.dim) == (60, 4, 16)
    assert tokens.dtype == torch.float32 and not tokens.requires_grad
    alive = encoder.state()["scale"] > 0
    torch.testing.assert_close(tokens.mean(0), torch.zeros(4, 16), atol=1e-4, rtol=0)
    torch.testing.assert_close(tokens.std(0, unbiased=False)[alive], torch.ones(int(alive.sum())), atol=1e-3, rtol=0)


def test_the_same_images_and_seed_give_the_same_bits() -> None:
    items = images(40)
    torch.manual_seed(1)
    first = PatchEncoder(**SMALL)
    first.fit(items)
    torch.manual_seed(2)
    np.random.seed(5)
    second = PatchEncoder(**SMALL)
    second.fit(items)
    other = PatchEncoder(**SMALL, seed=1)
    other.fit(items)
    assert first.fingerprint() == second.fingerprint() != other.fingerprint()
    assert torch.equal(first.tokens(items), second.tokens(items))


def test_fitting_leaves_the_global_random_state_alone() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    expected = torch.rand(1), np.random.rand()
    torch.manual_seed(0)
    np.random.seed(0)
    PatchEncoder(**SMALL).fit(images(20))
    assert (torch.rand(1), np.random.rand()) == expected


def test_fingerprint_covers_weights_and_preprocessing() -> None:
    items = images(40)
    fingerprints = set()
    for change in ({}, {"threshold": 0.3}, {"contrast": 30.0}, {"seed": 3}, {"whitening": 1.0}, {"patch_size": 4}):
        encoder = PatchEncoder(**SMALL, **change)
        encoder.fit(items)
        fingerprints.add(encoder.fingerprint())
    state = encoder.state()
    state["filters"] = state["filters"].clone()
    state["filters"].view(-1)[0] += 1e-6
    encoder.load_state(state)
    fingerprints.add(encoder.fingerprint())
    assert len(fingerprints) == 7


def test_misuse_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"fit\(images\)"):
        PatchEncoder(**SMALL).tokens(images(1))
    encoder = PatchEncoder(**SMALL)
    with pytest.raises(ValueError, match="no 2 x 2 cells"):
        encoder.fit(images(4, (1, 3, 3)))
    encoder.fit(images(10, (1, 8, 8)))
    with pytest.raises(ValueError, match="3 channels.*fitted on 1"):
        encoder.tokens(images(1))


def test_patches_tell_digits_apart() -> None:
    from sklearn.linear_model import RidgeClassifier

    from datamodules.digits import Digits

    data = Digits("clean")
    data.setup()
    train, test = data.data.x, data.data.test_x
    encoder = PatchEncoder(features=100, patches=5_000)
    encoder.fit(train)
    probe = RidgeClassifier(10.0).fit(encoder.tokens(train).flatten(1).numpy(), data.data.true_labels.numpy())
    accuracy = probe.score(encoder.tokens(test).flatten(1).numpy(), data.data.test_labels.numpy())
    assert accuracy > 0.95
