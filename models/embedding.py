"""A network that embeds items, and a rule that learns tasks in its embedding: what few-shot methods share."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from datamodules.base import DataInfo
from models.backbones import build_backbone
from models.base import Batch, EpisodicModule
from models.epoch_mean import EpochMean

#: embeddings of that many tensors of items are remembered: support and query items of two batches
_REMEMBERED = 4


class EmbeddingModule(EpisodicModule):
    """Meta-trains an embedding by the cross-entropy of the query items after learning from the support items.

    A subclass says how embedded support items are learned from (:meth:`adapt_embedded`) and how embedded queries are
    answered (:meth:`predict_embedded`), and may annotate the support items of training episodes
    (:meth:`training_labels`). Training uses the first adaptation.

    Under a trainer's lower precision the network alone runs in it.

    In training, all items of a batch of episodes go through the network together, so batch norm sees support and query
    items of T episodes at once; in evaluation it uses running statistics, so no item's embedding depends on another.

    Args:
        data_info: classes of an episode, annotators, input shape.
        backbone: name of the network; see :func:`models.backbones.build_backbone`.
        pretrained: weights of a timm backbone; see there.
        scale: factor of the embedding, above 0. Distances are measured against a unit variance.
        learn_scale: whether that factor is learned, from ``scale`` on.
        lr: learning rate of Adam.

    Raises:
        ValueError: for an unknown ``backbone``, a value out of range, or a network without anything to train.
    """

    def __init__(
        self,
        data_info: DataInfo,
        *,
        backbone: str,
        pretrained: bool | str,
        scale: float,
        learn_scale: bool,
        lr: float,
    ) -> None:
        if not 0 < scale < math.inf:
            raise ValueError(f"scale is {scale}; the factor of the embedding must be above 0")
        super().__init__(data_info)
        self.lr = lr
        self.backbone = build_backbone(backbone, data_info.input_shape, pretrained)
        # the logarithm, so that no step of the optimiser makes it negative
        log_scale = torch.tensor(math.log(scale))
        self.log_scale = nn.Parameter(log_scale, requires_grad=learn_scale)
        if not any(parameter.requires_grad for parameter in self.parameters()):
            raise ValueError(f"backbone {backbone!r} has no weights to train; use another or learn_scale=True")
        self.epoch_loss = EpochMean()
        self._seen: list[tuple[Tensor, tuple[int, ...], Tensor]] = []

    # --- to implement -------------------------------------------------------------------------

    @abstractmethod
    def adapt_embedded(self, u: Tensor, labels: Tensor, adaptation: str) -> Any:
        """What is learned from embeddings ``[T, Ns, M]`` and their labels ``[T, Ns, R]`` (-1 where missing)."""

    @abstractmethod
    def predict_embedded(self, state: Any, u: Tensor) -> Tensor:
        """Log-probabilities ``[T, Nq, K]`` of query embeddings ``[T, Nq, M]``."""

    # --- may be implemented -------------------------------------------------------------------

    def training_labels(self, support_y: Tensor, batch_idx: int) -> Tensor:
        """Annotations ``[T, Ns, R]`` of a training batch; here the source labels, given by one annotator."""
        return support_y.unsqueeze(2)

    # --- the same for all ---------------------------------------------------------------------

    def embed(self, x: Tensor) -> Tensor:
        """Embeddings ``[T, N, M]`` (float32) of ``x [T, N, ...]``.

        In evaluation without gradients the last few answers are kept and given again for the same tensor, as long as
        neither it nor a weight has changed: every adaptation to a task embeds the same items.
        """
        if self.training or torch.is_grad_enabled() or torch.is_inference_mode_enabled() or x.is_inference():
            return self._embed(x)
        versions = self._versions(x)
        for known, at, embedded in self._seen:
            if known is x and at == versions:
                return embedded
        self._seen = [*self._seen[-_REMEMBERED + 1 :], (x, versions, self._embed(x))]
        return self._seen[-1][2]

    def adapt(self, support_x: Tensor, support_labels: Tensor, adaptation: str) -> Any:
        """Embeds the support items and learns from them; see :meth:`models.base.EpisodicModule.adapt`."""
        self.check_adaptation(adaptation)
        u = self.embed(support_x)
        with self._in_full():
            return self.adapt_embedded(u, support_labels, adaptation)

    def predict_query(self, state: Any, x: Tensor) -> Tensor:
        """Log-probabilities ``[T, Nq, K]``; see :meth:`models.base.EpisodicModule.predict_query`."""
        u = self.embed(x)
        with self._in_full():
            return self.predict_embedded(state, u)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Mean cross-entropy of the query items."""
        support, queries = batch["support_x"], batch["query_x"]
        embedded = self._embed(torch.cat([support, queries], dim=1))
        u, v = embedded.split([support.shape[1], queries.shape[1]], dim=1)
        labels = self.training_labels(batch["support_y"], batch_idx)
        with self._in_full():
            answers = self.predict_embedded(self.adapt_embedded(u, labels, self.adaptations[0]), v)
            loss = F.nll_loss(answers.flatten(0, 1), batch["query_y"].flatten())
        self.epoch_loss.add(loss)
        return loss

    def on_validation_epoch_end(self) -> None:
        """Logs ``train_loss``: the mean over the epoch's steps."""
        mean = self.epoch_loss.pop()
        if mean is not None:
            self.log("train_loss", mean)

    def train(self, mode: bool = True) -> EmbeddingModule:
        """As in PyTorch; what was remembered is let go."""
        self._seen = []
        super().train(mode)
        return self

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam at a constant rate."""
        return torch.optim.Adam([weight for weight in self.parameters() if weight.requires_grad], lr=self.lr)

    def _in_full(self) -> torch.autocast:
        """Full precision under a trainer's lower one: differences of distances and logarithms need the digits."""
        return torch.autocast(self.device.type, enabled=False)

    def _embed(self, x: Tensor) -> Tensor:
        features = self.backbone(x.flatten(0, 1)).float()
        return features.view(*x.shape[:2], -1) * self.log_scale.exp()

    def _versions(self, x: Tensor) -> tuple[int, ...]:
        """Numbers of in-place changes of ``x`` and of all weights and buffers, by PyTorch's own count."""
        return tuple(tensor._version for tensor in (x, *self.parameters(), *self.buffers()))
