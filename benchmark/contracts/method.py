"""What every method promises. Faults seen in other projects are named by the check that rules them out."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import lightning as L
import torch
from torch import Tensor

from benchmark.contracts.core import (
    ContractError,
    differing,
    require,
    require_finite,
    require_plain_defaults,
    require_shape,
)
from benchmark.contracts.tiny import TinyCrowd
from datamodules.base import DataInfo
from models.base import CrowdModule

#: largest deviation of a sum of probabilities from 1, and of one item's log-probability from its batch's
TOLERANCE = 1e-4
BATCH_SIZE = 8
#: batch norm's own refusal of a single value; the loader never hands such a batch to training
BATCH_NORM_REFUSAL = "Expected more than 1 value per channel"


@dataclass
class Run:
    """A finished training on :class:`TinyCrowd`.

    Attributes:
        method: the trained method, in evaluation mode.
        data: what it was trained on.
        before: its parameters before training.
        losses: the loss of each batch; None where the method skipped it.
        logged: what it logged, by name.
    """

    method: CrowdModule
    data: TinyCrowd
    before: dict[str, Tensor]
    losses: list[float | None]
    logged: dict[str, Tensor] = field(default_factory=dict)

    @property
    def state(self) -> dict[str, Tensor]:
        """The tensors of the method's state."""
        return {name: value for name, value in self.method.state_dict().items() if isinstance(value, Tensor)}

    @property
    def test_x(self) -> Tensor:
        """Test items as a method gets them."""
        batch: Mapping[str, Tensor] = next(iter(self.data.test_dataloader()))
        return batch["x"]

    @torch.no_grad()
    def consensus(self, x: Tensor) -> Tensor:
        """``predict_consensus``, without a graph."""
        return self.method.predict_consensus(x)

    @torch.no_grad()
    def annotators(self, x: Tensor, asked: Tensor | None = None) -> Tensor:
        """``predict_annotators``, without a graph."""
        return self.method.predict_annotators(x, asked)


class _Losses(L.Callback):
    def __init__(self) -> None:
        self.values: list[float | None] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        self.values.append(None if loss is None else float(loss))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences Lightning's hints, which are about long trainings."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@dataclass(frozen=True)
class MethodCase:
    """A class of method with the arguments and the data that it is checked with."""

    cls: type[CrowdModule]
    args: Mapping[str, Any]
    data_info: DataInfo

    def build(self, seed: int = 0) -> CrowdModule:
        """A fresh method; its initial weights follow from ``seed``."""
        L.seed_everything(seed, verbose=False)
        return self.cls(self.data_info, **self.args)

    def fit(self, regime: str = "mixed", *, seed: int = 0, **data_args: Any) -> Run:
        """Trains a fresh method for two epochs, as the runner does."""
        with _quiet():
            method = self.build(seed)
            data = TinyCrowd(regime, data_info=self.data_info, **{"batch_size": BATCH_SIZE, **data_args})
            data.request(method.train_views(), method.unlabeled_views())
            losses = _Losses()
            trainer = L.Trainer(
                accelerator="cpu",
                devices=1,
                max_epochs=2,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                num_sanity_val_steps=0,
                callbacks=[losses],
            )
            before = {name: value.detach().clone() for name, value in method.named_parameters()}
            trainer.fit(method, datamodule=data)
            return Run(method.eval(), data, before, losses.values, dict(trainer.callback_metrics))


def constructible_from_data_info(case: MethodCase) -> None:
    """``cls(data_info)`` works with defaults alone; arguments are keyword-only with plain defaults."""
    require(issubclass(case.cls, CrowdModule), "is no subclass of models.base.CrowdModule")
    require_plain_defaults(case.cls, "data_info")
    built = case.cls(case.data_info)
    require(built.data_info == case.data_info, "data_info is not kept; call super().__init__(data_info)")
    case.build()


def declares_version_and_needs(case: MethodCase) -> None:
    """``version`` is a text and ``needs`` a frozenset of texts; both enter the plan of a grid."""
    version, needs = case.cls.version, case.cls.needs
    require(isinstance(version, str) and bool(version), f"version is {version!r}, expected a text such as '1'")
    plain = isinstance(needs, frozenset) and all(isinstance(name, str) for name in needs)
    require(plain, f"needs is {needs!r}, expected a frozenset of texts")


def training_stays_finite(case: MethodCase) -> None:
    """Losses, weights and logged values are finite on data with gaps of every kind (pytorch#70348)."""
    run = case.fit()
    given = [loss for loss in run.losses if loss is not None]
    require(bool(given), "training_step returned no loss for any batch that has labels")
    require_finite("the loss", torch.tensor(given))
    for name, value in {**run.state, **run.logged}.items():
        require_finite(f"{name} after training", value)


def missing_labels_change_nothing(case: MethodCase) -> None:
    """Without one label the loss is finite (or None) and no weight moves (pytorch#70348)."""
    run = case.fit("missing")
    given = [loss for loss in run.losses if loss is not None]
    require_finite("the loss of a batch without labels", torch.tensor(given))
    after = {name: value.detach() for name, value in run.method.named_parameters()}
    moved = differing(run.before, after)
    require(
        not moved,
        f"weights moved although nothing was labelled: {', '.join(moved[:3])}; return None from training_step "
        "to skip the step (a loss of zero still lets weight decay act)",
    )


def one_item_batches(case: MethodCase) -> None:
    """Batches of one item train and predict; only batch norm's own refusal is accepted in training."""
    try:
        case.fit(batch_size=1, n_items=14, eval_batch_size=1)
    except ValueError as error:
        if BATCH_NORM_REFUSAL not in str(error):
            raise
    run = case.fit()
    require_shape("predict_consensus of one item", run.consensus(run.test_x[:1]), (1, _classes(case)))


def last_batch_of_one_item(case: MethodCase) -> None:
    """A training set of k*B+1 items trains, also with batch norm (pytorch#7716)."""
    n_items = next(n for n in range(4 * BATCH_SIZE, 8 * BATCH_SIZE) if (n - round(0.1 * n)) % BATCH_SIZE == 1)
    run = case.fit(n_items=n_items)
    require_finite("the loss", torch.tensor([loss for loss in run.losses if loss is not None]))


def consensus_is_log_probabilities(case: MethodCase) -> None:
    """``[B, C]``, finite, each row's probabilities sum to 1 – also for classes nobody voted for (cleanlab#519)."""
    run = case.fit()
    consensus = run.consensus(run.test_x)
    require_shape("predict_consensus", consensus, (len(run.test_x), _classes(case)))
    _require_log_probabilities("predict_consensus", consensus)


def consensus_does_not_depend_on_the_batch(case: MethodCase) -> None:
    """In evaluation mode an item's prediction is the same alone and among others."""
    run = case.fit()
    together = run.consensus(run.test_x)
    alone = torch.cat([run.consensus(item.unsqueeze(0)) for item in run.test_x])
    gap = float((together.exp() - alone.exp()).abs().max())
    require(
        gap <= TOLERANCE,
        f"probabilities differ by up to {gap:.2g} between a batch and its items one at a time",
    )


def annotators_are_predicted(case: MethodCase) -> None:
    """``predict_annotators`` gives ``[B, R, C]`` for all (one has no label) and ``[B, K, C]`` for those asked."""
    run = case.fit()
    n_annotators, x = case.data_info.n_annotators, run.test_x
    everyone = run.annotators(x)
    require_shape("predict_annotators of all", everyone, (len(x), n_annotators, _classes(case)))
    _require_log_probabilities("predict_annotators of all", everyone)
    asked = torch.arange(2 * len(x)).reshape(len(x), 2) % n_annotators
    some = run.annotators(x, asked)
    require_shape("predict_annotators of two each", some, (len(x), 2, _classes(case)))
    _require_log_probabilities("predict_annotators of two each", some)


def padded_annotators_are_harmless(case: MethodCase) -> None:
    """Ids of -1 neither crash (LAVIS#536) nor change what the others are predicted to say."""
    run = case.fit()
    x = run.test_x
    asked = torch.arange(2 * len(x)).reshape(len(x), 2) % case.data_info.n_annotators
    padded = torch.cat([asked, torch.full((len(x), 2), -1)], dim=1)
    plain, longer = run.annotators(x, asked), run.annotators(x, padded)
    require_shape("predict_annotators with padding", longer, (len(x), 4, _classes(case)))
    require_finite("predict_annotators with padding", longer)
    gap = float((longer[:, :2].exp() - plain.exp()).abs().max())
    require(gap <= TOLERANCE, f"padding with -1 changes the probabilities of other annotators by up to {gap:.2g}")
    require_finite("predict_annotators of nobody", run.annotators(x, torch.full_like(asked, -1)))


@torch.no_grad()
def _skill_and_confusion(method: CrowdModule) -> tuple[Tensor | None, Tensor | None]:
    return method.annotator_skill(), method.annotator_confusion()


def skills_and_confusions_are_valid(case: MethodCase) -> None:
    """Skills ``[R]`` in [0, 1], confusions ``[R, C, C]`` with rows that sum to 1; an idle annotator included."""
    method = case.fit().method
    n_annotators, n_classes = case.data_info.n_annotators, _classes(case)
    skill, confusion = _skill_and_confusion(method)
    if skill is not None:
        require_shape("annotator_skill", skill, (n_annotators,))
        require_finite("annotator_skill", skill)
        low, high = float(skill.min()), float(skill.max())
        require(low >= 0 and high <= 1, f"annotator_skill runs from {low:.3g} to {high:.3g}, expected [0, 1]")
    if confusion is not None:
        require_shape("annotator_confusion", confusion, (n_annotators, n_classes, n_classes))
        _require_log_probabilities("annotator_confusion", confusion.clamp_min(1e-12).log())


def predicting_changes_nothing(case: MethodCase) -> None:
    """Asking twice gives the same answer and leaves the state alone."""
    run = case.fit()
    before = {name: value.clone() for name, value in run.state.items()}
    first, second = run.consensus(run.test_x), run.consensus(run.test_x)
    run.annotators(run.test_x)
    require(torch.equal(first, second), "predict_consensus gives another answer when asked again")
    changed = differing(before, run.state)
    require(not changed, f"predicting changed the state: {', '.join(changed[:3])}")


def state_is_restored_bit_for_bit(case: MethodCase) -> None:
    """A saved state, loaded into a fresh method, predicts the same bits (pytorch-lightning#6074)."""
    run = case.fit()
    file = io.BytesIO()
    torch.save(run.method.state_dict(), file)
    file.seek(0)
    restored = case.build(seed=1).eval()
    restored.load_state_dict(torch.load(file, weights_only=True))
    expected, got = _answers(run.method, run.test_x), _answers(restored, run.test_x)
    changed = differing(expected, got)
    require(not changed, f"after loading the saved state other values come from: {', '.join(changed)}")


def same_seed_same_bits(case: MethodCase) -> None:
    """Two trainings from one seed end in the same state to the last bit."""
    first, second = case.fit(seed=3), case.fit(seed=3)
    changed = differing(first.state, second.state)
    require(not changed, f"two trainings from the same seed differ in: {', '.join(changed[:3])}")


def clean_labels_are_not_read(case: MethodCase) -> None:
    """Other clean labels change neither a weight nor a logged value."""
    first = case.fit(expose_target=True)
    second = case.fit(expose_target=True, clean_shift=1)
    changed = differing({**first.state, **first.logged}, {**second.state, **second.logged})
    require(not changed, f"clean labels were read: other ones change {', '.join(changed[:3])}")


#: every promise of a method, in the order in which they are checked
METHOD_CHECKS: tuple[Callable[[MethodCase], None], ...] = (
    constructible_from_data_info,
    declares_version_and_needs,
    training_stays_finite,
    missing_labels_change_nothing,
    one_item_batches,
    last_batch_of_one_item,
    consensus_is_log_probabilities,
    consensus_does_not_depend_on_the_batch,
    annotators_are_predicted,
    padded_annotators_are_harmless,
    skills_and_confusions_are_valid,
    predicting_changes_nothing,
    state_is_restored_bit_for_bit,
    same_seed_same_bits,
    clean_labels_are_not_read,
)


def _classes(case: MethodCase) -> int:
    return case.data_info.n_classes


def _require_log_probabilities(name: str, value: Tensor) -> None:
    require_finite(name, value)
    gap = float((value.exp().sum(-1) - 1).abs().max())
    if gap > TOLERANCE:
        raise ContractError(f"{name}: probabilities sum to 1 only within {gap:.2g}; return log-probabilities")


@torch.no_grad()
def _answers(method: CrowdModule, x: Tensor) -> dict[str, Tensor]:
    """All that a method tells of itself, by the name of what was asked."""
    answers = {
        "predict_consensus": method.predict_consensus(x),
        "predict_annotators": method.predict_annotators(x),
        "annotator_skill": method.annotator_skill(),
        "annotator_confusion": method.annotator_confusion(),
    }
    return {name: value for name, value in answers.items() if value is not None}
