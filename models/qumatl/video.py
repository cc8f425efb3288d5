"""QuMATL for clips (arXiv 2503.15237; QuMAB, arXiv 2507.17653).

>>> from datamodules.base import DataInfo
>>> sizes = {"hidden_size": 32, "layers": 2, "heads": 4, "feed_forward": 64}
>>> QuMATLVideo(DataInfo(8, 13, (4, 16, 24)), init="random", **sizes).frame_positions.shape
torch.Size([4, 32])
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from datamodules.base import DataInfo
from models.qformer.loading import Reduction
from models.qformer.network import QUERY_STD, QFormer, TokenInput
from models.qumatl.attention_maps import Scaling, attention_map, through_frames
from models.qumatl.base import AnnotatorQueries, Rate, Target

#: names of what is not decayed and moves at a tenth of the rate in the released code
_SLOW = ("bias", "LayerNorm.weight", "layernorm.weight")
_SLOW_RATE = 0.1


class QuMATLVideo(AnnotatorQueries):
    """Each frame compressed to a few queries, then a second Q-Former with one query per annotator over all frames.

    With 13 annotators, eight classes, 96 frames, tokens of width 1408 and the default sizes it has 205,571,432
    parameters, all of them trained.

    Args:
        data_info: classes, annotators and tokens of frames ``(F, N, D)``.
        lr: largest learning rate, or ``as_released`` (1e-5), ``as_reported`` (1e-4); biases and the Q-Formers'
            LayerNorms move at a tenth of it, without weight decay.
        weight_decay: of AdamW.
        warmup: share of the training's steps over which the rate rises.
        init: of the Q-Former on frames: ``instructblip``, ``blip2``, a folder with a checkpoint saved by transformers,
            or ``random``. The Q-Former over frames and the frames' positions always start from random weights.
        query_init: how the pretrained queries become ``compression_queries``; see
            :func:`models.qformer.loading.load_qformer`.
        target: ``annotators``, or ``majority`` (Pre-mv); see :class:`~models.qumatl.module.QuMATL`.
        shared_classifier: one classifier for all queries (w/ U-cls).
        self_attention: False leaves out the self-attention among the annotators' queries (w/o S-Attn).
        attention_scaling: of ``attention``, in both Q-Formers; see :class:`~models.qumatl.module.QuMATL`.
        class_token: whether the encoder's first token is a class token; ``attention`` gives it weight 0.
        compression_queries: queries a frame.
        token_positions: add a learned embedding of each token's place, for encoders whose tokens do not say where they
            are. Not the paper's.
        hidden_size, layers, heads, feed_forward: sizes of both Q-Formers; those of the paper by default.

    Raises:
        ValueError: for items that are no tokens of frames, or a value that an argument does not take.
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
        compression_queries: int = 32,
        hidden_size: int = 768,
        layers: int = 12,
        heads: int = 12,
        feed_forward: int = 3072,
    ) -> None:
        if len(data_info.input_shape) != 3:
            raise ValueError(
                f"qumatl_video reads tokens of frames (F, N, D), and items have shape {data_info.input_shape}: give "
                "the cell an encoder with form: tokens and data of clips (qumatl reads images)"
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
            video=True,
        )
        n_frames, n_tokens, token_width = data_info.input_shape
        sizes: dict[str, Any] = {
            "hidden_size": hidden_size,
            "layers": layers,
            "heads": heads,
            "feed_forward": feed_forward,
        }
        self.token_input = TokenInput(n_tokens, token_width, positions=token_positions)
        self.frame_qformer = QFormer(compression_queries, token_width, **sizes)
        self.frame_positions = nn.Parameter(torch.empty(n_frames, hidden_size).normal_(0, QUERY_STD))
        self.video_qformer = QFormer(data_info.n_annotators, hidden_size, self_attention=self_attention, **sizes)

    def queries(self, x: Tensor) -> Tensor:
        """The annotators' queries ``[B, R, hidden_size]`` that have read ``x [B, F, N, D]``."""
        compressed: Tensor = self.frame_qformer(self.token_input(x).flatten(0, 1))
        read: Tensor = self.video_qformer(self._placed(compressed, x))
        return read

    def attention(self, x: Tensor) -> Tensor:
        """Weights ``[B, R, F, N]`` with a sum of 1 over frames and tokens; the sum over tokens is a frame's.

        Of the last layers with cross-attention, mean over heads: the annotators' over the frames' compression queries,
        then those over the tokens of the frame.
        """
        compressed, token_weights = self.frame_qformer.attend(self.token_input(x).flatten(0, 1))
        _, frame_weights = self.video_qformer.attend(self._placed(compressed, x))
        token_maps = attention_map(token_weights, self.attention_scaling, self.skipped)
        frame_map = attention_map(frame_weights, self.attention_scaling)
        by_frame = through_frames(frame_map.unflatten(-1, (x.shape[1], -1)), token_maps.unflatten(0, x.shape[:2]))
        return self.looking(by_frame)

    def pretrained_part(self) -> QFormer:
        """The Q-Former on frames."""
        return self.frame_qformer

    def parameter_groups(self) -> list[dict[str, Any]]:
        """As released: biases and LayerNorms of the Q-Formers without decay, at a tenth of the rate."""
        slow = [value for name, value in self.named_parameters() if name.endswith(_SLOW)]
        rest = [value for name, value in self.named_parameters() if not name.endswith(_SLOW)]
        return [{"params": rest}, {"params": slow, "weight_decay": 0.0, "lr": _SLOW_RATE * self.lr}]

    def _placed(self, compressed: Tensor, x: Tensor) -> Tensor:
        """``compressed [B * F, P, H]`` with the frames' positions, as the tokens ``[B, F * P, H]`` of a clip."""
        frames = compressed.unflatten(0, x.shape[:2])
        return (frames + self.frame_positions[:, None]).flatten(1, 2)
