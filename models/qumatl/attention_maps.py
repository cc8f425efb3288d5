"""From cross-attention weights to what each annotator looks at: weights over tokens with a sum of 1."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Scaling = Literal["min_max", "none"]


def attention_map(weights: Tensor, scaling: Scaling, skipped: int = 0) -> Tensor:
    """Mean over heads of cross-attention weights, with a sum of 1 over the tokens.

    Args:
        weights: ``[..., heads, Q, N]``, not negative.
        scaling: ``min_max``: each head's weights of a query run from 0 to 1 before the mean, as in the released
            code; ``none``: as they are.
        skipped: so many tokens at the start (a class token) get weight 0.

    Returns:
        ``[..., Q, N]`` float32. Where all tokens have one weight (min-max leaves nothing of it), each kept one
        has the same.

    Raises:
        ValueError: for another ``scaling``, or if no token is left.
    """
    if scaling not in ("min_max", "none"):
        raise ValueError(f"attention_scaling must be 'min_max' or 'none', not {scaling!r}")
    # half precision cannot tell the smallest differences from none
    kept = weights[..., skipped:].float()
    if not kept.shape[-1]:
        raise ValueError(
            f"items have {weights.shape[-1]} tokens and {skipped} of them is the class token: none is left"
        )
    if scaling == "min_max":
        low, high = kept.amin(-1, keepdim=True), kept.amax(-1, keepdim=True)
        kept = (kept - low) / (high - low).clamp_min(torch.finfo(kept.dtype).tiny)
    mean = kept.mean(-3)
    total = mean.sum(-1, keepdim=True)
    mean = torch.where(total > 0, mean / total.clamp_min(torch.finfo(mean.dtype).tiny), 1 / mean.shape[-1])
    return torch.cat([mean.new_zeros(*mean.shape[:-1], skipped), mean], -1)


def through_frames(frame_map: Tensor, token_maps: Tensor) -> Tensor:
    """Where the video queries look in the frames, through each frame's compression queries.

    Args:
        frame_map: ``[B, R, F, P]``, weights over P compression queries of F frames with a sum of 1 over both.
        token_maps: ``[B, F, P, N]``, each compression query's weights over its frame's N tokens with a sum of 1.

    Returns:
        ``[B, R, F, N]`` with a sum of 1 over frames and tokens. Its sum over tokens is the released code's weight of a
        frame (the mean over its P queries) up to a factor that all frames share.
    """
    return torch.einsum("brfp,bfpn->brfn", frame_map, token_maps)
