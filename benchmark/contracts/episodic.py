"""What every episodic method promises. Faults seen in other projects are named by the check that rules them out."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from benchmark.contracts.core import (
    differing,
    require,
    require_finite,
    require_log_probabilities,
    require_plain_defaults,
    require_shape,
)
from benchmark.contracts.tiny_episodes import Episodes, at, tiny_episodes
from benchmark.contracts.training import LossRecorder, quiet
from datamodules.base import DataInfo
from models.base import EpisodicModule

#: largest difference of two probabilities that should be the same
TOLERANCE = 1e-4


@dataclass
class EpisodicCase:
    """A class of method with the arguments and the data that it is checked with; trained once, when first asked for."""

    cls: type[EpisodicModule]
    args: Mapping[str, Any]
    data_info: DataInfo
    _trained: list[EpisodicRun] = field(default_factory=list)

    def build(self, seed: int = 0) -> EpisodicModule:
        """A fresh method; its initial weights follow from ``seed``."""
        L.seed_everything(seed, verbose=False)
        return self.cls(self.data_info, **self.args)

    def fit(self, seed: int = 0) -> EpisodicRun:
        """Meta-trains a fresh method for two epochs of three batches, as the runner does."""
        method, losses = self.build(seed), LossRecorder()
        if not self.cls.needs_training:
            return EpisodicRun(method.eval(), [])
        with quiet():
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
            batches = [tiny_episodes(self.data_info, batch, training=True) for batch in range(3)]
            trainer.fit(method, _loader(batches), _loader([tiny_episodes(self.data_info, 100)]))
        return EpisodicRun(method.eval(), losses.values, dict(trainer.callback_metrics))

    def trained(self) -> EpisodicRun:
        """A method that has been trained; checks share it and leave it as it is."""
        if not self._trained:
            self._trained.append(self.fit())
        return self._trained[0]

    def batch(self, seed: int = 7) -> Episodes:
        """Test tasks."""
        return tiny_episodes(self.data_info, seed)


@dataclass
class EpisodicRun:
    """A finished training: the method in evaluation mode, the loss of each batch, what was logged."""

    method: EpisodicModule
    losses: list[float | None]
    logged: dict[str, Tensor] = field(default_factory=dict)

    @property
    def state(self) -> dict[str, Tensor]:
        """The tensors of the method's state."""
        return {name: value for name, value in self.method.state_dict().items() if isinstance(value, Tensor)}

    @torch.no_grad()
    def answer(self, batch: Episodes, adaptation: str) -> Tensor:
        """Log-probabilities of the query items, without a graph."""
        return self.method.answer(batch, adaptation)

    def answers(self, batch: Episodes) -> Iterator[tuple[str, Tensor]]:
        """Each adaptation with its log-probabilities."""
        for adaptation in self.method.adaptations:
            yield adaptation, self.answer(batch, adaptation)


def constructible_from_data_info(case: EpisodicCase) -> None:
    """``cls(data_info)`` works with defaults alone; arguments are keyword-only with plain defaults."""
    require_plain_defaults(case.cls, "data_info")
    built = case.cls(case.data_info)
    require(built.data_info == case.data_info, "data_info is not kept; call super().__init__(data_info)")
    case.build()


def declares_what_it_is(case: EpisodicCase) -> None:
    """``version``, ``needs`` and the names of adaptations are plain texts; they name cells and metrics."""
    cls = case.cls
    require(isinstance(cls.version, str) and bool(cls.version), f"version is {cls.version!r}, expected a text like '1'")
    kinds = {"needs": frozenset, "randomised": frozenset, "adaptations": tuple, "selected_by": tuple}
    for name, kind in kinds.items():
        value = getattr(cls, name)
        plain = isinstance(value, kind) and all(isinstance(text, str) and text for text in value)
        require(plain, f"{name} is {value!r}, expected a {kind.__name__} of texts")
    names = cls.adaptations
    require(bool(names) and len(set(names)) == len(names), f"adaptations is {names!r}; one or more, each once")
    for name in ("randomised", "selected_by"):
        stray = sorted(set(getattr(cls, name)) - set(names))
        require(not stray, f"{name} names {', '.join(stray)}, which adaptations lacks")


def an_unknown_adaptation_is_refused(case: EpisodicCase) -> None:
    """A wrong name raises ValueError instead of answering as something else."""
    batch = case.batch()
    try:
        case.trained().method.adapt(batch["support_x"], batch["support_labels"], "no such adaptation")
    except ValueError:
        return
    require(False, "adapt takes an adaptation that does not exist; call self.check_adaptation(adaptation)")


def training_stays_finite(case: EpisodicCase) -> None:
    """Losses, weights and logged values are finite; validation logs ``val_accuracy``."""
    run = case.trained()
    if not case.cls.needs_training:
        return
    given = [loss for loss in run.losses if loss is not None]
    require(bool(given), "training_step returned no loss")
    require_finite("the loss", torch.tensor(given))
    for name, value in {**run.state, **run.logged}.items():
        require_finite(f"{name} after training", value)
    require("val_accuracy" in run.logged, "validation logs no 'val_accuracy', by which weights are selected")


def answers_are_log_probabilities(case: EpisodicCase) -> None:
    """``[T, Nq, K]``, finite, sums of 1 - with missing labels, an idle annotator and an item that nobody labelled."""
    batch = case.batch()
    shape = (*batch["query_y"].shape, case.data_info.n_classes)
    for name, answer in case.trained().answers(batch):
        require_shape(name, answer, shape)
        require_log_probabilities(name, answer)


def degenerate_supports_are_answered(case: EpisodicCase) -> None:
    """No label at all, one class alone, one annotator, all right, all wrong: log-probabilities still."""
    batch = case.batch()
    n_classes, labels = case.data_info.n_classes, batch["support_labels"]
    truth = torch.arange(labels.shape[1]).remainder(n_classes).view(1, -1, 1).expand_as(labels)
    supports = {
        "nobody labelled anything": torch.full_like(labels, -1),
        "all labels name one class": torch.ones_like(labels),
        "one label in all": torch.where(torch.arange(labels[0].numel()).view(labels[0].shape) == 5, 1, -1),
        "a single annotator": labels[..., :1],
        "everyone is right": truth,
        "everyone is wrong": (truth + 1) % n_classes,
    }
    for what, given in supports.items():
        given = given.expand(len(labels), -1, -1)
        for name, answer in case.trained().answers({**batch, "support_labels": given}):
            require_log_probabilities(f"{name}, where {what},", answer)


def padded_support_items_are_answered(case: EpisodicCase) -> None:
    """Items of zeros that nobody labelled, as padding leaves them, make nothing NaN."""
    batch = case.batch()
    x, labels = batch["support_x"], batch["support_labels"]
    longer = {"support_x": torch.cat([x, torch.zeros_like(x[:, :2])], 1)}
    longer["support_labels"] = torch.cat([labels, torch.full_like(labels[:, :2], -1)], 1)
    for name, answer in case.trained().answers({**batch, **longer}):
        require_log_probabilities(f"{name} with padded support items", answer)


def queries_do_not_depend_on_each_other(case: EpisodicCase) -> None:
    """A query item is answered the same alone, one item being all there is, and among others."""
    batch, run = case.batch(), case.trained()
    for name in run.method.adaptations:
        together = run.answer(batch, name)
        alone = run.answer({**batch, "query_x": batch["query_x"][:, :1]}, name)
        require_shape(f"{name} of one query item", alone, (*together.shape[:1], 1, together.shape[2]))
        _require_same(f"{name}: the answer to a query item", "depends on the other query items", together[:, :1], alone)


def episodes_do_not_depend_on_each_other(case: EpisodicCase) -> None:
    """A task is answered the same alone and among others."""
    batch, run = case.batch(), case.trained()
    for name in _in_any_order(run.method):
        together = run.answer(batch, name)
        alone = torch.cat([run.answer(at(batch, slice(t, t + 1)), name) for t in range(len(together))])
        _require_same(f"{name}: the answer to a task", "depends on the other tasks", together, alone)


def order_does_not_matter(case: EpisodicCase) -> None:
    """Another order of annotators or items changes nothing; other names of the classes rename the answer."""
    batch, run = case.batch(), case.trained()
    x, labels = batch["support_x"], batch["support_labels"]
    items, annotators = torch.arange(labels.shape[1]).flip(0), torch.arange(labels.shape[2]).flip(0)
    classes = torch.arange(case.data_info.n_classes).roll(1)
    renamed = torch.where(labels >= 0, classes[labels.clamp_min(0)], -1)
    for name in _in_any_order(run.method):
        plain = run.answer(batch, name)
        others = {
            "order of annotators": run.answer({**batch, "support_labels": labels[..., annotators]}, name),
            "order of items": run.answer({**batch, "support_x": x[:, items], "support_labels": labels[:, items]}, name),
            "names of the classes": run.answer({**batch, "support_labels": renamed}, name)[..., classes],
        }
        for what, other in others.items():
            _require_same(f"{name}: the answer", f"depends on the {what}", plain, other)


def adapting_changes_nothing(case: EpisodicCase) -> None:
    """Adapting to tasks leaves the state alone, and asking again gives the same bits, whatever ran in between."""
    run, batch = case.trained(), case.batch()
    before = {name: value.clone() for name, value in run.state.items()}
    first = dict(run.answers(batch))
    for _ in run.answers(case.batch(8)):
        torch.rand(5)  # an answer that draws from the global generator would now be another
    changed = differing(first, dict(run.answers(batch)))
    require(not changed, f"asked again, other answers come from: {', '.join(changed)}")
    changed = differing(before, run.state)
    require(not changed, f"adapting changed the state: {', '.join(changed[:3])}")


def state_is_restored_bit_for_bit(case: EpisodicCase) -> None:
    """A saved state, loaded into a fresh method, gives the same bits (pytorch-lightning#6074)."""
    run, batch = case.trained(), case.batch()
    file = io.BytesIO()
    torch.save(run.method.state_dict(), file)
    file.seek(0)
    restored = case.build(seed=1).eval()
    restored.load_state_dict(torch.load(file, weights_only=True))
    expected, got = dict(run.answers(batch)), dict(EpisodicRun(restored, []).answers(batch))
    changed = differing(expected, got)
    require(not changed, f"after loading the saved state other answers come from: {', '.join(changed)}")


def same_seed_same_bits(case: EpisodicCase) -> None:
    """Two trainings from one seed end in the same state to the last bit."""
    changed = differing(case.fit(seed=3).state, case.fit(seed=3).state)
    require(not changed, f"two trainings from the same seed differ in: {', '.join(changed[:3])}")


#: every promise of an episodic method, in the order in which they are checked
EPISODIC_CHECKS: tuple[Callable[[EpisodicCase], None], ...] = (
    constructible_from_data_info,
    declares_what_it_is,
    an_unknown_adaptation_is_refused,
    training_stays_finite,
    answers_are_log_probabilities,
    degenerate_supports_are_answered,
    padded_support_items_are_answered,
    queries_do_not_depend_on_each_other,
    episodes_do_not_depend_on_each_other,
    order_does_not_matter,
    adapting_changes_nothing,
    state_is_restored_bit_for_bit,
    same_seed_same_bits,
)


def _loader(batches: list[Episodes]) -> DataLoader[Any]:
    """Batches as they are: Lightning takes a list for many loaders."""
    return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]


def _in_any_order(method: EpisodicModule) -> list[str]:
    return [name for name in method.adaptations if name not in method.randomised]


def _require_same(subject: str, fault: str, first: Tensor, second: Tensor) -> None:
    gap = float((first.exp() - second.exp()).abs().max())
    require(gap <= TOLERANCE, f"{subject} {fault}: probabilities differ by up to {gap:.2g}")
