"""Gradient saliency: which tokens an annotator's predicted label depends on, for methods without attention."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def gradient_saliency(score: Callable[[Tensor], Tensor], x: Tensor, skipped: int = 0) -> Tensor:
    """Gradient times input, its norm per token, divided by the sum over tokens.

    The gradient is that of the logit of each annotator's predicted class. Where all of it is 0, tokens weigh alike.
    Works under ``no_grad``; parameters must have been made outside inference mode.

    Args:
        score: items ``[B, ..., N, D]`` -> logits ``[B, R, C]``; one item's do not depend on another.
        x: tokens ``[B, N, D]``, or tokens of frames ``[B, F, N, D]``.
        skipped: first tokens (of each frame) that get weight 0, such as a class token; fewer than N.

    Returns:
        ``[B, R, N]`` or ``[B, R, F, N]``, not negative, with a sum of 1 over all tokens of an item.
    """
    with torch.inference_mode(False), torch.enable_grad():
        tokens = x.detach().clone().requires_grad_()
        best = score(tokens).amax(2).sum(0)
        gradients = [torch.autograd.grad(each, tokens, retain_graph=True)[0] for each in best]
    norms = torch.stack([(gradient * tokens.detach()).norm(dim=-1) for gradient in gradients], dim=1)
    kept = torch.ones_like(norms)
    kept[..., :skipped] = 0
    return _share(torch.where(_total(norms * kept) > 0, norms * kept, kept))


def _total(weights: Tensor) -> Tensor:
    """Sums ``[B, R, 1, ...]`` over all tokens of ``weights [B, R, ...]``."""
    return weights.sum(tuple(range(2, weights.ndim)), keepdim=True)


def _share(weights: Tensor) -> Tensor:
    return weights / _total(weights)
