"""D-LEMA (Mirikharaji et al. 2021), in a form for classification; see ``card.md``.

>>> from datamodules.base import DataInfo
>>> method = DLema(DataInfo(6, 10, (16, 64)), passes=5)
>>> method.ensemble.masks.shape[0]
5
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from datamodules.base import DataInfo
from models.annotator_heads.pooling import PoolingName, pool, pooled_width
from models.annotator_module import AnnotatorModule
from models.d_lema.ensemble import Ensemble, fuse


class DLema(AnnotatorModule):
    """An ensemble of Bayesian (dropout) networks, one per annotator, fused by how certain they are.

    Each learns from one annotator's labels alone, among which none contradicts another.

    Args:
        data_info: classes, annotators and features ``(D,)``, tokens ``(N, D)`` or tokens of frames ``(F, N, D)``.
        pooling: ``mean``, ``class_token`` or ``flatten``; see :func:`models.annotator_heads.pooling.pool`.
        dropout: share of the units left out, in training and in the passes of a prediction; from 0 to below 1.
        passes: thinned networks whose mean is an annotator's prediction; at least 1.
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
        dropout: float = 0.5,
        passes: int = 20,
        lr: float = 1e-4,
        weight_decay: float = 0.01,
        warmup: float = 0.2,
    ) -> None:
        super().__init__(data_info, lr=lr, weight_decay=weight_decay, warmup=warmup)
        if not 0 <= dropout < 1 or passes < 1:
            raise ValueError(f"dropout is {dropout} and passes {passes}; from 0 to below 1 and at least 1 are needed")
        self.pooling: PoolingName = pooling
        width = pooled_width(data_info.input_shape, pooling)
        self.ensemble = Ensemble(data_info.n_annotators, width, data_info.n_classes, dropout=dropout, passes=passes)

    def annotator_logits(self, x: Tensor) -> Tensor:
        """``[B, R, C]``: logits of one pass in training, log of the mean over all passes in evaluation."""
        pooled = pool(x, self.pooling)
        if self.training:
            logits: Tensor = self.ensemble(pooled)
            return logits
        return self.ensemble.mean_log_probabilities(pooled)

    def predict_consensus(self, x: Tensor) -> Tensor:
        """Log of the mean over networks ``[B, C]``, weighted by their certainty; see :func:`~.ensemble.fuse`."""
        return fuse(self.predict_annotators(x))
