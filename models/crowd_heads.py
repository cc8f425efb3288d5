"""Classifiers that are learned from several annotators' labels of a few items, for many episodes at once.

- crowd layer: Rodrigues and Pereira, "Deep Learning from Crowds" (2018), variant MW (one matrix per annotator)
- CoNAL: Chu, Ma, Wang, "Learning from Crowds by Modeling Common Confusions" (2021)

Both put an annotator part on a softmax classifier of the items' features, learn the two together by Adam, and answer
with the classifier alone. T is the number of episodes, N of support items, D of features, R of annotators, K of
classes. Each episode has weights of its own and starts from the same ones; losses are summed over episodes and Adam
works on each number by itself, so no episode sees another.

The output layer starts at 0: without labels all classes stay equally likely. A missing label, an annotator without
labels and an item without labels change nothing.

Everything is fitted in float64: Adam makes a full step of the smallest gradient, and in float32 the rounding of a
gradient that should be 0 is large enough that another order of items would give other weights.

>>> import torch
>>> features = torch.tensor([[[0.0, 1.0], [0.2, 1.0], [1.0, 0.0], [1.0, 0.2]]])  # one episode, four items
>>> labels = torch.tensor([[[0, 0], [0, 1], [1, 1], [1, -1]]])  # two annotators; the last label is missing
>>> head = fit_crowd_layer(features, labels, n_classes=2, steps=50, lr=0.1)
>>> predict(head, torch.tensor([[[0.1, 0.9], [0.9, 0.1]]])).argmax(-1).tolist()
[[0, 1]]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

#: numbers in CoNAL's vectors of items and of annotators
EMBEDDING = 20
#: CoNAL's matrices start as this many times the identity
CONAL_START = 2.0

#: weight ``[T, in, out]`` and bias ``[T, 1, out]`` of one layer
Layer = tuple[Tensor, Tensor]


class CrowdHead(NamedTuple):
    """What was learned in each of T episodes.

    Attributes:
        layers: the classifier, one layer or two with a ReLU between them.
        confusions: each annotator's matrix ``[T, R, K, K]`` (true class, then given label), not normalised.
    """

    layers: tuple[Layer, ...]
    confusions: Tensor


def fit_crowd_layer(
    features: Tensor,
    labels: Tensor,
    n_classes: int,
    steps: int = 100,
    lr: float = 1e-3,
    *,
    hidden: int = 0,
    seed: int = 0,
) -> CrowdHead:
    """A classifier with a crowd layer, by ``steps`` steps of Adam on all support items at once.

    Works under ``no_grad`` and in inference mode; no gradient flows back to ``features``.

    Args:
        features: of the support items ``[T, N, D]``.
        labels: class ids ``[T, N, R]``, -1 where missing.
        n_classes: K.
        steps: of Adam, at least 1.
        lr: its learning rate, above 0.
        hidden: units of a hidden layer between features and classes; 0: none, a linear classifier.
        seed: of the hidden layer's initial weights, the same in all episodes; without one nothing is random.

    Raises:
        ValueError: if shapes, a label or a setting is not as above.
    """
    _check(features, labels, n_classes, steps, lr)
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(features.device.type, enabled=False):
        x, given = _own(features), labels.long().clone()
        layers = _new_layers(x, n_classes, hidden, torch.Generator().manual_seed(seed))
        confusions = _identities(x, given.shape[2], n_classes)

        def loss() -> Tensor:
            return crowd_layer_loss(_scores(layers, x).softmax(dim=2), confusions, given).sum()

        _descend([*_flat(layers), confusions], loss, steps, lr)
        return CrowdHead(_detached(layers), confusions.detach())


def fit_conal(
    features: Tensor,
    labels: Tensor,
    n_classes: int,
    steps: int = 100,
    lr: float = 1e-3,
    *,
    hidden: int = 0,
    weight: float = 1e-5,
    seed: int = 0,
) -> CrowdHead:
    """A classifier with CoNAL's common and individual confusions; see :func:`fit_crowd_layer` for the rest.

    How much of a label comes from the common confusions depends on item and annotator:
    ``omega = sigmoid(v_i . u_r)``, with ``v_i`` a linear map of the item's features and ``u_r`` the annotator's vector,
    both of length 1.

    Args:
        features: of the support items ``[T, N, D]``.
        labels: class ids ``[T, N, R]``, -1 where missing.
        n_classes: K.
        steps: of Adam, at least 1.
        lr: its learning rate, above 0.
        hidden: units of a hidden layer between features and classes; 0: none.
        weight: lambda of :func:`conal_loss`.
        seed: of the initial weights of hidden layer and vectors, the same in all episodes. The r-th annotator's vector
            starts alike however many annotators there are.

    Returns:
        the individual confusions are the head's ``confusions``.

    Raises:
        ValueError: if shapes, a label or a setting is not as above.
    """
    _check(features, labels, n_classes, steps, lr)
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(features.device.type, enabled=False):
        x, given = _own(features), labels.long().clone()
        generator = torch.Generator().manual_seed(seed)
        layers = _new_layers(x, n_classes, hidden, generator)
        item_map = _uniform(x, (x.shape[2], EMBEDDING), generator)
        annotators = _uniform(x, (given.shape[2], EMBEDDING), generator, fan_in=EMBEDDING)
        common = _identities(x, 1, n_classes, CONAL_START)
        confusions = _identities(x, given.shape[2], n_classes, CONAL_START)

        def loss() -> Tensor:
            omega = common_share(x @ item_map, annotators)
            p = _scores(layers, x).softmax(dim=2)
            return conal_loss(p, omega, common.squeeze(1), confusions, given, weight).sum()

        _descend([*_flat(layers), item_map, annotators, common, confusions], loss, steps, lr)
        return CrowdHead(_detached(layers), confusions.detach())


def predict(head: CrowdHead, features: Tensor) -> Tensor:
    """Log-probabilities ``[T, Nq, K]`` of the true classes of items with ``features [T, Nq, D]``: the classifier's."""
    with torch.autocast(features.device.type, enabled=False):
        weight = head.layers[0][0]
        answers = _scores(head.layers, features.to(weight.dtype)).log_softmax(dim=2)
        return answers.to(features.dtype) if features.dtype == torch.float64 else answers.float()


# --- losses ---------------------------------------------------------------------------------------


def crowd_layer_loss(p: Tensor, confusions: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy ``[T]`` of ``z^r = W^r p`` against the labels, summed over annotators, mean over labelled items.

    As published, ``z^r`` goes through a softmax although ``p`` already is one.

    Args:
        p: class probabilities ``[T, N, K]`` of the classifier.
        confusions: ``W^r`` transposed ``[T, R, K, K]`` (true class, then given label).
        labels: class ids ``[T, N, R]``, -1 where missing.
    """
    losses = label_losses(torch.einsum("tnk,trkl->tnrl", p, confusions), labels)
    n_labelled = (labels >= 0).any(dim=2).sum(dim=1).clamp_min(1)
    return losses.sum(dim=(1, 2)) / n_labelled


def conal_loss(p: Tensor, omega: Tensor, common: Tensor, confusions: Tensor, labels: Tensor, weight: float) -> Tensor:
    """Mean cross-entropy ``[T]`` of ``z^r = omega p C + (1 - omega) p C_r``, less a reward for being different.

    The reward is ``weight * sum_r |C_r - C|_F`` over the annotators who gave a label.

    Args:
        p: class probabilities ``[T, N, K]`` of the classifier.
        omega: share ``[T, N, R]`` of the common confusions.
        common: C ``[T, K, K]`` (true class, then given label), not normalised.
        confusions: C_r ``[T, R, K, K]``, likewise.
        labels: class ids ``[T, N, R]``, -1 where missing.
        weight: lambda, at least 0.
    """
    share = omega.unsqueeze(3)
    individual = torch.einsum("tnk,trkl->tnrl", p, confusions)
    scores = share * (p @ common).unsqueeze(2) + (1 - share) * individual
    present = labels >= 0
    mean = label_losses(scores, labels).sum(dim=(1, 2)) / present.sum(dim=(1, 2)).clamp_min(1)
    # all matrices start alike; the norm's gradient there is 0, not NaN
    apart = torch.linalg.vector_norm(confusions - common.unsqueeze(1), dim=(2, 3))
    return mean - weight * (apart * present.any(dim=1)).sum(dim=1)


def common_share(items: Tensor, annotators: Tensor) -> Tensor:
    """CoNAL's ``omega [T, N, R]`` of item vectors ``[T, N, E]`` and annotator vectors ``[T, R, E]`` of any length."""
    products = F.normalize(items, dim=2) @ F.normalize(annotators, dim=2).transpose(1, 2)
    return products.sigmoid()


def label_losses(scores: Tensor, labels: Tensor) -> Tensor:
    """Softmax cross-entropy ``[T, N, R]`` of ``scores [T, N, R, K]`` against labels ``[T, N, R]``; 0 where missing."""
    flat = F.cross_entropy(scores.flatten(0, 2), labels.flatten().clamp_min(-1), ignore_index=-1, reduction="none")
    return flat.view(labels.shape)


# --- weights and steps ----------------------------------------------------------------------------


def _descend(weights: Sequence[Tensor], loss: Callable[[], Tensor], steps: int, lr: float) -> None:
    """Adam on ``weights`` in place; ``loss`` reads them."""
    for weight in weights:
        weight.requires_grad_(True)
    optimiser = torch.optim.Adam(weights, lr=lr)
    for _ in range(steps):
        gradients = torch.autograd.grad(loss(), weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        optimiser.step()


def _scores(layers: Sequence[Layer], x: Tensor) -> Tensor:
    """Logits ``[T, N, K]`` of ``x [T, N, D]``."""
    for place, (weight, bias) in enumerate(layers):
        x = torch.baddbmm(bias, x.relu() if place else x, weight)
    return x


def _new_layers(x: Tensor, n_classes: int, hidden: int, generator: torch.Generator) -> tuple[Layer, ...]:
    n_episodes, _, width = x.shape
    layers: list[Layer] = []
    if hidden:
        weight, bias = _uniform(x, (width, hidden), generator), _uniform(x, (1, hidden), generator, fan_in=width)
        layers.append((weight, bias))
        width = hidden
    layers.append((x.new_zeros(n_episodes, width, n_classes), x.new_zeros(n_episodes, 1, n_classes)))
    return tuple(layers)


def _uniform(x: Tensor, shape: tuple[int, int], generator: torch.Generator, fan_in: int = 0) -> Tensor:
    """The same numbers for each episode, as a linear layer starts; drawn on the CPU so that devices agree."""
    bound = 1 / math.sqrt(max(1, fan_in or shape[0]))
    drawn = torch.rand(shape, generator=generator) * 2 * bound - bound
    return drawn.to(x).expand(len(x), *shape).clone()


def _identities(x: Tensor, count: int, n_classes: int, scale: float = 1.0) -> Tensor:
    eye = scale * torch.eye(n_classes, dtype=x.dtype, device=x.device)
    return eye.expand(len(x), count, n_classes, n_classes).clone()


def _own(features: Tensor) -> Tensor:
    """A copy in float64 that autograd may use, even of a tensor made in inference mode."""
    return features.detach().clone().double()


def _flat(layers: Sequence[Layer]) -> list[Tensor]:
    return [part for layer in layers for part in layer]


def _detached(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    return tuple((weight.detach(), bias.detach()) for weight, bias in layers)


def _check(features: Tensor, labels: Tensor, n_classes: int, steps: int, lr: float) -> None:
    if features.ndim != 3 or labels.ndim != 3 or features.shape[:2] != labels.shape[:2]:
        raise ValueError(
            f"features has shape {list(features.shape)} and labels {list(labels.shape)}; [T, N, D] and [T, N, R] fit"
        )
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"labels is {labels.dtype}; class ids are integers, -1 where missing")
    if labels.numel() and int(labels.max()) >= n_classes:
        raise ValueError(
            f"labels holds class {int(labels.max())}; with n_classes={n_classes} the last is {n_classes - 1}"
        )
    if n_classes < 1 or steps < 1 or not 0 < lr < math.inf:
        raise ValueError(f"n_classes is {n_classes}, steps {steps} and lr {lr}; at least 1, 1 and above 0 are needed")
