"""One backbone with a linear layer on top: what the methods share that predict one class per item."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from datamodules.base import DataInfo
from models.backbones import build_backbone
from models.base import CrowdModule
from models.epoch_mean import EpochMean
from models.optimisers import build_optimiser, build_schedule, lightning_optimisers


class Classifier(CrowdModule):
    """Network, optimiser and predictions; a subclass says in ``training_step`` what is learned.

    A ``training_step`` adds its loss to ``self.epoch_loss``, whose mean is logged as ``train_loss``.

    Args:
        data_info: classes, annotators and input shape of the data.
        backbone: name of the network; see :func:`models.backbones.build_backbone`.
        pretrained: weights of a timm backbone; see there.
        augmentation: augmentation of the training items; ``standard`` is the data's own.
        optimiser_args: of :func:`models.optimisers.build_optimiser`.
        schedule_args: of :func:`models.optimisers.build_schedule`.
    """

    def __init__(
        self,
        data_info: DataInfo,
        *,
        backbone: str,
        pretrained: bool | str,
        augmentation: str,
        optimiser_args: Mapping[str, Any],
        schedule_args: Mapping[str, Any],
    ) -> None:
        super().__init__(data_info)
        self.augmentation = augmentation
        self.optimiser_args = dict(optimiser_args)
        self.schedule_args = dict(schedule_args)
        self.backbone = build_backbone(backbone, data_info.input_shape, pretrained)
        self.classifier = nn.Linear(self.backbone.num_features, data_info.n_classes)
        self.epoch_loss = EpochMean()

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[B, C]`` of ``x [B, ...]``."""
        logits: Tensor = self.classifier(self.backbone(x))
        return logits.float()

    def train_views(self) -> Mapping[str, str]:
        """One view under ``augmentation``."""
        return {"x": self.augmentation}

    def on_validation_epoch_end(self) -> None:
        """Logs ``train_loss``: the mean over the epoch's steps."""
        mean = self.epoch_loss.pop()
        if mean is not None:
            self.log("train_loss", mean)

    def configure_optimizers(self) -> Any:
        """The optimiser and its schedule over the whole training."""
        optimiser = build_optimiser(self.parameters(), **self.optimiser_args)
        steps = int(self.trainer.estimated_stepping_batches)
        return lightning_optimisers(optimiser, build_schedule(optimiser, total_steps=steps, **self.schedule_args))

    # --- predictions --------------------------------------------------------------------------

    def predict_consensus(self, x: Tensor) -> Tensor:
        """Log-probabilities ``[B, C]``."""
        return torch.log_softmax(self(x), dim=-1)

    def class_logits(self, x: Tensor) -> Tensor:
        """Logits ``[B, C]``."""
        logits: Tensor = self(x)
        return logits

    def embed(self, x: Tensor) -> Tensor:
        """The backbone's features ``[B, D]``, which the linear layer reads."""
        features: Tensor = self.backbone(x)
        return features

    def pooling_layer(self) -> nn.Module | None:
        """The backbone's pooling, or None where it has no feature map."""
        return self.backbone.pooling_layer()
