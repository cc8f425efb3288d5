"""Base of QuMATL's tables (arXiv 2503.15237): one classifier per annotator on pooled features, no queries.

>>> from datamodules.base import DataInfo
>>> method = AnnotatorHeads(DataInfo(6, 10, (16, 64)), pooling="mean")
>>> method.data_info.n_annotators
10
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from datamodules.base import DataInfo
from models.annotator_heads.pooling import Pooled, PoolingName
from models.annotator_heads.saliency import gradient_saliency
from models.annotator_module import AnnotatorModule
from models.qumatl.heads import Heads


class AnnotatorHeads(AnnotatorModule):
    """QuMATL without its Q-Former: pooled features, the same projection and the same classifiers.

    Args:
        data_info: classes, annotators and features ``(D,)``, tokens ``(N, D)`` or tokens of frames ``(F, N, D)``.
        pooling: ``mean``, ``class_token`` (the first token) or ``flatten``; see
            :func:`models.annotator_heads.pooling.pool`.
        class_token: whether the encoder's first token is a class token; ``attention`` gives it weight 0.
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
        class_token: bool = False,
        lr: float = 1e-4,
        weight_decay: float = 0.01,
        warmup: float = 0.2,
    ) -> None:
        super().__init__(data_info, lr=lr, weight_decay=weight_decay, warmup=warmup)
        self.class_token = class_token
        self.pooled = Pooled(data_info.input_shape, pooling)
        video = len(data_info.input_shape) == 3
        self.heads = Heads(data_info.n_annotators, data_info.n_classes, video=video)

    def annotator_logits(self, x: Tensor) -> Tensor:
        """Logits ``[B, R, C]`` of items ``x [B, ...]``: all classifiers read the same features."""
        features = self.pooled(x).expand(-1, self.data_info.n_annotators, -1)
        logits: Tensor = self.heads(features)
        return logits

    def attention(self, x: Tensor) -> Tensor | None:
        """Gradient saliency ``[B, R, N]`` or ``[B, R, F, N]``: no attention, but what can be read in its place.

        None for features without tokens, and with ``pooling="class_token"``, where only one token is read.
        """
        if x.ndim == 2 or self.pooled.pooling == "class_token":
            return None
        return gradient_saliency(self.annotator_logits, x, skipped=int(self.class_token))
