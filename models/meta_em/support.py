"""What both versions of the EM share: annotated supports, vote fractions, means, counts and votes of the annotators.

Notation as in :mod:`models.meta_em.em`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

#: The logarithm of a responsibility of 0. Finite, because a softmax over nothing but -inf is NaN.
LOG_ZERO = -1e30


class Support(NamedTuple):
    """The support sets: embeddings, which items are real, and the A annotations that are there.

    Attributes:
        u: embeddings ``[T, N, M]``; 0 where padded.
        real: False where padded ``[T, N]``; None: nothing is.
        items: the item of each annotation ``[A]``, as a row of T x N.
        given: its annotator and label ``[A]``, as a row of T x R x K.
        n_annotators: R.
        n_classes: K.
    """

    u: Tensor
    real: Tensor | None
    items: Tensor
    given: Tensor
    n_annotators: int
    n_classes: int


# --- what comes in --------------------------------------------------------------------------------


def collect(u: Tensor, labels: Tensor, n_classes: int, mask: Tensor | None) -> Support:
    """The annotations that are there; padded items lose theirs, and their embeddings.

    Raises:
        ValueError: if a label is ``n_classes`` or more.
    """
    n_episodes, n_items, n_annotators = labels.shape
    present = labels >= 0
    if mask is not None:
        present = present & mask.unsqueeze(2)
        u = u.masked_fill(~mask.unsqueeze(2), 0)
    places = present.flatten().nonzero().squeeze(1)
    given = labels.flatten()[places].long()
    if len(given) and int(given.max()) >= n_classes:
        raise ValueError(
            f"labels holds class {int(given.max())}; with n_classes={n_classes} the last is {n_classes - 1}"
        )
    items = places // n_annotators if n_annotators else places
    episodes = items // n_items if n_items else items
    annotators = places - items * n_annotators
    rows = (episodes * n_annotators + annotators) * n_classes + given
    return Support(u, mask, items, rows, n_annotators, n_classes)


def check_settings(n_classes: int, steps: int, tau: float, b: float, c: float) -> None:
    """Raises ValueError unless there is a class and a step, and pseudo-counts are finite and not negative."""
    if n_classes < 1 or steps < 1:
        raise ValueError(f"n_classes is {n_classes} and steps {steps}; both must be at least 1")
    for name, value in {"tau": tau, "b": b, "c": c}.items():
        if not (0 <= value < math.inf):
            raise ValueError(f"{name} is {value}; a pseudo-count is finite and not negative")


def check_shapes(u: Tensor, labels: Tensor, mask: Tensor | None) -> None:
    """Raises ValueError unless ``u [T, N, M]``, ``labels [T, N, R]`` and ``mask [T, N]`` fit together."""
    if u.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"u is {u.dtype}; EM needs float32 or float64 (u.float())")
    if u.ndim != 3 or labels.ndim != 3 or u.shape[:2] != labels.shape[:2]:
        raise ValueError(f"u has shape {list(u.shape)} and labels {list(labels.shape)}; [T, N, M] and [T, N, R] fit")
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"labels is {labels.dtype}; class ids are integers, -1 where missing")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != u.shape[:2]):
        raise ValueError(f"mask is {mask.dtype} {list(mask.shape)}; it must be bool {list(u.shape[:2])}")


# --- parts of the steps ---------------------------------------------------------------------------


def vote_log_fractions(support: Support) -> Tensor:
    """Log of the share ``[T, N, K]`` of an item's votes that each class has; equal shares without votes."""
    n_episodes, n_items, _ = support.u.shape
    n_classes = support.n_classes
    cells = support.items * n_classes + support.given % n_classes
    votes = torch.bincount(cells, minlength=n_episodes * n_items * n_classes).view(n_episodes, n_items, n_classes)
    votes = votes + (votes.sum(dim=2, keepdim=True) == 0)
    shares = votes.to(support.u.dtype) / votes.sum(dim=2, keepdim=True)
    return without_padding(support, shares.log().clamp_min(LOG_ZERO))


def without_padding(support: Support, log_resp: Tensor) -> Tensor:
    """``log_resp [T, N, K]`` with responsibilities of 0 where items are padded."""
    return log_resp if support.real is None else torch.where(support.real.unsqueeze(2), log_resp, LOG_ZERO)


def uniform_padding(support: Support, log_resp: Tensor) -> Tensor:
    """``log_resp [T, N, K]`` with equal responsibilities where items are padded: what callers see."""
    if support.real is None:
        return log_resp
    return torch.where(support.real.unsqueeze(2), log_resp, -math.log(support.n_classes))


def shrunk_means(support: Support, log_resp: Tensor, log_weight: Tensor, tau: float) -> Tensor:
    """``mu_k = sum_n lambda_nk u_n / (tau + sum_n lambda_nk)`` ``[T, K, M]``.

    Taken as a weighted mean times a shrinkage, both from logarithms (``log_weight [T, K]`` is that of the class
    weights ``sum_n lambda_nk``): a class whose weight vanishes still has finite means and gradients.
    """
    mean = log_resp.softmax(dim=1).transpose(1, 2) @ support.u
    return _shrinkage(log_weight, tau).unsqueeze(2) * mean


def _shrinkage(log_weight: Tensor, tau: float) -> Tensor:
    """``weight / (tau + weight)``, and 0 for a class without any weight."""
    if tau == 0:
        return (log_weight > LOG_ZERO / 2).to(log_weight.dtype)
    return (log_weight - math.log(tau)).sigmoid()


def label_counts(support: Support, log_resp: Tensor) -> Tensor:
    """``sum_n lambda_nk 1[y_n^r = l]`` ``[T, R, K, K]`` (given label l, then true class k)."""
    n_episodes, n_items, n_classes = log_resp.shape
    rows = log_resp.exp().view(n_episodes * n_items, n_classes).index_select(0, support.items)
    counts = rows.new_zeros(n_episodes * support.n_annotators * n_classes, n_classes)
    counts = counts.index_add(0, support.given, rows)
    return counts.view(n_episodes, support.n_annotators, n_classes, n_classes)


def add_votes(support: Support, joint: Tensor, log_alpha: Tensor) -> Tensor:
    """``joint [T, N, K]`` plus ``sum_r log alpha^r`` of each item's labels; ``log_alpha`` as :func:`label_counts`."""
    n_classes = support.n_classes
    votes = log_alpha.reshape(-1, n_classes).index_select(0, support.given)
    return joint.view(-1, n_classes).index_add(0, support.items, votes).view_as(joint)


def centred(u: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
    """Both relative to the middle of the means ``[T, K, M]``: squares of what lies far from 0 cancel badly.

    Distances do not depend on the origin, so the middle needs no gradient.
    """
    middle = mu.detach().mean(dim=1, keepdim=True)
    return u - middle, mu - middle


def log_gaussian(u: Tensor, mu: Tensor) -> Tensor:
    """``-|u_n - mu_k|^2 / 2 + |u_n|^2 / 2`` ``[T, N, K]``: log N(u_n; mu_k, I) up to a term of the item alone."""
    return u @ mu.transpose(1, 2) - 0.5 * mu.square().sum(dim=2).unsqueeze(1)
