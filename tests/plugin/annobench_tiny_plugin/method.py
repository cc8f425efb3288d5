"""A linear model on the votes of each item."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from datamodules.base import DataInfo
from models.base import Batch, CrowdModule


class VoteCounter(CrowdModule):
    """Cross-entropy against every label of an item alike."""

    def __init__(self, data_info: DataInfo, *, lr: float = 0.1) -> None:
        super().__init__(data_info)
        self.lr = lr
        n_features = 1
        for size in data_info.input_shape:
            n_features *= size
        self.linear = nn.Linear(n_features, data_info.n_classes)

    def predict_consensus(self, x: Tensor) -> Tensor:
        return torch.log_softmax(self.linear(x.flatten(1)), dim=-1)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        labels = batch["labels"]
        present = labels >= 0
        if not present.any():
            return None
        log_probability = self.predict_consensus(batch["x"]).gather(1, labels.clamp_min(0))
        return -log_probability[present].mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)
