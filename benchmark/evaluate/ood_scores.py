"""Six scores of how unlike the training data an item seems; each is higher the more so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from models.base import CrowdModule

SCORES = ("msp", "entropy", "max_logit", "energy", "odin", "mahalanobis")
#: of ODIN: Liang et al., 2018, section 4: T = 1000, epsilon = 0.0014 (in units of pixels between 0 and 1)
ODIN_TEMPERATURE = 1000.0
ODIN_EPSILON = 0.0014
#: share of the mean variance mixed into the covariance, which is then never singular
SHRINKAGE = 0.01


@dataclass(frozen=True)
class FeatureGaussians:
    """One Gaussian a class with a covariance that all share (Lee et al., 2018, eq. 1), on the last features.

    Attributes:
        means: ``[K, D]`` float64 of the K classes that have an item.
        factor: lower Cholesky factor ``[D, D]`` of the shrunk covariance.
    """

    means: Tensor
    factor: Tensor

    @classmethod
    def fit(cls, features: Tensor, labels: Tensor) -> FeatureGaussians:
        """From features ``[N, D]`` and class ids ``[N]``, at least one item."""
        features = features.double()
        classes, member = labels.unique(return_inverse=True)
        sums = torch.zeros(len(classes), features.shape[1], dtype=torch.float64).index_add_(0, member, features)
        means = sums / member.bincount(minlength=len(classes)).unsqueeze(1)
        centred = features - means[member]
        covariance = centred.T @ centred / len(features)
        mean_variance = covariance.diagonal().mean()
        # features that never vary would leave nothing to divide by
        ridge = (SHRINKAGE * mean_variance).clamp_min(torch.finfo(torch.float32).eps)
        shrunk = (1 - SHRINKAGE) * covariance + ridge * torch.eye(len(covariance), dtype=torch.float64)
        return cls(means, torch.linalg.cholesky(shrunk))

    def distance(self, features: Tensor) -> Tensor:
        """Squared Mahalanobis distance ``[N]`` of ``features [N, D]`` to the nearest class."""
        away = features.double().unsqueeze(1) - self.means  # [N, K, D]
        whitened = torch.linalg.solve_triangular(self.factor, away.flatten(0, 1).T, upper=False)
        return whitened.square().sum(0).view(away.shape[:2]).amin(1)


def ood_scores(
    method: CrowdModule,
    batches: Iterable[Mapping[str, Any]],
    std: Sequence[float] | None,
    gaussians: FeatureGaussians | None,
) -> dict[str, Tensor]:
    """Scores ``[N]`` (float64, CPU) of the items of ``batches`` by name; without those that the method cannot give.

    Args:
        method: in evaluation mode. ``max_logit``, ``energy`` and ``odin`` need its ``class_logits``.
        batches: hold ``x``, normalised.
        std: per-channel standard deviation by which images were divided; None: none.
        gaussians: of the training items' features; None: no ``mahalanobis``.
    """
    parts: dict[str, list[Tensor]] = {}
    for batch in batches:
        x = batch["x"].to(method.device)
        scores = output_scores(method, x)
        odin = odin_score(method, x, std)
        if odin is not None:
            scores["odin"] = odin
        features = method.embed(x) if gaussians is not None else None
        if gaussians is not None and features is not None:
            scores["mahalanobis"] = gaussians.distance(features.detach().cpu())
        for name, values in scores.items():
            parts.setdefault(name, []).append(values.detach().double().cpu())
    return {name: torch.cat(values) for name, values in parts.items()}


def output_scores(method: CrowdModule, x: Tensor) -> dict[str, Tensor]:
    """Scores ``[B]`` of the outputs alone, float64.

    ``msp``: minus the largest probability (Hendrycks & Gimpel, 2017). ``entropy`` of the predicted
    distribution in nats. ``max_logit``: minus the largest logit (Hendrycks et al., 2022). ``energy``: minus
    the logarithm of the sum of exponentiated logits (Liu et al., 2020, eq. 3, T = 1).
    """
    logits = method.class_logits(x)
    # from logits in float64, where there are any: in float32 all that is very certain has the probability 1
    log_probabilities = (method.predict_consensus(x) if logits is None else logits).double().log_softmax(1)
    scores = {
        "msp": -log_probabilities.amax(1).exp(),
        "entropy": torch.special.entr(log_probabilities.exp()).sum(1),
    }
    if logits is not None:
        scores["max_logit"] = -logits.double().amax(1)
        scores["energy"] = -logits.double().logsumexp(1)
    return scores


def odin_score(method: CrowdModule, x: Tensor, std: Sequence[float] | None) -> Tensor | None:
    """Minus the largest softmax value ``[B]`` at a high temperature after a small step towards it; None: no logits.

    Liang, Li & Srikant, Enhancing the reliability of out-of-distribution image detection, ICLR 2018, eq. 1
    and 2: ``x~ = x - epsilon sign(-grad_x log S(x; T))``. Epsilon counts in pixels between 0 and 1, so in
    the normalised input a channel's step is ``epsilon / std``, as in the authors' code; on features it
    counts in their own unit.

    Args:
        method: in evaluation mode; gradients of its weights are not touched.
        x: items ``[B, ...]``, normalised.
        std: per-channel standard deviation ``[channels]``, or None.
    """
    # the caller measures without gradients; a tensor from there cannot take part in one, a copy can
    with torch.inference_mode(False), torch.enable_grad():
        inputs = x.clone().requires_grad_()
        logits = method.class_logits(inputs)
        if logits is None:
            return None
        confidence = (logits / ODIN_TEMPERATURE).log_softmax(1).amax(1).sum()
        (gradient,) = torch.autograd.grad(confidence, inputs)
    step = torch.full((), ODIN_EPSILON, dtype=x.dtype, device=x.device)
    if std is not None:
        step = step / torch.tensor(std, dtype=x.dtype, device=x.device).reshape(1, -1, *[1] * (x.ndim - 2))
    moved = method.class_logits(x + step * gradient.sign())
    assert moved is not None
    return -(moved.double() / ODIN_TEMPERATURE).softmax(1).amax(1)
