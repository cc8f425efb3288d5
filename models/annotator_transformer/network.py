"""The network: an image and its annotators as one sequence of tokens.

``s = sqrt(E) * [t0, e_1, ..., e_K]`` with ``t0 = norm(Linear(h))`` of the backbone's features ``h`` and
``e_j = norm(Embedding(w_j))``, both L2-normalised; a Transformer encoder without positions; a small head on
every annotator's position. Source: released code; see ``card.md``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.backbones import Backbone

#: pairs of item and annotator in one pass when each annotator stands alone
PAIRS_AT_ONCE = 32_768


class AnnotatorNetwork(nn.Module):
    """Predicts the label that each annotator would give an item.

    Args:
        backbone: maps items to features ``[B, D]``.
        n_annotators: R.
        n_classes: C.
        embedding_dim: E, width of every token.
        n_blocks: encoder layers.
        n_heads: attention heads; must divide E.
        feedforward_dim: width of the feed-forward part of a layer.
        dropout: in the encoder and before the head.

    Raises:
        ValueError: if ``n_heads`` does not divide ``embedding_dim``.
    """

    def __init__(
        self,
        backbone: Backbone,
        n_annotators: int,
        n_classes: int,
        *,
        embedding_dim: int,
        n_blocks: int,
        n_heads: int,
        feedforward_dim: int,
        dropout: float,
    ) -> None:
        super().__init__()
        if embedding_dim % n_heads:
            raise ValueError(f"n_heads is {n_heads}, which does not divide embedding_dim {embedding_dim}")
        self.backbone = backbone
        self.item_token = nn.Linear(backbone.num_features, embedding_dim)
        self.annotator_token = nn.Embedding(n_annotators, embedding_dim)
        layer = nn.TransformerEncoderLayer(embedding_dim, n_heads, feedforward_dim, dropout, batch_first=True)
        # Nested tensors would drop columns that are padded in every row, and with them output positions.
        self.encoder = nn.TransformerEncoder(
            layer, n_blocks, norm=nn.LayerNorm(embedding_dim), enable_nested_tensor=False
        )
        self.head = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(embedding_dim, embedding_dim),
            nn.Tanh(),
            nn.Linear(embedding_dim, n_classes),
        )
        self.scale = embedding_dim**0.5
        self.n_classes = n_classes

    def features(self, x: Tensor) -> Tensor:
        """Backbone features ``[B, D]`` in float32."""
        features: Tensor = self.backbone(x)
        return features.float()

    def forward(self, x: Tensor, annotators: Tensor, alone: bool = False) -> Tensor:
        """Logits ``[B, K, C]`` for ``x [B, ...]`` and ids ``[B, K]`` (-1 padded); see :meth:`predict`."""
        return self.predict(self.features(x), annotators, alone)

    def predict(self, features: Tensor, annotators: Tensor, alone: bool = False) -> Tensor:
        """Logits of the annotators' labels.

        Args:
            features: ``[B, D]``.
            annotators: ids ``[B, K]``, -1 padded; padded positions hold finite values without a meaning.
            alone: each annotator in a sequence of its own (image and one annotator), instead of all K in one,
                where they attend to each other.

        Returns:
            ``[B, K, C]``, float32.
        """
        # Tokens of width 20 gain nothing from lower precision: the casts would cost more than they save.
        with torch.autocast(features.device.type, enabled=False):
            items = F.normalize(self.item_token(features), dim=-1)
            return self._predict_alone(items, annotators) if alone else self._predict_together(items, annotators)

    def _predict_together(self, items: Tensor, annotators: Tensor) -> Tensor:
        """Logits ``[B, K, C]`` from item tokens ``[B, E]`` and ids ``[B, K]``, one sequence an item."""
        tokens = torch.cat([items.unsqueeze(1), self._annotator_tokens(annotators)], dim=1) * self.scale
        padded = F.pad(annotators < 0, (1, 0), value=False)
        encoded = self.encoder(tokens, src_key_padding_mask=padded)
        logits: Tensor = self.head(encoded[:, 1:])
        return logits

    def _predict_alone(self, items: Tensor, annotators: Tensor) -> Tensor:
        """Likewise, one sequence for each item and annotator."""
        n_items, width = annotators.shape
        per_pass = max(1, PAIRS_AT_ONCE // max(1, width))
        parts = []
        for some, ids in zip(items.split(per_pass), annotators.split(per_pass), strict=True):
            pairs = some.repeat_interleave(width, dim=0)
            parts.append(self._predict_together(pairs, ids.reshape(-1, 1)).view(len(ids), width, -1))
        return torch.cat(parts) if parts else items.new_zeros(n_items, width, self.n_classes)

    def _annotator_tokens(self, annotators: Tensor) -> Tensor:
        """Normalised embeddings ``[B, K, E]``; zeros, and no gradient, for an id of -1."""
        embedded = F.normalize(self.annotator_token(annotators.clamp_min(0)), dim=-1)
        return embedded * (annotators >= 0).unsqueeze(-1)
