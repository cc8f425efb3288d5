"""Hard against soft labels: one classifier, trained on what a delivery makes of each item's votes.

Gheibi and Ghazizadeh, Same Target, Different Basins: Hard vs. Soft Labels for Annotator Distributions
(arXiv 2605.20642). Deliveries, defaults and doubts: ``card.md``.

    method = LabelDelivery(datamodule.info, delivery="multipass", backbone="small_cnn")
    Trainer(max_epochs=10).fit(method, datamodule=datamodule)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from datamodules.base import CrowdDataModule, DataInfo
from models.base import Batch
from models.classifier import Classifier
from models.epoch_mean import no_loss
from models.label_delivery.delivery import parse_delivery
from models.label_delivery.epochs import EpochLabels
from models.label_delivery.losses import delivered_loss, has_label, mixup_pairs
from models.optimisers import OptimiserName, ScheduleName

#: the seed of the deliveries lies in [0, 2**31)
_SEEDS = 2**31


class LabelDelivery(Classifier):
    """Cross-entropy on the label that ``delivery`` gives each item in each epoch.

    The votes are those of the data module's training annotations; held-out ones are never delivered. Labels of an
    epoch are made at once, on the training device, and follow from the votes, the number of the epoch and
    ``delivery_seed`` alone. That seed is drawn from torch's global generator right after the network is built:
    with the generator seeded before construction, all deliveries of one network share initial weights and
    seed. It is part of the state, so a resumed training goes on with the labels of an uninterrupted one.

    Args:
        data_info: classes, annotators and input shape of the data.
        delivery: ``majority``, ``soft``, ``multipass``, ``sls``, ``deterministic``, ``shuffled_sls`` or
            ``stale(E)``; see :data:`models.label_delivery.delivery.DELIVERIES`.
        label_smoothing: share of the target probability spread over all classes, in [0, 1).
        mixup: alpha of ``Beta(alpha, alpha)``, from which each batch draws with which share its items are mixed;
            0: no mixup.
        backbone: name of the network; see :func:`models.backbones.build_backbone`.
        pretrained: weights of a timm backbone; see there.
        augmentation: augmentation of the training items; ``standard`` is the data's own.
        optimiser: ``sgd`` or ``adamw``.
        lr: learning rate (with ``one_cycle`` the largest).
        momentum: of SGD.
        weight_decay: of the optimiser.
        schedule: ``drops``, ``one_cycle``, ``cosine`` or ``constant``.
        lr_drops: fractions of the training at which ``drops`` multiplies the rate by ``lr_drop_factor``.
        lr_drop_factor: see there.
        lr_warmup: fraction of the training in which the rate of ``one_cycle`` rises.

    Raises:
        ValueError: for an unknown ``delivery`` (near names are listed) or ``backbone``, or a value out of range.
    """

    version: ClassVar[str] = "1"
    #: annotations of any kind can be counted
    needs: ClassVar[frozenset[str]] = frozenset()

    delivery_seed: Tensor

    def __init__(
        self,
        data_info: DataInfo,
        *,
        delivery: str = "sls",
        label_smoothing: float = 0.0,
        mixup: float = 0.0,
        backbone: str = "resnet18",
        pretrained: bool | str = False,
        augmentation: str = "standard",
        optimiser: OptimiserName = "sgd",
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        schedule: ScheduleName = "cosine",
        lr_drops: Sequence[float] = (0.5,),
        lr_drop_factor: float = 0.1,
        lr_warmup: float = 0.4,
    ) -> None:
        parse_delivery(delivery)
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing is {label_smoothing}; it must be at least 0 and below 1")
        if not 0 <= mixup < math.inf:
            raise ValueError(f"mixup is {mixup}; alpha must be 0 (no mixup) or a number above it")
        super().__init__(
            data_info,
            backbone=backbone,
            pretrained=pretrained,
            augmentation=augmentation,
            optimiser_args={"name": optimiser, "lr": lr, "momentum": momentum, "weight_decay": weight_decay},
            schedule_args={
                "name": schedule,
                "drops": tuple(lr_drops),
                "drop_factor": lr_drop_factor,
                "warmup": lr_warmup,
            },
        )
        self.delivery = delivery
        self.label_smoothing = label_smoothing
        self.mixup = mixup
        # after the network, whose initial weights so are those of any other classifier at this seed
        self.register_buffer("delivery_seed", torch.randint(_SEEDS, ()))
        self._labels: EpochLabels | None = None

    # --- labels -------------------------------------------------------------------------------

    def on_train_start(self) -> None:
        """Counts the votes of the training annotations."""
        datamodule: CrowdDataModule | None = getattr(self.trainer, "datamodule", None)
        if datamodule is None:
            raise RuntimeError(_NO_DATA)
        votes = datamodule.train_annotations.votes().to(self.device)
        self._labels = EpochLabels(self.delivery, votes, int(self.delivery_seed))

    def on_train_end(self) -> None:
        """Lets go of the votes."""
        self._labels = None

    def epoch_labels(self) -> Tensor:
        """What each item is trained on in the current epoch: class ids ``[N]`` or frequencies ``[N, C]``.

        Rows are those of the data module's training items, as in ``batch["index"]``. Items without votes to
        learn from have -1, or frequencies of 0.
        """
        # made when asked for and not at an epoch's start, which a training resumed within an epoch never sees
        if self._labels is None:
            raise RuntimeError(_NO_DATA)
        return self._labels.of(self.current_epoch)

    # --- training -----------------------------------------------------------------------------

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Mean cross-entropy over the items with a label; 0, moving no weight, if there is none."""
        labels = self.epoch_labels()[batch["index"]]
        if not bool(has_label(labels).any()):
            return no_loss(labels.device)
        loss = self._mixed(batch["x"], labels, batch_idx) if self.mixup else self._loss(self(batch["x"]), labels)
        self.epoch_loss.add(loss)
        return loss

    def _mixed(self, x: Tensor, labels: Tensor, batch_idx: int) -> Tensor:
        """The loss on mixed items against both labels of each; a part without a label counts for nothing."""
        share, partners = mixup_pairs(len(x), self.mixup, self._labels_seed(), self.current_epoch, batch_idx)
        partners = partners.to(x.device)
        logits = self(share * x + (1 - share) * x[partners])
        return share * self._loss(logits, labels) + (1 - share) * self._loss(logits, labels[partners])

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return delivered_loss(logits, labels, self.label_smoothing)

    def _labels_seed(self) -> int:
        """``delivery_seed`` as a number, without asking the device for it in each step."""
        if self._labels is None:
            raise RuntimeError(_NO_DATA)
        return self._labels.seed


_NO_DATA = (
    "label_delivery takes each epoch's labels from the votes of the training annotations: pass the data as "
    "trainer.fit(method, datamodule=...), not as loaders"
)
