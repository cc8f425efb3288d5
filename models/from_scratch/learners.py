"""scikit-learn's classifiers on soft labels of one support set, with classes that may be missing from it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

#: a class weighs at least this much in an item's soft label to count
_LIGHTEST = 1e-6
#: smallest probability that is answered: a class without examples gets no more
_SMALLEST = 1e-6


class Fitted(NamedTuple):
    """A classifier of one support set.

    Attributes:
        model: scikit-learn's; None where fewer than two classes have examples.
        classes: the class ids that have examples, in the order of the model's columns.
        converged: False where scikit-learn's fit stopped before it had converged.
    """

    model: Any
    classes: tuple[int, ...]
    converged: bool = True


def fit_weighted(build: Callable[[], Any], x: Tensor, targets: Tensor) -> Fitted:
    """Fits ``build()`` on each item once for each class of its soft label, weighted by it.

    For logistic regression that is the cross-entropy against the soft label.

    Args:
        build: makes an untrained classifier whose ``fit`` takes ``sample_weight``.
        x: items ``[N, D]``.
        targets: weights ``[N, K]`` of the classes.
    """
    rows, classes = (targets > _LIGHTEST).nonzero().unbind(1)
    present = tuple(classes.unique().tolist())
    if len(present) < 2:
        return Fitted(None, present)
    weights = targets[rows, classes]
    model = build()
    converged = _fit_quietly(model, _array(x[rows]), _array(classes), _array(weights))
    return Fitted(model, present, converged)


def log_probabilities(fitted: Fitted, x: Tensor, n_classes: int) -> Tensor:
    """Log-probabilities ``[N, K]`` (float64) of items ``x [N, D]``; equal ones where no class had an example."""
    found = torch.zeros(len(x), n_classes, dtype=torch.float64)
    if fitted.model is not None:
        found[:, list(fitted.classes)] = torch.from_numpy(np.asarray(fitted.model.predict_proba(_array(x))))
    else:
        found[:, list(fitted.classes)] = 1.0
    found = found.clamp_min(_SMALLEST)
    return (found / found.sum(dim=1, keepdim=True)).log().to(x.device)


def _fit_quietly(model: Any, x: np.ndarray, classes: np.ndarray, weights: np.ndarray) -> bool:
    """Fits ``model`` in place; whether it converged. A warning for each of thousands of tasks would tell nobody."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(x, classes, sample_weight=weights)
    for other in caught:
        if not issubclass(other.category, ConvergenceWarning):
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    return not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)


def _array(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().cpu().numpy()
    return array
