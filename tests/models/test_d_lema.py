"""D-LEMA: one dropout network per annotator."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmark.testing import iter_checks
from datamodules.base import DataInfo
from models.d_lema.ensemble import Ensemble, fuse
from models.d_lema.module import DLema

TOKENS = DataInfo(n_classes=5, n_annotators=6, input_shape=(4, 8))


def items() -> Tensor:
    return torch.randn(7, 4, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("check", list(iter_checks(DLema, data_info=TOKENS, passes=3)), ids=str)
def test_contract(check) -> None:  # type: ignore[no-untyped-def]
    check()


def test_passes_are_the_same_when_asked_again_and_follow_from_the_seed() -> None:
    torch.manual_seed(0)
    method = DLema(TOKENS, passes=4).eval()
    first = method.predict_annotators(items())
    torch.manual_seed(99)
    assert torch.equal(first, method.predict_annotators(items()))
    torch.manual_seed(0)
    again = DLema(TOKENS, passes=4).eval()
    assert torch.equal(first, again.predict_annotators(items()))
    torch.manual_seed(1)
    other = DLema(TOKENS, passes=4).eval()
    assert not torch.equal(method.ensemble.masks, other.ensemble.masks)


def test_a_pass_is_one_thinned_network_by_hand() -> None:
    """The mean over passes, against networks written out one by one, member by member."""
    torch.manual_seed(0)
    ensemble = Ensemble(2, 8, 3, dropout=0.5, passes=3)
    pooled = items()[:, 0]
    for member in range(2):
        (w0, w1, w2), (b0, b1, b2) = (
            [each[member] for each in ensemble.weights],
            [each[member] for each in ensemble.biases],
        )
        answers = []
        for outer, inner in ensemble.masks[:, :, member].float():
            features = F.normalize(pooled @ w0 + b0, dim=-1) * outer / 0.5
            answers.append((((features @ w1 + b1).relu() * inner / 0.5) @ w2 + b2).softmax(-1))
        expected = torch.stack(answers).mean(0)
        torch.testing.assert_close(ensemble.mean_log_probabilities(pooled)[:, member].exp(), expected)


def test_without_dropout_all_passes_are_the_network_itself() -> None:
    method = DLema(TOKENS, dropout=0.0, passes=3).eval()
    x = items()
    evaluated = method.predict_annotators(x)
    torch.testing.assert_close(evaluated, method.train().annotator_logits(x).log_softmax(-1))


def test_members_share_no_weight() -> None:
    """One annotator's labels move one member alone, so none can contradict another's."""
    method = DLema(TOKENS).train()
    labels = torch.full((7, 6), -1)
    labels[:, 2] = 1
    method.loss({"x": items()}, labels).backward()
    for parameter in method.parameters():
        assert parameter.grad is not None
        assert bool((parameter.grad[[0, 1, 3, 4, 5]] == 0).all()) and bool((parameter.grad[2] != 0).any())


def test_fusion_listens_to_the_certain() -> None:
    sure, even, half = [0.98, 0.01, 0.01], [1 / 3] * 3, [0.0, 0.5, 0.5]
    pair = torch.tensor([[sure, even], [even, even], [half, half]]).clamp_min(1e-30).log()
    fused = fuse(pair).exp()
    torch.testing.assert_close(fused, torch.tensor([sure, even, half]), atol=1e-4, rtol=0)
    torch.testing.assert_close(fused.sum(1), torch.ones(3))


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="dropout is 1"):
        DLema(TOKENS, dropout=1)
    with pytest.raises(ValueError, match="passes 0"):
        DLema(TOKENS, passes=0)
