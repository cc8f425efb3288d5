"""Each annotator's most frequent class: what anyone knows who has never looked at an item.

>>> from datamodules.base import DataInfo
>>> method = AnnotatorMajority(DataInfo(6, 10, (16, 64)))
>>> sum(parameter.numel() for parameter in method.parameters())
0
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from datamodules.base import DataInfo
from models.annotator_module import by_annotator
from models.base import Batch, CrowdModule
from models.epoch_mean import no_loss


class AnnotatorMajority(CrowdModule):
    """Frequencies of each annotator's training labels, counted once, in the first epoch. Nothing is optimised.

    To an annotator's counts comes one label more, spread as the labels of all are. So equal counts go to the class that
    all give more often (then to the lowest), and who has no label is predicted to answer as all do; a class that an
    annotator gives most often is never overtaken.

    Args:
        data_info: classes, annotators and input shape; items are not looked at.
    """

    version: ClassVar[str] = "1"
    needs: ClassVar[frozenset[str]] = frozenset({"annotator_ids"})

    counts: Tensor

    def __init__(self, data_info: DataInfo) -> None:
        super().__init__(data_info)
        self.automatic_optimization = False
        self.register_buffer("counts", torch.zeros(data_info.n_annotators, data_info.n_classes, dtype=torch.int64))

    def on_train_start(self) -> None:
        """Forgets an earlier training."""
        self.counts.zero_()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Counts the batch's labels in the first epoch.

        Returns:
            the mean negative log-likelihood of the batch's labels under the frequencies so far; 0 without a label.
        """
        labels = by_annotator(batch["annotators"], batch["labels"], self.data_info.n_annotators)
        present = labels >= 0
        if not bool(present.any()):
            return no_loss(labels.device)
        given = F.one_hot(labels.clamp_min(0), self.data_info.n_classes) * present.unsqueeze(2)
        if self.current_epoch == 0:
            self.counts += given.sum(0)
        return -(given * self.log_frequencies()).sum() / present.sum()

    def log_frequencies(self) -> Tensor:
        """Log of each annotator's frequencies ``[R, C]``, all above 0."""
        counts = self.counts.double()
        everyone = (counts.sum(0) + 1) / (counts.sum() + counts.shape[1])
        return ((counts + everyone) / (counts.sum(1, keepdim=True) + 1)).log().float()

    def predict_annotators(self, x: Tensor, annotators: Tensor | None = None) -> Tensor:
        """Each annotator's log-frequencies; see :meth:`models.base.CrowdModule.predict_annotators`."""
        known = self.log_frequencies()
        return known.expand(len(x), -1, -1) if annotators is None else known[annotators.clamp_min(0)]

    def predict_consensus(self, x: Tensor) -> Tensor:
        """Log of the mean over annotators' frequencies ``[B, C]``, the same for every item."""
        mean = self.log_frequencies().logsumexp(0) - math.log(self.data_info.n_annotators)
        return mean.expand(len(x), -1)

    def train_views(self) -> dict[str, str]:
        """Items as they are: they are not looked at."""
        return {"x": "none"}

    def configure_optimizers(self) -> None:
        """None: there is nothing to optimise."""
