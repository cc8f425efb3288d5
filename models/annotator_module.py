"""Methods that predict each annotator's own label from features: loss, optimiser and predictions they share."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from datamodules.base import DataInfo
from models.base import Batch, CrowdModule
from models.epoch_mean import EpochMean, no_loss
from models.optimisers import build_optimiser, build_schedule, lightning_optimisers


class AnnotatorModule(CrowdModule):
    """Scores ``[B, R, C]`` of the label that each annotator gives; a subclass says how they are made.

    The loss is QuMATL's (arXiv 2503.15237; released code): for each annotator the mean cross-entropy over the items of
    the batch that they labelled, summed over annotators. A batch without any label moves no weight.

    The rate rises linearly over the first part of the training and falls along a cosine to 0 (both per step).

    Args:
        data_info: classes, annotators and input shape: features ``(D,)``, tokens ``(N, D)``, or tokens of frames
            ``(F, N, D)``.
        lr: largest learning rate of AdamW.
        weight_decay: of AdamW.
        warmup: share of the training's steps over which the rate rises.

    Raises:
        ValueError: for a rate, decay or share out of range.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"annotator_ids"})

    def __init__(self, data_info: DataInfo, *, lr: float, weight_decay: float, warmup: float) -> None:
        super().__init__(data_info)
        if not 0 < lr < math.inf or not 0 <= weight_decay < math.inf or not 0 <= warmup < 1:
            raise ValueError(
                f"lr is {lr}, weight_decay {weight_decay} and warmup {warmup}; "
                "lr must be above 0, weight_decay at least 0, and warmup from 0 to below 1"
            )
        self.lr = lr
        self.weight_decay = weight_decay
        self.warmup = warmup
        self.epoch_loss = EpochMean()

    # --- to implement -------------------------------------------------------------------------

    @abstractmethod
    def annotator_logits(self, x: Tensor) -> Tensor:
        """Unnormalised scores ``[B, R, C]`` of each annotator's own label of ``x [B, ...]``."""

    # --- may be implemented -------------------------------------------------------------------

    def loss(self, batch: Batch, labels: Tensor) -> Tensor:
        """The loss of a batch whose labels, ``[B, R]`` with -1 where there is none, hold at least one label."""
        return labelled_cross_entropy(self.annotator_logits(batch["x"]), labels)

    def parameter_groups(self) -> Iterable[nn.Parameter] | Iterable[dict[str, Any]]:
        """What the optimiser moves: parameters, or groups of them with settings of their own."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    # --- the same for all ---------------------------------------------------------------------

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of one batch."""
        labels = by_annotator(batch["annotators"], batch["labels"], self.data_info.n_annotators)
        loss = self.loss(batch, labels) if bool((labels >= 0).any()) else no_loss(labels.device)
        self.epoch_loss.add(loss)
        return loss

    def on_validation_epoch_end(self) -> None:
        """Logs ``train_loss``: the mean over the epoch's steps."""
        mean = self.epoch_loss.pop()
        if mean is not None:
            self.log("train_loss", mean)

    def predict_annotators(self, x: Tensor, annotators: Tensor | None = None) -> Tensor:
        """Log-probabilities of each annotator's own label; see :meth:`models.base.CrowdModule.predict_annotators`."""
        answers = self.annotator_logits(x).float().log_softmax(-1)
        if annotators is None:
            return answers
        asked = annotators.clamp_min(0).unsqueeze(2).expand(-1, -1, answers.shape[2])
        return answers.gather(1, asked)

    def predict_consensus(self, x: Tensor) -> Tensor:
        """Log of the mean over all annotators' probabilities ``[B, C]``."""
        return self.predict_annotators(x).logsumexp(1) - math.log(self.data_info.n_annotators)

    def train_views(self) -> Mapping[str, str]:
        """Features as they are."""
        return {"x": "none"}

    def configure_optimizers(self) -> Any:
        """AdamW with warm-up and cosine over the whole training."""
        optimiser = build_optimiser(self.parameter_groups(), "adamw", lr=self.lr, weight_decay=self.weight_decay)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = build_schedule(optimiser, "warmup_cosine", total_steps=steps, warmup=self.warmup)
        return lightning_optimisers(optimiser, schedule)


def by_annotator(annotators: Tensor, labels: Tensor, n_annotators: int) -> Tensor:
    """Labels ``[B, R]``, -1 where there is none, of padded ``annotators`` and ``labels [B, K]`` (-1 padded)."""
    # a column more takes the padding
    dense = torch.full((len(labels), n_annotators + 1), -1, dtype=labels.dtype, device=labels.device)
    places = torch.where(labels >= 0, annotators, n_annotators)
    return dense.scatter_(1, places, labels)[:, :n_annotators]


def labelled_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """For each annotator the mean cross-entropy over labelled items, summed over annotators.

    Args:
        logits: ``[B, R, C]``.
        labels: ``[B, R]``, -1 where there is none; at least one label.
    """
    present = labels >= 0
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="none")
    return (losses.view_as(labels).sum(0) / present.sum(0).clamp_min(1)).sum()
