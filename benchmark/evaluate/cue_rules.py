"""What an image's shape and texture alone say of an annotator's labels: their bias, and the best simple rule."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from datamodules.annotations import Annotations


def shape_bias(labelled: Iterable[tuple[Annotations, Tensor]]) -> Tensor:
    """Share ``[R]`` of each annotator's decisive answers that follow shape; NaN without a decisive answer.

    An answer is decisive if it is the class of the shape or that of the texture, and these differ (the shape bias of
    Geirhos et al., ImageNet-trained CNNs are biased towards texture, ICLR 2019).

    Args:
        labelled: annotations with the cues ``[N, 2]`` (class of shape, class of texture) of their items.
    """
    by_shape, decisive = torch.zeros(0), torch.zeros(0)
    for noted, cues in labelled:
        shape, texture = cues[noted.items].unbind(1)
        followed = torch.stack([noted.labels == shape, noted.labels == texture]) & (shape != texture)
        counts = torch.stack(
            [torch.bincount(noted.annotators[each], minlength=noted.n_annotators) for each in followed]
        ).double()
        by_shape = counts[0] + (by_shape if by_shape.numel() else 0)
        decisive = counts.sum(0) + (decisive if decisive.numel() else 0)
    return by_shape / decisive


# --- rules ----------------------------------------------------------------------------------------


class _Counts(NamedTuple):
    """How often one annotator gave each label: in all, with an item's shape, texture, and both; each ``[n, C]``.

    ``shape`` and ``texture`` are the items' own cues ``[n]``.
    """

    shape: Tensor
    texture: Tensor
    total: Tensor
    by_shape: Tensor
    by_texture: Tensor
    by_pair: Tensor


def rule_accuracy(train: Annotations, train_cues: Tensor, test: Annotations, test_cues: Tensor) -> Tensor:
    """Accuracy ``[R]`` on the test labels of the best rule for each annotator that knows shape and texture only.

    Six rules: answer the class of the shape; that of the texture; the annotator's most frequent label for that shape
    class; likewise for the texture class; naive Bayes from both (add-one smoothing); the most frequent label for that
    very pair of classes, with naive Bayes where counts tie. Each annotator's is the one with the best leave-one-out
    accuracy on their training labels, the first of equal ones.

    Args:
        train: training labels.
        train_cues: class of shape and of texture ``[N, 2]`` of the training items.
        test: test labels.
        test_cues: likewise ``[M, 2]``.

    Returns:
        Float64, NaN for annotators without a test label.
    """
    n_classes = train.n_classes
    found = torch.full((test.n_annotators,), float("nan"), dtype=torch.float64)
    for annotator in range(test.n_annotators):
        known, asked = train.annotators == annotator, test.annotators == annotator
        if not bool(asked.any()):
            continue
        labels, cues = train.labels[known], train_cues[train.items[known]]
        # leave-one-out: an item's own label is not counted for it
        own = F.one_hot(labels, n_classes).double()
        tried = _answers(_counted(labels, cues, cues, n_classes, without=own))
        best = int((tried == labels).sum(1).argmax())
        answers = _answers(_counted(labels, cues, test_cues[test.items[asked]], n_classes))[best]
        found[annotator] = (answers == test.labels[asked]).double().mean()
    return found


def _counted(labels: Tensor, cues: Tensor, asked: Tensor, n_classes: int, without: Tensor | None = None) -> _Counts:
    """Counts of ``labels [n]`` with ``cues [n, 2]`` for items with cues ``asked [m, 2]``, less ``without [m, C]``."""
    shape, texture = cues.unbind(1)
    keys = {
        "total": (torch.zeros_like(shape), torch.zeros_like(asked[:, 0]), 1),
        "by_shape": (shape, asked[:, 0], n_classes),
        "by_texture": (texture, asked[:, 1], n_classes),
        "by_pair": (shape * n_classes + texture, asked[:, 0] * n_classes + asked[:, 1], n_classes * n_classes),
    }
    counts = {}
    for name, (own, wanted, size) in keys.items():
        table = torch.bincount(own * n_classes + labels, minlength=size * n_classes).view(size, n_classes).double()
        counts[name] = table[wanted] if without is None else table[wanted] - without
    return _Counts(shape=asked[:, 0], texture=asked[:, 1], **counts)


def _answers(counts: _Counts) -> Tensor:
    """What each rule answers ``[rules, n]``."""
    n_classes = counts.total.shape[1]
    bayes = (counts.total + 1).log()
    for given in (counts.by_shape, counts.by_texture):
        bayes = bayes + (given + 1).log() - (counts.total + n_classes).log()
    # a probability is below one count, so it decides between equal counts only
    by_pair = counts.by_pair + 0.5 * bayes.softmax(1)
    tables = (counts.by_shape, counts.by_texture, bayes, by_pair)
    return torch.stack([counts.shape, counts.texture, *(table.argmax(1) for table in tables)])
