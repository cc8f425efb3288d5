"""How well a score separates items of the test set from others."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

#: what :func:`separation` measures
SEPARATIONS = ("auroc", "aupr", "fpr95")
#: share of the test items that the threshold of ``fpr95`` accepts
ACCEPTED = 0.95


def separation(inside: Tensor, outside: Tensor) -> dict[str, float]:
    """AUROC, AUPR and false positive rate of a score that should be higher for what is out of distribution.

    ``auroc``: probability that an outside item scores above an inside one, ties counting a half. ``aupr``:
    average precision with the *outside* items as positives ("AUPR-Out"; its chance level is their share).
    ``fpr95``: as Liang et al., 2018, with the *inside* items as positives: the share of outside items that is
    accepted by the tightest threshold that accepts at least 95 % of the inside ones.

    Args:
        inside: scores ``[N]`` of test items.
        outside: scores ``[M]`` of the others.

    Raises:
        ValueError: without an item on one side, or for a score that is NaN or infinite.
    """
    known, others = inside.double().numpy(), outside.double().numpy()
    if len(known) == 0 or len(others) == 0:
        raise ValueError(f"{len(known)} test items against {len(others)} others; both sides need one at least")
    if not (np.isfinite(known).all() and np.isfinite(others).all()):
        raise ValueError("an out-of-distribution score is NaN or infinite; the method diverged")
    scores = np.concatenate([known, others])
    is_outside = np.repeat([0, 1], [len(known), len(others)])
    # the smallest score up to which at least 95 % of the inside ones lie
    threshold = np.quantile(known, ACCEPTED, method="inverted_cdf")
    return {
        "auroc": float(roc_auc_score(is_outside, scores)),
        "aupr": float(average_precision_score(is_outside, scores)),
        "fpr95": float((others <= threshold).mean()),
    }
