"""PADL (Liao et al. 2024), in a form for classification; see ``card.md``.

>>> from datamodules.base import DataInfo
>>> method = Padl(DataInfo(6, 10, (16, 64)))
>>> method.data_info.n_classes
6
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from datamodules.base import DataInfo
from models.annotator_heads.pooling import Pooled, PoolingName
from models.annotator_module import AnnotatorModule
from models.base import Batch
from models.padl.network import LogitDistributions, PadlHeads, sampled_loss
from models.qumatl.heads import WIDTH


class Padl(AnnotatorModule):
    """A common normal distribution over logits, and each annotator's own as a shift from it.

    Args:
        data_info: classes, annotators and features ``(D,)``, tokens ``(N, D)`` or tokens of frames ``(F, N, D)``.
        pooling: ``mean``, ``class_token`` or ``flatten``; see :func:`models.annotator_heads.pooling.pool`.
        lr: largest learning rate of AdamW.
        weight_decay: of AdamW.
        warmup: share of the training's steps over which the rate rises.

    Raises:
        ValueError: for an unknown ``pooling``, items of another form, or a rate out of range.
    """

    version: ClassVar[str] = "1"

    def __init__(
        self,
        data_info: DataInfo,
        *,
        pooling: PoolingName = "mean",
        lr: float = 1e-4,
        weight_decay: float = 0.01,
        warmup: float = 0.2,
    ) -> None:
        super().__init__(data_info, lr=lr, weight_decay=weight_decay, warmup=warmup)
        self.pooled = Pooled(data_info.input_shape, pooling)
        self.hidden = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())
        self.heads = PadlHeads(data_info.n_annotators, data_info.n_classes)

    def distributions(self, x: Tensor) -> LogitDistributions:
        """The distributions over the logits of items ``x [B, ...]``."""
        found: LogitDistributions = self.heads(self.hidden(self.pooled(x).squeeze(1)))
        return found

    def annotator_logits(self, x: Tensor) -> Tensor:
        """Each annotator's means ``mu_r [B, R, C]``."""
        return self.distributions(x).annotator_mu

    def loss(self, batch: Batch, labels: Tensor) -> Tensor:
        """Cross-entropy of draws from the common and from the annotators' distributions."""
        return sampled_loss(self.distributions(batch["x"]), labels)

    def class_logits(self, x: Tensor) -> Tensor:
        """The common means ``mu [B, C]``."""
        return self.distributions(x).mu

    def predict_consensus(self, x: Tensor) -> Tensor:
        """Log-softmax of the common means ``[B, C]``."""
        return self.class_logits(x).float().log_softmax(-1)
