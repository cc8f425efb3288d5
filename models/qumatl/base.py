"""What the image and the video model of QuMATL share: settings, pretrained queries, heads and loss."""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import Any, Literal

from torch import Tensor
from torch.nn import functional as F

from datamodules.base import DataInfo
from models.annotator_module import AnnotatorModule
from models.base import Batch
from models.checkpoint_files import CHECKPOINTS
from models.encoders.remembered import remembered_sha256
from models.qformer.loading import LoadReport, Reduction, load_qformer, pretrained_files
from models.qformer.network import QFormer
from models.qumatl.attention_maps import Scaling
from models.qumatl.heads import Heads, Projection, majority_labels

Rate = Literal["as_released", "as_reported"]
Target = Literal["annotators", "majority"]
#: the paper's rate is never read by its code, which holds another
RATES = {"as_released": 1e-5, "as_reported": 1e-4}

log = logging.getLogger(__name__)


class AnnotatorQueries(AnnotatorModule):
    """One query per annotator and a classifier on each; a subclass says what the queries read.

    Pretrained weights are read when training starts (:meth:`setup`), so that a trained state loads without them.

    Args:
        data_info: classes, annotators and input shape.
        lr: largest learning rate, or ``as_released`` (1e-5), ``as_reported`` (1e-4).
        weight_decay: of AdamW.
        warmup: share of the training's steps over which the rate rises.
        init: ``instructblip``, ``blip2``, a folder with a checkpoint saved by transformers, or ``random``.
        query_init: see :func:`models.qformer.loading.load_qformer`.
        target: ``annotators``: each one's own labels; ``majority``: one classifier on the mean of the queries, trained
            on the majority label of a batch's items (Pre-mv).
        shared_classifier: one classifier for all queries (w/ U-cls).
        attention_scaling: see :func:`models.qumatl.attention_maps.attention_map`.
        class_token: whether the first token of the encoder is a class token, which ``attention`` leaves out.
        hidden_size: width of a query.
        video: which kind of head.

    Raises:
        ValueError: for a value that an argument does not take.
    """

    def __init__(
        self,
        data_info: DataInfo,
        *,
        lr: float | Rate,
        weight_decay: float,
        warmup: float,
        init: str,
        query_init: Reduction,
        target: Target,
        shared_classifier: bool,
        attention_scaling: Scaling,
        class_token: bool,
        hidden_size: int,
        video: bool,
    ) -> None:
        super().__init__(data_info, lr=_rate(lr), weight_decay=weight_decay, warmup=warmup)
        for name, given, known in (
            ("query_init", query_init, ("nearest", "random")),
            ("target", target, ("annotators", "majority")),
            ("attention_scaling", attention_scaling, ("min_max", "none")),
        ):
            if given not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, not {given!r}")
        self.init = init
        self.query_init: Reduction = query_init
        self.target = target
        self.attention_scaling: Scaling = attention_scaling
        self.skipped = int(class_token)
        #: what was loaded, once training has started from pretrained weights
        self.loading: LoadReport | None = None
        self.projection = Projection(hidden_size, video=video)
        one = shared_classifier or target == "majority"
        self.heads = Heads(1 if one else data_info.n_annotators, data_info.n_classes, video=video)

    # --- to implement -------------------------------------------------------------------------

    @abstractmethod
    def queries(self, x: Tensor) -> Tensor:
        """The queries ``[B, R, hidden_size]`` of ``x [B, ...]``."""

    @abstractmethod
    def pretrained_part(self) -> QFormer:
        """The Q-Former that ``init`` fills."""

    # --- the same for both --------------------------------------------------------------------

    @classmethod
    def identified(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        """``init`` becomes the SHA-256 of the files in the folder that hold the Q-Former; a name stays."""
        source = arguments["init"]
        if source in (*CHECKPOINTS, "random"):
            return arguments
        return {**arguments, "init": [f"sha256:{remembered_sha256(file)}" for file in pretrained_files(source)]}

    def setup(self, stage: str) -> None:
        """Reads the pretrained weights when training starts; what was loaded is logged and kept in ``loading``.

        Raises:
            FileNotFoundError, ValueError: see :func:`models.qformer.loading.load_qformer`.
        """
        if stage == "fit" and self.init != "random" and self.loading is None:
            self.loading = load_qformer(self.pretrained_part(), self.init, self.query_init)
            log.info("%s", self.loading)

    def annotator_logits(self, x: Tensor) -> Tensor:
        """Logits ``[B, R, C]``; with ``target="majority"`` the same for each annotator."""
        queries = self.queries(x)
        if self.target == "majority":
            return self._majority_logits(queries).unsqueeze(1).expand(-1, self.data_info.n_annotators, -1)
        logits: Tensor = self.heads(self.projection(queries))
        return logits

    def loss(self, batch: Batch, labels: Tensor) -> Tensor:
        """Each annotator's mean cross-entropy, summed; or the mean one of the items' majority label."""
        if self.target == "annotators":
            return super().loss(batch, labels)
        majority = majority_labels(labels, self.data_info.n_classes)
        return F.cross_entropy(self._majority_logits(self.queries(batch["x"])), majority, ignore_index=-1)

    def looking(self, query_maps: Tensor) -> Tensor:
        """``query_maps [B, R, ...]`` as the annotators': their mean for each where one classifier reads the mean."""
        if self.target == "majority":
            return query_maps.mean(1, keepdim=True).expand_as(query_maps)
        return query_maps

    def _majority_logits(self, queries: Tensor) -> Tensor:
        logits: Tensor = self.heads(self.projection(queries.mean(1, keepdim=True)))
        return logits.squeeze(1)


def _rate(lr: float | str) -> float:
    if isinstance(lr, str):
        if lr not in RATES:
            raise ValueError(f"lr must be a number or one of {', '.join(RATES)}, not {lr!r}")
        return RATES[lr]
    return lr
