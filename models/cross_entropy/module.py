"""Plain cross-entropy on one label per item: the baseline of the noisy-label challenge.

Source: ``ce_baseline.py`` (branch ``ijcai-lmnl-2022``) and ``main.py`` of UCSC-REAL/cifar-10-100n; see
``card.md``.

    method = CrossEntropy(datamodule.info, backbone="small_cnn")
    Trainer(max_epochs=10).fit(method, datamodule=datamodule)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from torch import Tensor
from torch.nn import functional as F

from datamodules.base import DataInfo
from models.base import Batch
from models.classifier import Classifier
from models.epoch_mean import no_loss
from models.optimisers import OptimiserName, ScheduleName

Target = Literal["aggregated", "majority", "first"]
_TARGETS = ("aggregated", "majority", "first")


def first_label(labels: Tensor) -> Tensor:
    """The first present label of each row of ``labels [B, K]`` (-1 missing); -1 where a row has none."""
    present = labels >= 0
    place = present.int().argmax(dim=1, keepdim=True)
    return labels.gather(1, place).squeeze(1)


def majority_label(labels: Tensor) -> Tensor:
    """The most frequent label of each row of ``labels [B, K]`` (-1 missing); -1 where a row has none.

    Among equally frequent labels the one that stands first in the row wins, so that no class is favoured.
    """
    same = (labels.unsqueeze(2) == labels.unsqueeze(1)).sum(dim=2)
    frequency = same.masked_fill(labels < 0, 0)
    return labels.gather(1, frequency.argmax(dim=1, keepdim=True)).squeeze(1)


class CrossEntropy(Classifier):
    """One network, one label per item, mean cross-entropy.

    The defaults are the organisers' script: SGD without momentum or weight decay, learning rate 0.1 for the
    first half of the epochs and 0.01 for the second.

    Args:
        data_info: classes, annotators and input shape of the data.
        backbone: name of the network; see :func:`models.backbones.build_backbone`.
        pretrained: weights of a timm backbone; see there.
        target: ``aggregated``: the data's own single label (the batch's ``aggregated``), or the majority
            where the data has none; ``majority``: the most frequent label; ``first``: the first in the batch.
        augmentation: augmentation of the training items; ``standard`` is the data's own.
        label_smoothing: share of the target probability spread over all classes.
        optimiser: ``sgd`` or ``adamw``.
        lr: learning rate (with ``one_cycle`` the largest).
        momentum: of SGD.
        weight_decay: of the optimiser.
        schedule: ``drops``, ``one_cycle``, ``cosine`` or ``constant``.
        lr_drops: fractions of the training at which ``drops`` multiplies the rate by ``lr_drop_factor``.
        lr_drop_factor: see there.
        lr_warmup: fraction of the training in which the rate of ``one_cycle`` rises.

    Raises:
        ValueError: for an unknown ``target``, ``backbone``, ``optimiser`` or ``schedule``.
    """

    version: ClassVar[str] = "1"
    needs: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        data_info: DataInfo,
        *,
        backbone: str = "resnet34",
        pretrained: bool | str = False,
        target: Target = "aggregated",
        augmentation: str = "standard",
        label_smoothing: float = 0.0,
        optimiser: OptimiserName = "sgd",
        lr: float = 0.1,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        schedule: ScheduleName = "drops",
        lr_drops: Sequence[float] = (0.5,),
        lr_drop_factor: float = 0.1,
        lr_warmup: float = 0.4,
    ) -> None:
        if target not in _TARGETS:
            raise ValueError(f"unknown target {target!r}; there are: {', '.join(_TARGETS)}")
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
        self.target = target
        self.label_smoothing = label_smoothing

    def single_label(self, batch: Batch) -> Tensor:
        """The label ``[B]`` that each item is trained on, -1 where it has none."""
        if self.target == "aggregated" and "aggregated" in batch:
            given: Tensor = batch["aggregated"]
            return given
        return first_label(batch["labels"]) if self.target == "first" else majority_label(batch["labels"])

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Mean cross-entropy over the items with a label; 0, moving no weight, if there is none."""
        label = self.single_label(batch)
        if not bool((label >= 0).any()):
            return no_loss(label.device)
        logits = self(batch["x"])
        loss = F.cross_entropy(logits, label, ignore_index=-1, label_smoothing=self.label_smoothing)
        self.epoch_loss.add(loss)
        return loss
