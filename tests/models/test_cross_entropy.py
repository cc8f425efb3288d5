"""The plain cross-entropy baseline."""

from __future__ import annotations

import copy

import lightning as L
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmark.testing import iter_checks
from datamodules.base import DataInfo
from datamodules.digits import Digits
from models.cross_entropy.module import CrossEntropy, first_label, majority_label
from models.optimisers import build_optimiser, build_schedule

INFO = DataInfo(n_classes=5, n_annotators=6, input_shape=(1, 8, 8))
FAST = {"backbone": "small_cnn"}


def tiny_batch(n_items: int = 12, width: int = 3, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    annotators = torch.stack([torch.randperm(6, generator=generator)[:width] for _ in range(n_items)])
    return {
        "x": torch.randn(n_items, 1, 8, 8, generator=generator),
        "annotators": annotators,
        "labels": torch.randint(5, (n_items, width), generator=generator),
        "index": torch.arange(n_items),
    }


@pytest.mark.parametrize("check", list(iter_checks(CrossEntropy, **FAST)), ids=str)
def test_contract(check) -> None:  # type: ignore[no-untyped-def]
    check()


def test_first_and_majority_label_by_hand() -> None:
    labels = torch.tensor([[2, 1, 1], [-1, 3, 0], [-1, -1, -1], [4, 2, 3], [-1, 0, 0]])
    assert first_label(labels).tolist() == [2, 3, -1, 4, 0]
    assert majority_label(labels).tolist() == [1, 3, -1, 4, 0]


def test_the_datas_own_single_label_is_the_target() -> None:
    method = CrossEntropy(INFO, **FAST)
    batch = {**tiny_batch(), "aggregated": torch.arange(12) % 5}
    assert torch.equal(method.single_label(batch), batch["aggregated"])
    assert torch.equal(CrossEntropy(INFO, target="first", **FAST).single_label(batch), batch["labels"][:, 0])


def test_loss_counts_only_items_with_a_label() -> None:
    torch.manual_seed(0)
    method = CrossEntropy(INFO, **FAST).eval()
    batch = tiny_batch()
    batch["labels"][6:] = -1
    expected = F.cross_entropy(method(batch["x"])[:6], majority_label(batch["labels"])[:6])
    torch.testing.assert_close(method.training_step(batch, 0), expected)


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_a_batch_without_labels_moves_nothing(optimiser: str) -> None:
    # checks.md 1 (pytorch/pytorch#70348): mean cross-entropy over nothing is NaN. A loss of 0 with a gradient
    # of 0 is no cure: weight decay, momentum and batch-norm statistics would still move.
    method = CrossEntropy(INFO, **FAST).train()
    steps = build_optimiser(method.parameters(), optimiser, lr=0.1, weight_decay=0.1)  # type: ignore[arg-type]
    batch = tiny_batch()
    batch["labels"] = torch.full_like(batch["labels"], -1)
    before = copy.deepcopy(method.state_dict())
    loss = method.training_step(batch, 0)
    loss.backward()
    steps.step()
    assert loss.item() == 0
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())


def test_golden_losses() -> None:
    torch.manual_seed(0)
    method = CrossEntropy(INFO, **FAST)
    steps = build_optimiser(method.parameters(), "sgd", lr=0.01, weight_decay=0.0)
    losses = []
    for _ in range(4):
        loss = method.training_step(tiny_batch(), 0)
        steps.zero_grad()
        loss.backward()
        steps.step()
        losses.append(loss.item())
    assert losses == pytest.approx(GOLDEN, rel=0.02)


GOLDEN = [1.6914, 0.7856, 0.4863, 0.3422]


@pytest.mark.parametrize(
    ("name", "at"),
    [("drops", {0: 0.1, 4: 0.1, 5: 0.01, 9: 0.01}), ("constant", {0: 0.1, 9: 0.1}), ("cosine", {5: 0.05})],
)
def test_schedules_by_step(name: str, at: dict[int, float]) -> None:
    optimiser = build_optimiser([torch.nn.Parameter(torch.zeros(1))], "sgd", lr=0.1, weight_decay=0.0)
    schedule = build_schedule(optimiser, name, 10)  # type: ignore[arg-type]
    rates = []
    for _ in range(10):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        if schedule is not None:
            schedule.step()
    assert [rates[step] for step in at] == pytest.approx(list(at.values()))


def test_one_cycle_is_held_from_the_given_step() -> None:
    optimiser = build_optimiser([torch.nn.Parameter(torch.zeros(1))], "adamw", lr=0.1, weight_decay=0.0)
    schedule = build_schedule(optimiser, "one_cycle", 20, hold_from=12)
    assert schedule is not None
    rates = []
    for _ in range(20):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    assert max(rates) == pytest.approx(0.1, rel=0.05)
    assert len(set(rates[12:])) == 1 and rates[11] > rates[12]


def test_wrong_names_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown target 'last'"):
        CrossEntropy(INFO, target="last", **FAST)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown optimiser"):
        build_optimiser([], "adam", lr=0.1, weight_decay=0.0)  # type: ignore[arg-type]


def test_learns_digits_and_repeats_to_the_last_bit() -> None:
    def trained() -> tuple[CrossEntropy, L.Trainer]:
        datamodule = Digits("aggre", n_train=600, val_fraction=0.15)
        datamodule.setup()
        torch.manual_seed(3)
        method = CrossEntropy(
            datamodule.info, optimiser="adamw", lr=0.005, schedule="one_cycle", augmentation="none", **FAST
        )
        datamodule.request(method.train_views(), method.unlabeled_views())
        trainer = L.Trainer(
            max_epochs=4,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            deterministic=True,
        )
        trainer.fit(method, datamodule=datamodule)
        return method, trainer

    (first, trainer), (second, _) = trained(), trained()
    assert all(torch.equal(value, second.state_dict()[name]) for name, value in first.state_dict().items())
    assert float(trainer.callback_metrics["val_accuracy"]) > 0.5
    assert 0 < float(trainer.callback_metrics["train_loss"]) < 2
