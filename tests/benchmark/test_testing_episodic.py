"""Each contract check of episodic methods catches one that breaks its promise, and passes a sound one."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from benchmark.contracts.episodic import EPISODIC_CHECKS
from benchmark.testing import Check, ContractError, check_method, iter_checks
from datamodules.base import DataInfo
from models.aggregation import majority_episodes
from models.base import Batch, EpisodicModule
from models.prototypical.prototypes import class_prototypes, log_nearness


class Sound(EpisodicModule):
    """Prototypes of the majority vote on a linear embedding with batch norm."""

    def __init__(self, data_info: DataInfo, *, lr: float = 0.1) -> None:
        super().__init__(data_info)
        self.lr = lr
        width = int(torch.tensor(data_info.input_shape).prod())
        self.embedding = nn.Sequential(nn.Flatten(), nn.Linear(width, 8), nn.BatchNorm1d(8))

    def embed(self, x: Tensor) -> Tensor:
        return self.embedding(x.flatten(0, 1)).view(*x.shape[:2], -1)

    def adapt(self, support_x: Tensor, support_labels: Tensor, adaptation: str) -> Any:
        self.check_adaptation(adaptation)
        weights = majority_episodes(support_labels, self.data_info.n_classes).float()
        return class_prototypes(self.embed(support_x), weights)

    def predict_query(self, state: Any, x: Tensor) -> Tensor:
        return log_nearness(self.embed(x), state)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        state = self.adapt(batch["support_x"], batch["support_y"].unsqueeze(2), self.adaptations[0])
        return -self.predict_query(state, batch["query_x"]).gather(2, batch["query_y"].unsqueeze(2)).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Untrained(Sound):
    """Nothing to meta-train, and one adaptation that draws."""

    needs_training = False
    adaptations: ClassVar[tuple[str, ...]] = ("plain", "drawn")
    randomised: ClassVar[frozenset[str]] = frozenset({"drawn"})

    def adapt(self, support_x: Tensor, support_labels: Tensor, adaptation: str) -> Any:
        state = super().adapt(support_x, support_labels, adaptation)
        generator = torch.Generator().manual_seed(0)
        return state + torch.randn(state.shape, generator=generator) if adaptation == "drawn" else state

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        raise AssertionError("there is nothing to train")


class PositionalArgument(Sound):
    def __init__(self, data_info: DataInfo, lr: float = 0.1) -> None:
        super().__init__(data_info, lr=lr)


class ListOfAdaptations(Sound):
    adaptations = ["default"]  # type: ignore[assignment]


class StrayRandomised(Sound):
    randomised: ClassVar[frozenset[str]] = frozenset({"conal"})


class StraySelection(Sound):
    selected_by: ClassVar[tuple[str, ...]] = ("plain", "conal")


class TakesAnyName(Sound):
    def check_adaptation(self, adaptation: str) -> None:
        pass


class DivergesToNan(Sound):
    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * float("nan")


class LogsNoAccuracy(Sound):
    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        pass


class GivesLogits(Sound):
    def predict_query(self, state: Any, x: Tensor) -> Tensor:
        return 2 * super().predict_query(state, x)


class DividesByNoVotes(Sound):
    """A class that nobody voted for has a prototype of 0 / 0."""

    def adapt(self, support_x: Tensor, support_labels: Tensor, adaptation: str) -> Any:
        self.check_adaptation(adaptation)
        one_hot = nn.functional.one_hot(support_labels + 1, self.data_info.n_classes + 1)[..., 1:]
        weights = one_hot.sum(2).float()
        return weights.transpose(1, 2) @ self.embed(support_x) / weights.sum(1).unsqueeze(2)


class NormalisesItems(Sound):
    """Padding of zeros has no length to divide by."""

    def adapt(self, support_x: Tensor, support_labels: Tensor, adaptation: str) -> Any:
        return super().adapt(
            support_x / support_x.flatten(2).norm(dim=2).view(*support_x.shape[:2], 1, 1, 1),
            *(
                support_labels,
                adaptation,
            ),
        )


class CentresQueries(Sound):
    def predict_query(self, state: Any, x: Tensor) -> Tensor:
        u = self.embed(x)
        return log_nearness(u - u.mean(1, keepdim=True), state)


class CentresTasks(Sound):
    def adapt(self, support_x: Tensor, support_labels: Tensor, adaptation: str) -> Any:
        return super().adapt(support_x - support_x.mean((0, 1)), support_labels, adaptation)


class BelievesTheFirst(Sound):
    def adapt(self, support_x: Tensor, support_labels: Tensor, adaptation: str) -> Any:
        return super().adapt(support_x, support_labels[..., :1], adaptation)


class ForgetsTheLastItem(Sound):
    def adapt(self, support_x: Tensor, support_labels: Tensor, adaptation: str) -> Any:
        return super().adapt(support_x[:, :-1], support_labels[:, :-1], adaptation)


class FavoursClassZero(Sound):
    def predict_query(self, state: Any, x: Tensor) -> Tensor:
        bonus = torch.zeros(self.data_info.n_classes)
        bonus[0] = 1.0
        return (super().predict_query(state, x) + bonus).log_softmax(2)


class DrawsUnseeded(Sound):
    def adapt(self, support_x: Tensor, support_labels: Tensor, adaptation: str) -> Any:
        state = super().adapt(support_x, support_labels, adaptation)
        return state + 1e-3 * torch.randn_like(state)


class AdaptsItself(Sound):
    """Steps on the tasks stay in the weights."""

    def adapt(self, support_x: Tensor, support_labels: Tensor, adaptation: str) -> Any:
        with torch.no_grad():
            self.embedding[1].bias.add_(0.0 if self.training else 1.0)
        return super().adapt(support_x, support_labels, adaptation)


class ScaleOutsideTheState(Sound):
    def __init__(self, data_info: DataInfo, *, lr: float = 0.1) -> None:
        super().__init__(data_info, lr=lr)
        self.scale = 1.0

    def on_train_epoch_end(self) -> None:
        self.scale = 0.5

    def embed(self, x: Tensor) -> Tensor:
        return self.scale * super().embed(x)


class SeedsFromElsewhere(Sound):
    count = 0

    def __init__(self, data_info: DataInfo, *, lr: float = 0.1) -> None:
        super().__init__(data_info, lr=lr)
        SeedsFromElsewhere.count += 1
        nn.init.constant_(self.embedding[1].bias, 0.01 * SeedsFromElsewhere.count)


MUTANTS: list[tuple[type[EpisodicModule], str, str]] = [
    (PositionalArgument, "constructible_from_data_info", "'lr' is not keyword-only"),
    (ListOfAdaptations, "declares_what_it_is", "expected a tuple of texts"),
    (StrayRandomised, "declares_what_it_is", "randomised names conal"),
    (StraySelection, "declares_what_it_is", "selected_by names conal"),
    (TakesAnyName, "an_unknown_adaptation_is_refused", "check_adaptation"),
    (DivergesToNan, "training_stays_finite", "NaN"),
    (LogsNoAccuracy, "training_stays_finite", "val_accuracy"),
    (GivesLogits, "answers_are_log_probabilities", "sum to 1 only within"),
    (DividesByNoVotes, "degenerate_supports_are_answered", "nobody labelled anything"),
    (NormalisesItems, "padded_support_items_are_answered", "padded support items"),
    (CentresQueries, "queries_do_not_depend_on_each_other", "depends on the other query items"),
    (CentresTasks, "episodes_do_not_depend_on_each_other", "depends on the other tasks"),
    (BelievesTheFirst, "order_does_not_matter", "order of annotators"),
    (ForgetsTheLastItem, "order_does_not_matter", "order of items"),
    (FavoursClassZero, "order_does_not_matter", "names of the classes"),
    (DrawsUnseeded, "adapting_changes_nothing", "asked again"),
    (AdaptsItself, "adapting_changes_nothing", "asked again"),
    (ScaleOutsideTheState, "state_is_restored_bit_for_bit", "other answers come from: default"),
    (SeedsFromElsewhere, "same_seed_same_bits", "two trainings from the same seed differ"),
]


@pytest.mark.parametrize("check", [*iter_checks(Sound), *iter_checks(Untrained)], ids=str)
def test_sound_methods_pass(check: Check) -> None:
    check()


@pytest.mark.parametrize(("mutant", "name", "message"), MUTANTS, ids=[mutant.__name__ for mutant, *_ in MUTANTS])
def test_the_check_catches_the_fault(mutant: type[EpisodicModule], name: str, message: str) -> None:
    check = next(check for check in iter_checks(mutant) if check.name == name)
    with pytest.raises(ContractError, match=f"{mutant.__name__}: {name}: ") as caught:
        check()
    assert message in str(caught.value)


def test_every_check_has_a_mutant() -> None:
    assert {check.__name__ for check in EPISODIC_CHECKS} == {name for _, name, _ in MUTANTS}


def test_check_method_stops_at_the_first_broken_promise() -> None:
    with pytest.raises(ContractError, match="declares_what_it_is"):
        check_method(StrayRandomised)
