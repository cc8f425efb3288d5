"""MaDL (Herde et al. 2023): a classifier of the true label and a model of each annotator's confusions.

>>> from datamodules.base import DataInfo
>>> method = Madl(DataInfo(6, 10, (16, 64)))
>>> method.eta
0.8
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from datamodules.base import DataInfo
from models.annotator_heads.pooling import Pooled, PoolingName
from models.annotator_module import AnnotatorModule
from models.base import Batch
from models.madl.confusions import (
    GAMMA_START,
    annotator_weights,
    label_log_probabilities,
    starting_logits,
    weighted_loss,
)
from models.qumatl.heads import WIDTH, Heads

#: numbers in the vector of an annotator, and of an item
EMBEDDING = 16
#: units of the hidden layer between the two vectors and the confusions
HIDDEN = 128


class Madl(AnnotatorModule):
    """True class times confusion: an annotator's label is drawn from the row of the true class.

    Args:
        data_info: classes (two or more), annotators and features ``(D,)``, tokens ``(N, D)`` or tokens of frames
            ``(F, N, D)``.
        pooling: ``mean``, ``class_token`` or ``flatten``; see :func:`models.annotator_heads.pooling.pool`.
        item_dependent: confusions depend on the item as well as on the annotator.
        eta: share of right labels in each class before training, between 0 and 1.
        lr: largest learning rate of AdamW.
        weight_decay: of AdamW.
        warmup: share of the training's steps over which the rate rises.

    Raises:
        ValueError: for an unknown ``pooling``, items of another form, or a number out of range.
    """

    version: ClassVar[str] = "1"

    def __init__(
        self,
        data_info: DataInfo,
        *,
        pooling: PoolingName = "mean",
        item_dependent: bool = True,
        eta: float = 0.8,
        lr: float = 1e-4,
        weight_decay: float = 0.01,
        warmup: float = 0.2,
    ) -> None:
        super().__init__(data_info, lr=lr, weight_decay=weight_decay, warmup=warmup)
        if not 0 < eta < 1:
            raise ValueError(f"eta is {eta}; it must lie between 0 and 1")
        self.eta = eta
        self.pooled = Pooled(data_info.input_shape, pooling)
        self.classifier = Heads(1, data_info.n_classes, video=len(data_info.input_shape) == 3)
        self.annotator_embedding = nn.Parameter(torch.randn(data_info.n_annotators, EMBEDDING) / EMBEDDING**0.5)
        self.item_embedding = nn.Linear(WIDTH, EMBEDDING) if item_dependent else None
        n_in = EMBEDDING * (3 if item_dependent else 1)
        self.hidden = nn.Sequential(nn.Linear(n_in, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, EMBEDDING))
        self.confusion = nn.Linear(EMBEDDING, data_info.n_classes**2)
        with torch.no_grad():
            # no weight: before training the bias alone decides, so the share of right labels is eta exactly
            self.confusion.weight.zero_()
            self.confusion.bias.copy_(starting_logits(data_info.n_classes, eta))
        self.gamma = nn.Parameter(torch.tensor(GAMMA_START))

    def confusion_logits(self, features: Tensor | None = None) -> Tensor:
        """``[B, R, C, C]`` (true class, then given label) of ``features [B, 1, 256]``.

        ``[1, R, C, C]`` where confusions do not depend on the item; then features are not needed.
        """
        annotators = self.annotator_embedding.unsqueeze(0)
        combined = annotators
        if self.item_embedding is not None and features is not None:
            items = self.item_embedding(features).expand(-1, annotators.shape[1], -1)
            annotators = annotators.expand_as(items)
            combined = torch.cat([annotators, items, annotators * items], dim=2)
        hidden = (self.hidden(combined) + annotators).relu()
        return self.confusion(hidden).unflatten(2, (self.data_info.n_classes, -1))

    def annotator_logits(self, x: Tensor) -> Tensor:
        """Log-probabilities ``log q [B, R, C]``; see :func:`models.madl.confusions.label_log_probabilities`."""
        features = self.pooled(x)
        return label_log_probabilities(self._classes(features), self.confusion_logits(features))

    def loss(self, batch: Batch, labels: Tensor) -> Tensor:
        """Negative log-likelihood with weighted annotators, and the prior of the kernel's gamma."""
        weights = annotator_weights(self.annotator_embedding.detach(), self.gamma)
        return weighted_loss(self.annotator_logits(batch["x"]), labels, weights, self.gamma)

    def class_logits(self, x: Tensor) -> Tensor:
        """Scores of the true class ``[B, C]``."""
        return self._classes(self.pooled(x))

    def predict_consensus(self, x: Tensor) -> Tensor:
        """Log-probabilities of the true class ``[B, C]``."""
        return self.class_logits(x).float().log_softmax(-1)

    def annotator_confusion(self) -> Tensor | None:
        """Confusions ``[R, C, C]``, or None where each item has its own."""
        if self.item_embedding is not None:
            return None
        return self.confusion_logits().squeeze(0).softmax(-1)

    def annotator_skill(self) -> Tensor | None:
        """Mean of the confusions' diagonal ``[R]``, or None where each item has its own."""
        confusion = self.annotator_confusion()
        return None if confusion is None else confusion.diagonal(dim1=1, dim2=2).mean(1)

    def _classes(self, features: Tensor) -> Tensor:
        logits: Tensor = self.classifier(features)
        return logits.squeeze(1)
