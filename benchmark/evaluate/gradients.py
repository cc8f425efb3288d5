"""Gradients: the noise that delivering votes one at a time puts on the last layer's gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmark.evaluate.examples import frequencies, rounded
from benchmark.evaluate.measured import Measured
from benchmark.evaluate.skill import correlation
from benchmark.metrics.distributions import entropy
from datamodules.base import CrowdDataModule
from models.base import CrowdModule

#: digits of an entropy or a variance that count when they are ranked: equal votes tie however they were summed
RANK_DIGITS = 10


def measure(method: CrowdModule, datamodule: CrowdDataModule) -> Measured:
    """Variance of the last layer's gradient over the draw of one label, against the votes' entropy.

    ``gradient_variance`` holds :func:`label_noise` of every unaugmented training item with a vote under the
    regime, in the order of ``train_items``, ``vote_entropy`` the entropy of its votes in nats; both rounded to
    six digits. ``gradient_entropy_correlation`` is Spearman's correlation of the two, None where the method
    gives no features (``CrowdModule.embed``) or one of the two is constant.
    """
    loader = datamodule.scan_dataloader()
    features = [method.embed(batch["x"].to(method.device)) for batch in loader]
    found = [part.double().cpu() for part in features if part is not None]
    if len(found) < len(features):
        return Measured({"gradient_entropy_correlation": None})
    spread = frequencies(datamodule.train_annotations.votes()[datamodule.train_items])
    voted = ~spread.isnan().any(1)
    variance = label_noise(torch.cat(found)[voted], spread[voted])
    doubt = entropy(spread[voted])
    ranked = correlation("spearman", variance.round(decimals=RANK_DIGITS), doubt.round(decimals=RANK_DIGITS))
    return Measured(
        {"gradient_entropy_correlation": ranked},
        {"gradient_variance": rounded(variance), "vote_entropy": rounded(doubt)},
    )


def label_noise(features: Tensor, probabilities: Tensor) -> Tensor:
    """Trace ``[N]`` of the covariance of a linear last layer's gradient when the label is drawn.

    With logits ``W h + b`` the cross-entropy's gradient of ``(W, b)`` for label y is ``(q - e_y) (h, 1)'``. The
    covariance of ``q - e_y`` over y ~ p is ``Diag(p) - pp'``, whatever q (proposition 1 of the paper), so the
    trace is ``(1 - |p|^2) (|h|^2 + 1)``: exact, no label is drawn.

    Args:
        features: h ``[N, D]``, what the last layer reads.
        probabilities: p ``[N, C]``, the distribution of the label.
    """
    return (1 - probabilities.square().sum(1)).clamp_min(0) * (features.square().sum(1) + 1)
