"""Class prototypes from probabilities, and the distances to them (Snell, Swersky, Zemel 2017).

>>> import torch
>>> u = torch.tensor([[[0.0], [2.0], [10.0]]])  # one episode, three items in one dimension
>>> weights = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
>>> class_prototypes(u, weights).squeeze().tolist()
[1.0, 10.0]
"""

from __future__ import annotations

import torch
from torch import Tensor

#: a class whose weights sum to less has no prototype of its own
_SMALLEST = 1e-12


def class_prototypes(u: Tensor, weights: Tensor) -> Tensor:
    """Weighted means ``[T, K, M]`` of the embeddings ``u [T, N, M]`` under ``weights [T, N, K]``, not negative.

    A class without any weight gets the mean of all items that have one, which is nearer to the average item than any
    prototype: such a class is neither ruled out nor given away. With no weight at all, that is the mean of all items.
    """
    total = weights.sum(dim=1).unsqueeze(2)
    present = total > _SMALLEST
    own = weights.transpose(1, 2) @ u / torch.where(present, total, 1)
    item = weights.sum(dim=2, keepdim=True)
    item = torch.where((item > 0).any(dim=1, keepdim=True), (item > 0).to(u.dtype), 1)
    middle = (item * u).sum(dim=1, keepdim=True) / item.sum(dim=1, keepdim=True)
    return torch.where(present, own, middle)


def log_nearness(u: Tensor, prototypes: Tensor) -> Tensor:
    """``softmax_k(-|u - mu_k|^2 / 2)`` as log-probabilities ``[T, Q, K]`` of ``u [T, Q, M]``.

    The factor of a half is the multi-annotator paper's, whose mixture of Gaussians this is with a uniform prior; Snell
    et al. have 1, which is an embedding larger by the root of 2.
    """
    middle = prototypes.detach().mean(dim=1, keepdim=True)  # squares of what lies far from 0 cancel badly
    around = prototypes - middle
    scores = (u - middle) @ around.transpose(1, 2) - 0.5 * around.square().sum(dim=2).unsqueeze(1)
    return scores.log_softmax(dim=2)
