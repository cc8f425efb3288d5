"""Cross-entropy on whatever was delivered, and mixup of a batch: pure functions on tensors.

Mixup: Zhang et al., mixup: Beyond Empirical Risk Minimization (ICLR 2018), with one ``lambda`` a batch as in its
Figure 1.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from datamodules.seeds import derive_seed


def has_label(labels: Tensor) -> Tensor:
    """Mask ``[B]`` of the items that have a label: class ids ``[B]`` of 0 and up, or rows ``[B, C]`` that aren't 0."""
    return labels >= 0 if labels.ndim == 1 else labels.sum(dim=1) > 0


def delivered_loss(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy over the items with a label; 0 if there is none.

    For class ids ``-log q_y``, for frequencies ``H(p, q) = -sum_k p_k log q_k``, with ``q = softmax(logits)``.

    Args:
        logits: ``[B, C]``.
        labels: class ids ``[B]``, -1 without a label, or probabilities ``[B, C]``, a row of 0 without one.
        label_smoothing: share of the target probability spread over all classes.
    """
    each = F.cross_entropy(logits, labels, reduction="none", label_smoothing=label_smoothing, ignore_index=-1)
    present = has_label(labels)
    # smoothing would give a row of 0 the uniform target
    return each.masked_fill(~present, 0.0).sum() / present.sum().clamp_min(1)


def mixup_pairs(n_items: int, alpha: float, seed: int, epoch: int, batch: int) -> tuple[float, Tensor]:
    """With which share an item stays itself, and with which item of the batch it is mixed.

    Args:
        n_items: items of the batch, B.
        alpha: of ``Beta(alpha, alpha)``, above 0.
        seed: seed of the run.
        epoch: number of the epoch.
        batch: number of the batch in it.

    Returns:
        ``lambda ~ Beta(alpha, alpha)`` and a permutation ``[B]`` int64, on the CPU. They depend on the arguments
        alone.
    """
    generator = np.random.default_rng(derive_seed(purpose="mixup", seed=seed, epoch=epoch, batch=batch))
    return float(generator.beta(alpha, alpha)), torch.from_numpy(generator.permutation(n_items))
