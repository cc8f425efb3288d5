"""Each contract check catches a class that breaks its promise, says so clearly, and passes a sound one.

A check that nothing fails proves nothing, so every check has a mutant: a sound class with one fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmark.contracts.data import DATA_CHECKS
from benchmark.contracts.method import METHOD_CHECKS
from benchmark.contracts.tiny import TinyCrowd
from benchmark.testing import TINY_IMAGES, Check, ContractError, check_datamodule, check_method, iter_checks
from datamodules.annotations import Annotations
from datamodules.augment import Augmenter
from datamodules.base import CrowdData, CrowdDataModule, DataInfo, hash_tensors
from datamodules.loader import BatchLoader
from datamodules.regimes import regime_number
from models.base import Batch, CrowdModule


class Sound(CrowdModule):
    """A linear model with batch norm and a bias for each annotator."""

    def __init__(self, data_info: DataInfo, *, lr: float = 0.1) -> None:
        super().__init__(data_info)
        self.lr = lr
        n_features = int(torch.tensor(data_info.input_shape).prod())
        self.linear = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(n_features), nn.Linear(n_features, 5))
        self.bias = nn.Embedding(data_info.n_annotators + 1, data_info.n_classes)

    def predict_consensus(self, x: Tensor) -> Tensor:
        return torch.log_softmax(self.linear(x), -1)

    def predict_annotators(self, x: Tensor, annotators: Tensor | None = None) -> Tensor:
        if annotators is None:
            annotators = torch.arange(self.data_info.n_annotators).expand(len(x), -1)
        return torch.log_softmax(self.linear(x).unsqueeze(1) + self.bias(annotators + 1), -1)

    def annotator_skill(self) -> Tensor | None:
        return torch.sigmoid(self.bias.weight[1:].mean(-1))

    def loss(self, batch: Batch) -> Tensor:
        predicted = self.predict_annotators(batch["x"], batch["annotators"])
        given = predicted.gather(2, batch["labels"].clamp_min(0).unsqueeze(2)).squeeze(2)
        return -given[batch["labels"] >= 0].mean()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        return self.loss(batch) if (batch["labels"] >= 0).any() else None

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr, weight_decay=0.01)


class PositionalArgument(Sound):
    def __init__(self, data_info: DataInfo, lr: float = 0.1) -> None:
        super().__init__(data_info, lr=lr)


class NumberAsVersion(Sound):
    version = 1  # type: ignore[assignment]


class DivergesToNan(Sound):
    def loss(self, batch: Batch) -> Tensor:
        return super().loss(batch) * float("nan")


class MeanOverNothing(Sound):
    """The fault of pytorch#70348: the mean over no labels is NaN."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        return self.loss(batch)


class ZeroLossDecaysWeights(Sound):
    """A loss of zero is finite, and weight decay moves the weights all the same."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        return super().training_step(batch, batch_idx) or 0 * sum(p.sum() for p in self.parameters())  # type: ignore[return-value]


class SqueezesOneItem(Sound):
    def predict_consensus(self, x: Tensor) -> Tensor:
        return super().predict_consensus(x).squeeze(0)


class DropsClasses(Sound):
    """The fault of cleanlab#519: columns of classes nobody voted for are lost."""

    def predict_consensus(self, x: Tensor) -> Tensor:
        return torch.log_softmax(self.linear(x)[:, [0, 1, 4]], -1)


class GivesLogits(Sound):
    def predict_consensus(self, x: Tensor) -> Tensor:
        return self.linear(x)


class NormalisesWithinTheBatch(Sound):
    def predict_consensus(self, x: Tensor) -> Tensor:
        return torch.log_softmax(self.linear(x - x.mean(0)), -1)


class OnlyAnnotatorsWithLabels(Sound):
    def predict_annotators(self, x: Tensor, annotators: Tensor | None = None) -> Tensor:
        return super().predict_annotators(x, annotators)[:, : self.data_info.n_annotators - 1]


class LooksUpMinusOne(Sound):
    """The fault of LAVIS#536: -1 goes straight into the embedding."""

    def predict_annotators(self, x: Tensor, annotators: Tensor | None = None) -> Tensor:
        return super().predict_annotators(x, None if annotators is None else annotators - 1)


class PaddingLeaks(Sound):
    def predict_annotators(self, x: Tensor, annotators: Tensor | None = None) -> Tensor:
        if annotators is None:
            return super().predict_annotators(x)
        crowd = self.bias(annotators + 1).mean(1, keepdim=True)
        return torch.log_softmax(super().predict_annotators(x, annotators) + crowd, -1)


class SkillAboveOne(Sound):
    def annotator_skill(self) -> Tensor | None:
        return 2 + self.bias.weight[1:].mean(-1).detach()


class TemperedLogits(Sound):
    """Logits before a temperature that the consensus has."""

    def class_logits(self, x: Tensor) -> Tensor | None:
        return 2 * self.linear(x)


class DetachedLogits(Sound):
    def class_logits(self, x: Tensor) -> Tensor | None:
        return self.linear(x).detach()


class FeaturesWithoutX(Sound):
    def embed(self, x: Tensor) -> Tensor | None:
        return self.bias.weight[: len(x)].sum() * torch.ones(len(x), 3)


class FlatFeatures(Sound):
    def embed(self, x: Tensor) -> Tensor | None:
        return x.flatten()


class PoolsFeatures(Sound):
    """The last layer reads features, not a map."""

    def pooling_layer(self) -> nn.Module | None:
        return self.linear[-1]


class PoolsElsewhere(Sound):
    def pooling_layer(self) -> nn.Module | None:
        return nn.Identity()


class CountsPredictions(Sound):
    def __init__(self, data_info: DataInfo, *, lr: float = 0.1) -> None:
        super().__init__(data_info, lr=lr)
        self.register_buffer("asked", torch.zeros(()))

    def predict_consensus(self, x: Tensor) -> Tensor:
        self.asked += 1
        return super().predict_consensus(x)


class SkillOutsideTheState(Sound):
    """Skills kept as a plain attribute are lost with the process."""

    def __init__(self, data_info: DataInfo, *, lr: float = 0.1) -> None:
        super().__init__(data_info, lr=lr)
        self.skill = torch.zeros(data_info.n_annotators)

    def on_train_epoch_end(self) -> None:
        self.skill = torch.full_like(self.skill, 0.7)

    def annotator_skill(self) -> Tensor | None:
        return self.skill


class SeedsFromElsewhere(Sound):
    count = 0

    def __init__(self, data_info: DataInfo, *, lr: float = 0.1) -> None:
        super().__init__(data_info, lr=lr)
        SeedsFromElsewhere.count += 1
        nn.init.constant_(self.bias.weight, 0.01 * SeedsFromElsewhere.count)


class PeeksAtTargets(Sound):
    """`batch.get` hides that training batches hold no clean label; the check hands one over."""

    def loss(self, batch: Batch) -> Tensor:
        target = batch.get("target")
        if target is None:
            return super().loss(batch)
        return nn.functional.nll_loss(self.predict_consensus(batch["x"]), target)


class PeeksThroughTheTrainer(Sound):
    def loss(self, batch: Batch) -> Tensor:
        clean = self.trainer.datamodule.data.true_labels[batch["index"]]  # type: ignore[attr-defined]
        return super().loss(batch) + nn.functional.nll_loss(self.predict_consensus(batch["x"]), clean)


METHOD_MUTANTS: tuple[tuple[str, type[CrowdModule], str], ...] = (
    ("constructible_from_data_info", PositionalArgument, "argument 'lr' is not keyword-only"),
    ("declares_version_and_needs", NumberAsVersion, "version is 1"),
    ("training_stays_finite", DivergesToNan, "NaN"),
    ("missing_labels_change_nothing", MeanOverNothing, "the loss of a batch without labels holds"),
    ("missing_labels_change_nothing", ZeroLossDecaysWeights, "weights moved although nothing was labelled"),
    ("one_item_batches", SqueezesOneItem, "shape (5,), expected (1, 5)"),
    ("consensus_is_log_probabilities", DropsClasses, "shape (12, 3), expected (12, 5)"),
    ("consensus_is_log_probabilities", GivesLogits, "return log-probabilities"),
    ("consensus_does_not_depend_on_the_batch", NormalisesWithinTheBatch, "one at a time"),
    ("annotators_are_predicted", OnlyAnnotatorsWithLabels, "shape (12, 5, 5), expected (12, 6, 5)"),
    ("padded_annotators_are_harmless", LooksUpMinusOne, "IndexError"),
    ("padded_annotators_are_harmless", PaddingLeaks, "padding with -1 changes"),
    ("skills_and_confusions_are_valid", SkillAboveOne, "expected [0, 1]"),
    ("class_logits_are_the_consensus", TemperedLogits, "differs from predict_consensus"),
    ("class_logits_are_the_consensus", DetachedLogits, "class_logits cannot be differentiated"),
    ("embeddings_are_features", FeaturesWithoutX, "embed has no gradient with regard to x"),
    ("embeddings_are_features", FlatFeatures, "expected (12, features)"),
    ("pooling_layer_reads_a_feature_map", PoolsFeatures, "expected (12, channels, height, width)"),
    ("pooling_layer_reads_a_feature_map", PoolsElsewhere, "no part of the method"),
    ("predicting_changes_nothing", CountsPredictions, "predicting changed the state: asked"),
    ("state_is_restored_bit_for_bit", SkillOutsideTheState, "annotator_skill"),
    ("same_seed_same_bits", SeedsFromElsewhere, "bias.weight"),
    ("clean_labels_are_not_read", PeeksAtTargets, "clean labels were read"),
    ("clean_labels_are_not_read", PeeksThroughTheTrainer, "clean labels were read"),
)


class SoundData(TinyCrowd):
    """The tiny data set without its gaps in the regimes: both hold labels."""

    name = "sound"
    regimes: Mapping[str, str] = {"mixed": "gaps of every kind", "fewer": "one class for all"}  # type: ignore[misc]

    def __init__(self, regime: str = "mixed", **arguments: Any) -> None:
        super().__init__(regime, data_info=TINY_IMAGES, n_items=60, **arguments)

    def load(self) -> CrowdData:
        kept, self.regime = self.regime, "mixed"
        data = super().load()
        self.regime = kept
        if kept == "fewer":
            data = replace(data, annotations=data.annotations.budget(1, seed=self.annotation_seed))
        return data


class SilentRegime(SoundData):
    regimes = {"mixed": ""}  # type: ignore[misc]


class TakesAnyRegime(SoundData):
    def __init__(self, regime: str, **arguments: Any) -> None:
        super().__init__("mixed", **arguments)


class NumberedData(SoundData):
    """As many labels an item as the regime says."""

    regimes = {"budget=K": "K labels an item"}  # type: ignore[misc]

    def __init__(self, regime: str = "budget=1", **arguments: Any) -> None:
        super().__init__(regime, **arguments)

    def load(self) -> CrowdData:
        data = super().load()
        k = regime_number(self.regime)
        assert k is not None
        return replace(data, annotations=data.annotations.budget(k, seed=self.annotation_seed))


class TakesAnyNumber(NumberedData):
    def __init__(self, regime: str = "budget=1", **arguments: Any) -> None:
        kind, _, number = regime.partition("=")
        super().__init__(f"{kind}={max(1, int(number))}", **arguments)


class LabelOutOfRange(SoundData):
    """Label -1 as a class: a mask that was never applied."""

    def load(self) -> CrowdData:
        data = super().load()
        noted = data.annotations
        return replace(data, annotations=_relabelled(noted, noted.labels - 1))


def _relabelled(noted: Annotations, labels: Tensor) -> Annotations:
    broken = noted.select(torch.arange(noted.n_items))
    object.__setattr__(broken, "labels", labels)
    return broken


class OverlappingSplit(SoundData):
    def setup(self, stage: str | None = None) -> None:
        super().setup(stage)
        self._train_items = torch.arange(self.data.annotations.n_items)


class UnseededSplit(SoundData):
    def setup(self, stage: str | None = None) -> None:
        if self._train_items is None:
            self.split_seed = int(torch.randint(2**30, ()))
        super().setup(stage)


class UnseededAnnotations(SoundData):
    def load(self) -> CrowdData:
        self.annotation_seed = int(torch.randint(2**30, ()))
        return super().load()


class DigestOfTheName(SoundData):
    def digest(self) -> str:
        return self.name


class LabelsOfOtherItems(SoundData):
    """Labels gathered by another order than the items."""

    def _train_source(self) -> Any:
        source = super()._train_source()
        source.tensors["labels"] = source.tensors["labels"].roll(1, 0)
        source.tensors["annotators"] = source.tensors["annotators"].roll(1, 0)
        return source


class RepeatsItems(SoundData):
    def scan_dataloader(self, view: str = "none", batch_size: int | None = None) -> BatchLoader:
        loader = super().scan_dataloader(view, batch_size)
        loader.items = torch.cat([loader.items, loader.items[:2]])
        return loader


class CleanLabelsInBatches(SoundData):
    def __init__(self, regime: str = "mixed", **arguments: Any) -> None:
        super().__init__(regime, expose_target=True, **arguments)


class ShuffledTestLabels(SoundData):
    def test_dataloader(self) -> BatchLoader:
        loader = super().test_dataloader()
        loader.source.tensors["target"] = loader.source.tensors["target"].roll(1)
        return loader


class RawItems(SoundData):
    """Items that are handed in come without normalisation."""

    def item_dataloader(self, x: Tensor, batch_size: int | None = None) -> BatchLoader:
        loader = super().item_dataloader(x, batch_size)
        loader.augmenter = Augmenter(self.info.input_shape)
        return loader


class DigestOfTheFeatures(SoundData):
    """A cell's address that depends on whether an encoder ran before it was asked for."""

    def digest(self) -> str:
        return hash_tensors(self.data.x, self.data.annotations.labels)


class OtherSizedOod(SoundData):
    ood_sets = ("noise",)

    def load_ood(self, name: str) -> Tensor:
        return torch.zeros(3, 3, 8, 8, dtype=torch.uint8) if name == "noise" else super().load_ood(name)

    def ood_digest(self, name: str) -> str:
        return hash_tensors(self.load_ood(name))


class OneOrderForever(SoundData):
    def _epoch(self) -> int:
        return 0


class DrawsFromTheWorkers(SoundData):
    """The fault of pytorch#5059 in kind: what a batch holds depends on how many workers there are."""

    def train_dataloader(self) -> BatchLoader:
        loader = super().train_dataloader()
        loader.seed += self.num_workers
        return loader


DATA_MUTANTS: tuple[tuple[str, type[CrowdDataModule], str], ...] = (
    ("names_its_regimes", SilentRegime, "says nothing of itself"),
    ("unknown_regime_lists_near_names", TakesAnyRegime, "does not exist and is accepted"),
    ("numbered_regimes_take_whole_numbers_only", TakesAnyNumber, "regime 'budget=0' is accepted"),
    ("arrays_fit_together", LabelOutOfRange, "lie outside 0..4"),
    ("split_is_disjoint_and_complete", OverlappingSplit, "both trained on and held out"),
    ("split_follows_from_its_seed", UnseededSplit, "two splits from the same seed differ"),
    ("same_seeds_same_data", UnseededAnnotations, "differs in"),
    ("digest_follows_the_data", DigestOfTheName, "their digests not"),
    ("training_batches_keep_the_contract", LabelsOfOtherItems, "annotated"),
    ("an_epoch_holds_each_item_once", RepeatsItems, "a scan is not all items in order"),
    ("clean_labels_stay_away_from_training", CleanLabelsInBatches, "also hold target"),
    ("evaluation_batches_keep_the_contract", ShuffledTestLabels, "other labels"),
    ("any_items_come_as_the_test_items_do", RawItems, "gives other items than the test loader"),
    ("features_take_the_items_place", DigestOfTheFeatures, "changes the digest"),
    ("out_of_distribution_items_look_like_items", OtherSizedOod, "(3, 8, 8)"),
    ("epochs_differ_in_order", OneOrderForever, "same order"),
    ("workers_change_nothing", DrawsFromTheWorkers, "differs between 0 and 2 workers"),
)


def named(cls: type, check: str) -> Check:
    """The check ``check`` of ``cls``."""
    return next(found for found in iter_checks(cls) if found.name == check)


def test_sound_classes_pass_everything() -> None:
    check_method(Sound)
    check_method(Sound, lr=0.01, data_info=DataInfo(n_classes=5, n_annotators=3, input_shape=(7,)))
    check_datamodule(SoundData)
    check_datamodule(SoundData, regimes=["fewer"])
    check_datamodule(NumberedData)


@pytest.mark.parametrize(("check", "mutant", "says"), METHOD_MUTANTS, ids=lambda part: getattr(part, "__name__", None))
def test_method_check_names_the_broken_promise(check: str, mutant: type[CrowdModule], says: str) -> None:
    with pytest.raises(ContractError) as raised:
        named(mutant, check)()
    assert str(raised.value).startswith(f"{mutant.__name__}: {check}: ")
    assert says in str(raised.value)


@pytest.mark.parametrize(("check", "mutant", "says"), DATA_MUTANTS, ids=lambda part: getattr(part, "__name__", None))
def test_data_check_names_the_broken_promise(check: str, mutant: type[CrowdDataModule], says: str) -> None:
    with pytest.raises(ContractError) as raised:
        named(mutant, check)()
    assert str(raised.value).startswith(f"{mutant.__name__}: {check}: ")
    assert says in str(raised.value)


@pytest.mark.parametrize(("checks", "mutants"), [(METHOD_CHECKS, METHOD_MUTANTS), (DATA_CHECKS, DATA_MUTANTS)])
def test_every_check_has_a_mutant(
    checks: tuple[Callable[[Any], None], ...], mutants: tuple[tuple[str, type, str], ...]
) -> None:
    """All but the last batch of one item, which the loader already rules out for every method."""
    names = {check.__name__ for check in checks} - {"last_batch_of_one_item"}
    assert names == {name for name, _, _ in mutants}


def test_last_batch_of_one_item_trains_although_batch_norm_refuses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytorch#7716: without the loader's rule the check fails with batch norm's own message."""
    named(Sound, "last_batch_of_one_item")()

    def sizes_with_a_last_one(self: BatchLoader) -> list[int]:
        whole, rest = divmod(len(self.items), self.batch_size)
        return [self.batch_size] * whole + [rest] * bool(rest)

    monkeypatch.setattr(BatchLoader, "_sizes", sizes_with_a_last_one)
    with pytest.raises(ContractError, match="more than 1 value per channel"):
        named(Sound, "last_batch_of_one_item")()


def built_in(kind: str) -> list[Any]:
    """The checks of every built-in method or embedded data set."""
    if kind == "method":
        from models.annotator_transformer.module import AnnotatorTransformer
        from models.cross_entropy.module import CrossEntropy
        from models.label_delivery.module import LabelDelivery

        return [
            pytest.param(check, id=f"{cls.__name__}-{check}")
            for cls in (CrossEntropy, AnnotatorTransformer, LabelDelivery)
            for check in iter_checks(cls, backbone="small_cnn")
        ]
    from datamodules.digits import Digits
    from datamodules.digits_votes import DigitsVotes

    return [
        pytest.param(check, id=f"{cls.__name__}-{check}") for cls in (Digits, DigitsVotes) for check in iter_checks(cls)
    ]


@pytest.mark.parametrize("check", built_in("method"))
def test_built_in_methods_keep_the_contract(check: Check) -> None:
    check()


@pytest.mark.parametrize("check", built_in("data"))
def test_embedded_data_sets_keep_the_contract(check: Check) -> None:
    check()
