"""Base: one classifier per annotator on pooled features, and its gradient saliency."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmark.testing import iter_checks
from datamodules.base import DataInfo
from models.annotator_heads.module import AnnotatorHeads
from models.annotator_heads.pooling import POOLINGS, entropy_share, pool, pooled_width
from models.annotator_heads.saliency import gradient_saliency
from models.qumatl.heads import Heads, Projection

TOKENS = DataInfo(n_classes=5, n_annotators=6, input_shape=(4, 8))
SHAPES = ((8,), (4, 8), (3, 4, 8))


def items(shape: tuple[int, ...], n_items: int = 3) -> Tensor:
    return torch.randn(n_items, *shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("check", list(iter_checks(AnnotatorHeads, data_info=TOKENS)), ids=str)
def test_contract(check) -> None:  # type: ignore[no-untyped-def]
    check()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_every_pooling_reads_features_tokens_and_frames(shape: tuple[int, ...], pooling: str) -> None:
    x = items(shape)
    assert pool(x, pooling).shape == (3, pooled_width(shape, pooling))  # type: ignore[arg-type]
    method = AnnotatorHeads(DataInfo(5, 6, shape), pooling=pooling).eval()  # type: ignore[arg-type]
    assert method.annotator_logits(x).shape == (3, 6, 5)


def test_poolings_by_hand() -> None:
    x = items((4, 8))
    assert torch.equal(pool(x, "mean"), x.mean(1))
    assert torch.equal(pool(x, "class_token"), x[:, 0])
    assert torch.equal(pool(x, "flatten"), x.reshape(3, 32))
    frames = items((3, 4, 8))
    torch.testing.assert_close(pool(frames, "mean"), frames.mean((1, 2)))
    assert torch.equal(pool(frames, "class_token"), frames[:, :, 0].mean(1))


def test_mean_pooling_cannot_tell_places_apart_and_flattened_tokens_can() -> None:
    x = items((4, 8))
    moved = x.flip(1)
    mean, flat = (AnnotatorHeads(TOKENS, pooling=name).eval() for name in ("mean", "flatten"))  # type: ignore[arg-type]
    torch.testing.assert_close(mean.annotator_logits(x), mean.annotator_logits(moved))
    assert not torch.allclose(flat.annotator_logits(x), flat.annotator_logits(moved), atol=1e-4)


def test_heads_and_projection_are_those_of_qumatl() -> None:
    # equal terms: what differs is what is read, not what is put on top of it
    method = AnnotatorHeads(DataInfo(6, 10, (257, 1408)))
    total = sum(parameter.numel() for parameter in method.parameters())
    assert total == 1408 * 256 + 256 + 673_340
    assert isinstance(method.heads, Heads) and isinstance(method.pooled.projection, Projection)


@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
@pytest.mark.parametrize("pooling", ["mean", "flatten"])
def test_saliency_is_a_share_of_each_token(shape: tuple[int, ...], pooling: str) -> None:
    method = AnnotatorHeads(DataInfo(5, 6, shape), pooling=pooling).eval()  # type: ignore[arg-type]
    x = items(shape)
    with torch.no_grad():
        found = method.attention(x)
    assert found is not None and found.shape == (3, 6, *shape[:-1])
    assert bool((found >= 0).all()) and not found.requires_grad
    torch.testing.assert_close(found.flatten(2).sum(2), torch.ones(3, 6))
    assert all(parameter.grad is None for parameter in method.parameters())


def test_saliency_is_asked_for_under_inference_mode() -> None:
    # evaluation runs under inference mode, in which no gradient exists
    method = AnnotatorHeads(TOKENS).eval()
    x = items((4, 8))
    with torch.inference_mode():
        inside = method.attention(x.clone())
    outside = method.attention(x)
    assert inside is not None and outside is not None
    torch.testing.assert_close(inside, outside)


def test_saliency_of_a_linear_score_by_hand() -> None:
    """Annotator r reads token r alone: all of the weight lies there; of a score that reads nothing it is even."""
    x = items((3, 8))
    weight = torch.randn(3, 8, 5, generator=torch.Generator().manual_seed(1))
    found = gradient_saliency(lambda tokens: torch.einsum("bnd,ndc->bnc", tokens, weight), x)
    torch.testing.assert_close(found, torch.eye(3).expand(3, 3, 3))
    mixed = gradient_saliency(lambda tokens: tokens.sum(1)[:, None, :1].expand(-1, 2, 5), x)
    expected = x[..., 0].abs() / x[..., 0].abs().sum(1, keepdim=True)
    torch.testing.assert_close(mixed, expected[:, None].expand(-1, 2, -1))
    nothing = gradient_saliency(lambda tokens: 0 * tokens.sum(1)[:, None, :5], x)
    torch.testing.assert_close(nothing, torch.full((3, 1, 3), 1 / 3))
    # all of it on a token that is skipped: the others weigh alike
    first = gradient_saliency(lambda tokens: tokens[:, :1, :5], x, skipped=1)
    torch.testing.assert_close(first, torch.tensor([0.0, 0.5, 0.5]).expand(3, 1, 3))


def test_where_there_is_nothing_to_look_at_there_is_no_attention() -> None:
    assert AnnotatorHeads(DataInfo(5, 6, (8,))).attention(items((8,))) is None
    assert AnnotatorHeads(TOKENS, pooling="class_token").attention(items((4, 8))) is None
    found = AnnotatorHeads(TOKENS, class_token=True).eval().attention(items((4, 8)))
    assert found is not None and bool((found[..., 0] == 0).all())
    torch.testing.assert_close(found.sum(2), torch.ones(3, 6))


def test_entropy_is_a_share_of_the_largest() -> None:
    spread = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25, 0.25, 0.25, 0.25]])
    torch.testing.assert_close(entropy_share(spread), torch.tensor([0.0, 0.5, 1.0]))


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="pooling must be one of mean, class_token, flatten, not 'max'"):
        AnnotatorHeads(TOKENS, pooling="max")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give the cell an encoder"):
        AnnotatorHeads(DataInfo(5, 6, (2, 3, 8, 8)))
    with pytest.raises(ValueError, match="lr is 0"):
        AnnotatorHeads(TOKENS, lr=0)
