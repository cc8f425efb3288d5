"""QuMATL for images (arXiv 2503.15237; QuMAB, arXiv 2507.17653).

>>> from datamodules.base import DataInfo
>>> method = QuMATL(DataInfo(6, 10, (16, 64)), init="random", hidden_size=64, layers=4, heads=4, feed_forward=256)
>>> method.data_info.n_annotators
10
"""

from __future__ import annotations

from torch import Tensor

from datamodules.base import DataInfo
from models.qformer.loading import Reduction
from models.qformer.network import QFormer, TokenInput
from models.qumatl.attention_maps import Scaling, attention_map
from models.qumatl.base import AnnotatorQueries, Rate, Target


class QuMATL(AnnotatorQueries):
    """A Q-Former with one query per annotator on the tokens of a frozen encoder, and a classifier on each query.

    With ten annotators, six classes, tokens of width 1408 and the default sizes it has 106,015,548 parameters, all of
    them trained.

    Args:
        data_info: classes, annotators and tokens ``(N, D)``.
        lr: largest learning rate, or ``as_released`` (1e-5), ``as_reported`` (1e-4).
        weight_decay: of AdamW.
        warmup: share of the training's steps over which the rate rises.
        init: ``instructblip``, ``blip2``, a folder with a checkpoint saved by transformers, or ``random``.
        query_init: how the pretrained queries become one an annotator: ``nearest`` or ``random``; see
            :func:`models.qformer.loading.load_qformer`.
        target: ``annotators``, or ``majority`` (Pre-mv): one classifier on the mean of the queries, trained on the
            majority label.
        shared_classifier: one classifier for all queries (w/ U-cls).
        self_attention: False leaves out the self-attention among queries (w/o S-Attn).
        attention_scaling: of ``attention``: ``min_max`` as released, or ``none``; see
            :func:`models.qumatl.attention_maps.attention_map`.
        class_token: whether the encoder's first token is a class token; ``attention`` gives it weight 0.
        token_positions: add a learned embedding of each token's place, for encoders whose tokens do not say where they
            are. Not the paper's.
        hidden_size, layers, heads, feed_forward: sizes of the Q-Former; those of the paper by default.

    Raises:
        ValueError: for items that are no tokens, or a value that an argument does not take.
    """

    def __init__(
        self,
        data_info: DataInfo,
        *,
        lr: float | Rate = "as_released",
        weight_decay: float = 0.01,
        warmup: float = 0.2,
        init: str = "instructblip",
        query_init: Reduction = "nearest",
        target: Target = "annotators",
        shared_classifier: bool = False,
        self_attention: bool = True,
        attention_scaling: Scaling = "min_max",
        class_token: bool = False,
        token_positions: bool = False,
        hidden_size: int = 768,
        layers: int = 12,
        heads: int = 12,
        feed_forward: int = 3072,
    ) -> None:
        if len(data_info.input_shape) != 2:
            raise ValueError(
                f"qumatl reads tokens (N, D), and items have shape {data_info.input_shape}: give the cell an encoder "
                "with form: tokens (qumatl_video reads frames)"
            )
        super().__init__(
            data_info,
            lr=lr,
            weight_decay=weight_decay,
            warmup=warmup,
            init=init,
            query_init=query_init,
            target=target,
            shared_classifier=shared_classifier,
            attention_scaling=attention_scaling,
            class_token=class_token,
            hidden_size=hidden_size,
            video=False,
        )
        n_tokens, token_width = data_info.input_shape
        self.token_input = TokenInput(n_tokens, token_width, positions=token_positions)
        self.qformer = QFormer(
            data_info.n_annotators,
            token_width,
            hidden_size=hidden_size,
            layers=layers,
            heads=heads,
            feed_forward=feed_forward,
            self_attention=self_attention,
        )

    def queries(self, x: Tensor) -> Tensor:
        """The annotators' queries ``[B, R, hidden_size]`` that have read ``x [B, N, D]``."""
        read: Tensor = self.qformer(self.token_input(x))
        return read

    def attention(self, x: Tensor) -> Tensor:
        """Weights ``[B, R, N]`` of the last layer with cross-attention, mean over heads, with a sum of 1.

        With ``target="majority"`` every annotator's is the mean over the queries.
        """
        _, weights = self.qformer.attend(self.token_input(x))
        return self.looking(attention_map(weights, self.attention_scaling, self.skipped))

    def pretrained_part(self) -> QFormer:
        """The Q-Former."""
        return self.qformer
