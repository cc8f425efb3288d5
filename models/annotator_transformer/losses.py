"""Losses of the annotator transformer as pure functions of logits.

Source: the report's loss equations and the released code; see ``card.md``.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

SkillWeighting = Literal["none", "plain", "batch_maximum"]
SKILL_WEIGHTINGS = ("none", "plain", "batch_maximum")


def supervised_loss(
    logits: Tensor, labels: Tensor, skill: Tensor, label_smoothing: float, weighting: SkillWeighting
) -> Tensor:
    """Label-smoothed cross-entropy of every annotation, weighted by its annotator's skill, averaged.

    Args:
        logits: predictions for P annotations ``[P, C]``, P at least 1.
        labels: given labels ``[P]``.
        skill: skill of each annotation's annotator ``[P]``.
        label_smoothing: share of the target probability spread over all classes.
        weighting: ``plain``: by skill (the report's s_k); ``batch_maximum``: by skill over the largest in
            the batch (the released code); ``none``: all alike.

    Returns:
        A scalar: the mean over P (not over the sum of the weights, as in both sources).
    """
    loss = F.cross_entropy(logits, labels, label_smoothing=label_smoothing, reduction="none")
    if weighting == "plain":
        loss = loss * skill
    elif weighting == "batch_maximum":
        loss = loss * (skill / skill.max())
    return loss.mean()


def fixmatch_loss(weak_logits: Tensor, strong_logits: Tensor, threshold: float, temperature: float) -> Tensor:
    """Cross-entropy of the strong view against confident pseudo-labels of the weak view (Sohn et al. 2020).

    Args:
        weak_logits: predictions on the weak view ``[P, C]``; no gradient flows into them.
        strong_logits: predictions for the same annotators on the strong view ``[P, C]``.
        threshold: pseudo-labels of at least this probability count.
        temperature: divides the weak logits before the softmax.

    Returns:
        A scalar: the mean over all P, those below the threshold counting as 0.
    """
    confidence, pseudo = torch.softmax(weak_logits.detach() / temperature, dim=-1).max(dim=-1)
    loss = F.cross_entropy(strong_logits, pseudo, reduction="none")
    return (loss * (confidence >= threshold)).mean()
