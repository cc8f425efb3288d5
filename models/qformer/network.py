"""The querying Transformer of BLIP-2 (Li et al. 2023), as transformers builds it: no text part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import Blip2QFormerModel

#: standard deviation of queries that were not pretrained: BERT's for all its weights
QUERY_STD = 0.02
#: every second layer reads the tokens, the first one included
CROSS_ATTENTION_FREQUENCY = 2


class QFormer(nn.Module):
    """Q learned queries that read tokens: self-attention among queries, cross-attention to tokens, feed-forward.

    Every second layer has cross-attention, from the first on. The sizes by default are BERT base's.

    Args:
        n_queries: Q.
        token_width: D, features of a token.
        hidden_size: width of a query.
        layers: number of layers.
        heads: attention heads; they share ``hidden_size``.
        feed_forward: width inside the feed-forward part.
        self_attention: False leaves out that sub-layer with its residual connection and its LayerNorm.

    Raises:
        ValueError: for sizes below 1, or heads that do not divide ``hidden_size``.
    """

    def __init__(
        self,
        n_queries: int,
        token_width: int,
        *,
        hidden_size: int = 768,
        layers: int = 12,
        heads: int = 12,
        feed_forward: int = 3072,
        self_attention: bool = True,
    ) -> None:
        super().__init__()
        sizes = {"hidden_size": hidden_size, "layers": layers, "heads": heads, "feed_forward": feed_forward}
        if min(n_queries, token_width, *sizes.values()) < 1 or hidden_size % heads:
            raise ValueError(f"{sizes}: each must be at least 1, and heads must divide hidden_size")
        self.queries = nn.Parameter(torch.empty(1, n_queries, hidden_size).normal_(0, QUERY_STD))
        self.body = _body(token_width, hidden_size, layers, heads, feed_forward)
        if not self_attention:
            for layer in self.body.encoder.layer:
                layer.attention = _Skipped()

    def forward(self, tokens: Tensor) -> Tensor:
        """Queries ``[B, Q, hidden_size]`` that have read ``tokens [B, N, D]``."""
        read: Tensor = self.body(
            query_embeds=self.queries.expand(len(tokens), -1, -1), encoder_hidden_states=tokens
        ).last_hidden_state
        return read

    def attend(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """What :meth:`forward` gives, and the weights ``[B, heads, Q, N]`` of the last layer with cross-attention.

        The weights sum to 1 over the N tokens (in evaluation mode; dropout acts on them in training).
        """
        answer = self.body(
            query_embeds=self.queries.expand(len(tokens), -1, -1),
            encoder_hidden_states=tokens,
            output_attentions=True,
        )
        return answer.last_hidden_state, answer.cross_attentions[-1]


class TokenInput(nn.Module):
    """What may come between an encoder and the queries: by default nothing, else a learned embedding of each place.

    Queries see tokens as a set. A Transformer's tokens say where they are; those of other encoders may not.

    Args:
        n_tokens: N.
        token_width: D.
        positions: add the embedding.
    """

    def __init__(self, n_tokens: int, token_width: int, *, positions: bool = False) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.empty(n_tokens, token_width).normal_(0, QUERY_STD)) if positions else None

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens ``[..., N, D]`` of the same shape."""
        return tokens if self.positions is None else tokens + self.positions


class _Skipped(nn.Module):
    """A sub-layer that hands on what it gets."""

    def forward(self, hidden_states: Tensor, **_: Any) -> Tensor:
        # a layer passes on whatever the model was asked for, e.g. output_attentions
        return hidden_states


def _body(token_width: int, hidden_size: int, layers: int, heads: int, feed_forward: int) -> Blip2QFormerModel:
    # transformers takes seconds to import: only who builds the network needs it
    from transformers import Blip2QFormerConfig, Blip2QFormerModel

    config = Blip2QFormerConfig(
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=feed_forward,
        encoder_hidden_size=token_width,
        cross_attention_frequency=CROSS_ATTENTION_FREQUENCY,
    )
    body = Blip2QFormerModel(config)
    # the other kernels do not give attention weights, and their gradients may differ from run to run
    body.set_attn_implementation("eager")
    return body
