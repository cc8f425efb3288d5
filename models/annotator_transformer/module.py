"""The LMNL-2022 challenge submission: annotators as tokens of a Transformer.

Tseytlin, "Learning from multiple noisy labels" challenge at IJCAI 2022; released code
btseytlin/cifar-10-100n-toloka. Equations, settings and deviations: ``card.md``.

    method = AnnotatorTransformer(datamodule.info, backbone="small_cnn", setting="as_released")
    datamodule.request(method.train_views(), method.unlabeled_views())
    Trainer(max_epochs=10, gradient_clip_val=1.0).fit(method, datamodule=datamodule)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from datamodules.base import CrowdDataModule, DataInfo
from models.annotator_transformer.losses import fixmatch_loss, supervised_loss
from models.annotator_transformer.network import AnnotatorNetwork
from models.annotator_transformer.settings import resolve_setting
from models.annotator_transformer.skills import (
    agreement_counts,
    mean_consensus,
    most_skilled,
    smoothed_skill,
    vote_consensus,
    vote_counts,
)
from models.annotator_transformer.swa import WeightAverage, averaging_start
from models.backbones import build_backbone
from models.base import Batch, CrowdModule
from models.epoch_mean import EpochMean, no_loss
from models.optimisers import build_optimiser, build_schedule, lightning_optimisers

#: tokens in one pass of the skill estimation, which may put hundreds of annotators in a sequence
_TOKENS_AT_ONCE = 32_768


class AnnotatorTransformer(CrowdModule):
    """Predicts each annotator's label from a sequence of an image token and annotator tokens.

    Arguments that default to None take their value from ``setting``; each may also be the name of another
    setting, e.g. ``setting="as_released", inference="as_reported"``.

    Args:
        data_info: classes, annotators and input shape of the data.
        setting: ``as_reported``, ``as_released`` or ``annobench``; see ``settings.py`` for what each means.
        backbone: name of the network; see :func:`models.backbones.build_backbone`.
        pretrained: weights of a timm backbone; see there.
        embedding_dim: width of the tokens.
        n_blocks: layers of the Transformer encoder.
        n_heads: attention heads.
        feedforward_dim: width of the feed-forward part of a layer.
        dropout: in the encoder and before the head.
        label_smoothing: share of the target probability spread over all classes.
        fixmatch_coefficient: weight of the FixMatch loss; 0: no FixMatch and no second batch.
        fixmatch_threshold: smallest probability of a pseudo-label that counts.
        fixmatch_temperature: divides the logits that pseudo-labels are made from.
        swa: average the weights of the last epochs.
        swa_start: fraction of the epochs after which averaging begins.
        skill_prior: ``(alpha, beta)``.
        skill_start: ``uniform`` or ``majority_agreement``.
        skill_weighting: ``none``, ``plain`` or ``batch_maximum``.
        skill_warmup: fraction of the epochs before skills are estimated from the model.
        estimation_share: share of the annotators, the most skilled, whose votes are the reference of skills.
        estimation_annotators: at most that many of them; None: no limit. The report's 249 in one sequence
            cost more than the backbone on a CPU.
        training: ``together`` or ``alone``.
        inference: ``together`` or ``alone``.
        consensus: ``votes`` or ``mean_probability``.
        n_inference_annotators: the k most skilled annotators make the consensus.
        augmentation: of the labelled view, and of the items that skills are estimated on.
        weak_augmentation: of FixMatch's weak view.
        strong_augmentation: of FixMatch's strong view.
        lr: largest learning rate of the cycle.
        weight_decay: of AdamW.
        lr_warmup: fraction of the training in which the learning rate rises.

    Raises:
        ValueError: for an unknown name or a value out of range.
    """

    version: ClassVar[str] = "1"
    needs: ClassVar[frozenset[str]] = frozenset({"annotator_ids"})

    skill: Tensor

    def __init__(
        self,
        data_info: DataInfo,
        *,
        setting: Literal["as_reported", "as_released", "annobench"] = "as_reported",
        backbone: str = "efficientnet_b1",
        pretrained: bool | str = False,
        embedding_dim: int = 20,
        n_blocks: int = 4,
        n_heads: int = 4,
        feedforward_dim: int = 20,
        dropout: float = 0.1,
        label_smoothing: float = 0.1,
        fixmatch_coefficient: float | None = None,
        fixmatch_threshold: float = 0.6,
        fixmatch_temperature: float = 1.0,
        swa: bool = True,
        swa_start: float = 0.8,
        skill_prior: str | Sequence[float] | None = None,
        skill_start: str | None = None,
        skill_weighting: str | None = None,
        skill_warmup: float | str | None = None,
        estimation_share: float = 1 / 3,
        estimation_annotators: int | None = None,
        training: str | None = None,
        inference: str | None = None,
        consensus: str | None = None,
        n_inference_annotators: int = 7,
        augmentation: str | None = None,
        weak_augmentation: str = "weak",
        strong_augmentation: str = "strong",
        lr: float | None = None,
        weight_decay: float = 0.01,
        lr_warmup: float = 0.4,
    ) -> None:
        super().__init__(data_info)
        self.setting = resolve_setting(
            setting,
            lr=lr,
            skill_prior=skill_prior,
            skill_start=skill_start,
            skill_weighting=skill_weighting,
            skill_warmup=skill_warmup,
            training=training,
            inference=inference,
            consensus=consensus,
            augmentation=augmentation,
            fixmatch_coefficient=fixmatch_coefficient,
        )
        _require_shares(
            dropout=dropout,
            label_smoothing=label_smoothing,
            fixmatch_threshold=fixmatch_threshold,
            swa_start=swa_start,
            estimation_share=estimation_share,
            lr_warmup=lr_warmup,
        )
        _require_counts(n_inference_annotators=n_inference_annotators, estimation_annotators=estimation_annotators)
        self.label_smoothing = label_smoothing
        self.fixmatch_coefficient = self.setting.fixmatch_coefficient
        self.fixmatch_threshold = fixmatch_threshold
        self.fixmatch_temperature = fixmatch_temperature
        self.swa_start = swa_start if swa else None
        # 1e-9: a third of 747 must be 249, whatever 1/3 rounds to
        share = max(1, int(estimation_share * data_info.n_annotators + 1e-9))
        self.n_estimation_annotators = min(share, estimation_annotators or share)
        self.n_inference_annotators = n_inference_annotators
        self.augmentation = self.setting.augmentation
        self.fixmatch_views = {"weak": weak_augmentation, "strong": strong_augmentation}
        self.weight_decay = weight_decay
        self.lr_warmup = lr_warmup
        self.network = AnnotatorNetwork(
            build_backbone(backbone, data_info.input_shape, pretrained),
            data_info.n_annotators,
            data_info.n_classes,
            embedding_dim=embedding_dim,
            n_blocks=n_blocks,
            n_heads=n_heads,
            feedforward_dim=feedforward_dim,
            dropout=dropout,
        )
        nobody = torch.zeros(data_info.n_annotators)
        self.register_buffer("skill", smoothed_skill(nobody, nobody, *self.setting.skill_prior))
        self._epoch_loss = EpochMean()

    # --- views --------------------------------------------------------------------------------

    def train_views(self) -> Mapping[str, str]:
        """One labelled view."""
        return {"x": self.augmentation}

    def unlabeled_views(self) -> Mapping[str, str]:
        """FixMatch's weak and strong view, if FixMatch is on."""
        return self.fixmatch_views if self.fixmatch_coefficient else {}

    # --- training -----------------------------------------------------------------------------

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Supervised loss plus ``fixmatch_coefficient`` times FixMatch loss.

        A part without annotations is left out; if both are, the loss is 0 and moves no weight.
        """
        parts = [self._supervised(batch)]
        if self.fixmatch_coefficient and "unlabeled" in batch:
            unlabeled = self._fixmatch(batch["unlabeled"])
            parts.append(None if unlabeled is None else self.fixmatch_coefficient * unlabeled)
        present = [part for part in parts if part is not None]
        if not present:
            return no_loss(self.device)
        loss = torch.stack(present).sum()
        self._epoch_loss.add(loss)
        return loss

    def _supervised(self, batch: Batch) -> Tensor | None:
        annotators, labels = batch["annotators"], batch["labels"]
        present = (annotators >= 0) & (labels >= 0)
        if not bool(present.any()):
            return None
        logits = self.network(batch["x"], annotators, self.setting.training == "alone")[present]
        skill = self.skill[annotators[present]]
        return supervised_loss(logits, labels[present], skill, self.label_smoothing, self.setting.skill_weighting)

    def _fixmatch(self, batch: Batch) -> Tensor | None:
        annotators = batch["annotators"]
        present = annotators >= 0
        if not bool(present.any()):
            return None
        alone = self.setting.training == "alone"
        with torch.no_grad():
            weak = self.network(batch["weak"], annotators, alone)[present]
        strong = self.network(batch["strong"], annotators, alone)[present]
        return fixmatch_loss(weak, strong, self.fixmatch_threshold, self.fixmatch_temperature)

    def configure_optimizers(self) -> Any:
        """AdamW under one cycle per step; the rate is held from where weight averaging begins."""
        optimiser = build_optimiser(self.parameters(), "adamw", lr=self.setting.lr, weight_decay=self.weight_decay)
        steps, epochs = int(self.trainer.estimated_stepping_batches), self.trainer.max_epochs or 1
        hold_from = None
        if self.swa_start is not None:
            hold_from = averaging_start(self.swa_start, epochs) * (steps // epochs)
        schedule = build_schedule(optimiser, "one_cycle", steps, warmup=self.lr_warmup, hold_from=hold_from)
        return lightning_optimisers(optimiser, schedule)

    def configure_callbacks(self) -> list[Callback]:
        """Weight averaging, if it is on."""
        if self.swa_start is None:
            return []
        return [WeightAverage(self.network, self.network.backbone, self._batch_norm_inputs, self.swa_start)]

    def _batch_norm_inputs(self, batch: Batch) -> Iterator[Tensor]:
        """Every view that a training step passes through the backbone."""
        yield batch["x"]
        if self.fixmatch_coefficient and "unlabeled" in batch:
            for view in self.fixmatch_views:
                yield batch["unlabeled"][view]

    # --- skills -------------------------------------------------------------------------------

    def on_train_start(self) -> None:
        """Skills before anything is learned."""
        if self.trainer.current_epoch > 0 or self.setting.skill_start == "uniform":
            return
        annotations = self._data().train_annotations
        majority = annotations.majority(0)[annotations.items]
        counts = agreement_counts(annotations.annotators, annotations.labels, majority, self.data_info.n_annotators)
        self.skill.copy_(smoothed_skill(*counts, *self.setting.skill_prior))

    def on_validation_epoch_start(self) -> None:
        """Estimates skills anew, once the warm-up is over."""
        if self.trainer.state.fn != "fit" or self.trainer.sanity_checking:
            return
        warmup = int(self.setting.skill_warmup * (self.trainer.max_epochs or 1) + 1e-9)
        if self.trainer.current_epoch >= warmup:
            self.estimate_skills(self._data())

    def on_validation_epoch_end(self) -> None:
        """Logs ``mean_skill`` over annotators, and ``train_loss``, the mean over the epoch's steps."""
        self.log("mean_skill", self.skill.mean())
        mean = self._epoch_loss.pop()
        if mean is not None:
            self.log("train_loss", mean)

    @torch.no_grad()
    def estimate_skills(self, datamodule: CrowdDataModule) -> None:
        """Agreement of every annotator with the vote of the most skilled ones, as the model predicts it.

        The items are the augmented training items, as in the released code. Annotators stand together or
        alone as they do in training.
        """
        chosen = most_skilled(self.skill, self.n_estimation_annotators)
        batch_size = max(1, min(datamodule.eval_batch_size, _TOKENS_AT_ONCE // (len(chosen) + 1)))
        correct, total = torch.zeros_like(self.skill), torch.zeros_like(self.skill)
        with self.trainer.precision_plugin.forward_context():
            for batch in datamodule.scan_dataloader(self.augmentation, batch_size=batch_size):
                reference = self._vote(batch["x"].to(self.device), chosen)
                annotators, labels = batch["annotators"].to(self.device), batch["labels"].to(self.device)
                counts = agreement_counts(
                    annotators, labels, reference.unsqueeze(1).expand_as(labels), self.data_info.n_annotators
                )
                correct, total = correct + counts[0], total + counts[1]
        self.skill.copy_(smoothed_skill(correct, total, *self.setting.skill_prior))

    def _vote(self, x: Tensor, annotators: Tensor) -> Tensor:
        """Class ids ``[B]`` that most of ``annotators [K]`` are predicted to choose; the lowest of equals."""
        logits = self.network(x, annotators.expand(len(x), -1), self.setting.training == "alone")
        return vote_counts(logits).argmax(dim=-1)

    def _data(self) -> CrowdDataModule:
        datamodule = getattr(self.trainer, "datamodule", None)
        if datamodule is None:
            raise RuntimeError(
                "annotator_transformer takes skills from the training annotations: pass the data as "
                "trainer.fit(method, datamodule=...), not as loaders"
            )
        found: CrowdDataModule = datamodule
        return found

    # --- predictions --------------------------------------------------------------------------

    def predict_consensus(self, x: Tensor) -> Tensor:
        """Log-probabilities ``[B, C]`` by the ``n_inference_annotators`` most skilled annotators.

        By votes, the argmax is the released code's; see :func:`skills.vote_consensus` for ties and for what
        makes probabilities of votes.
        """
        chosen = most_skilled(self.skill, self.n_inference_annotators).expand(len(x), -1)
        logits = self.network(x, chosen, self.setting.inference == "alone")
        combine = vote_consensus if self.setting.consensus == "votes" else mean_consensus
        return combine(torch.log_softmax(logits, dim=-1))

    def predict_annotators(self, x: Tensor, annotators: Tensor | None = None) -> Tensor:
        """Log-probabilities of each annotator's own label.

        Args:
            x: items ``[B, ...]``.
            annotators: ids ``[B, K]``, -1 padded: an item's annotators form sequences as in training. None:
                all R, each alone, because no training sequence holds them all.

        Returns:
            ``[B, K, C]`` or ``[B, R, C]``.
        """
        alone = annotators is None or self.setting.training == "alone"
        if annotators is None:
            annotators = torch.arange(self.data_info.n_annotators, device=x.device).expand(len(x), -1)
        return torch.log_softmax(self.network(x, annotators, alone), dim=-1)

    def annotator_skill(self) -> Tensor:
        """Estimated skill ``[R]``."""
        return self.skill


def _require_shares(**arguments: float) -> None:
    for name, value in arguments.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} is {value}; it must lie between 0 and 1")


def _require_counts(**arguments: int | None) -> None:
    for name, value in arguments.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; at least 1 is needed")
