"""The delivered labels reach the loss: each vote its turn, the right item, the same labels after a resume."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.nn import functional as F

from benchmark.contracts.tiny import TinyCrowd
from benchmark.testing import iter_checks
from datamodules.annotations import Annotations
from datamodules.base import CrowdData, CrowdDataModule, DataInfo
from datamodules.digits import Digits
from models.base import Batch
from models.cross_entropy.module import CrossEntropy
from models.label_delivery import module as module_file
from models.label_delivery.delivery import deliver
from models.label_delivery.epochs import EpochLabels
from models.label_delivery.losses import delivered_loss, mixup_pairs
from models.label_delivery.module import LabelDelivery
from models.optimisers import build_optimiser

INFO = DataInfo(n_classes=5, n_annotators=6, input_shape=(1, 8, 8))
FAST: dict[str, Any] = {"backbone": "small_cnn", "lr": 0.01}
DELIVERIES = ["majority", "soft", "multipass", "deterministic", "sls", "shuffled_sls", "stale(3)"]


class Recording(LabelDelivery):
    """Keeps which labels the loss got for which items: ``used[epoch][item]``."""

    def __init__(self, data_info: DataInfo, **arguments: Any) -> None:
        super().__init__(data_info, **{**FAST, **arguments})
        self.used: dict[int, dict[int, Any]] = {}
        self._items: list[int] = []

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        self._items = batch["index"].tolist()
        return super().training_step(batch, batch_idx)

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        epoch = self.used.setdefault(self.current_epoch, {})
        epoch.update(zip(self._items, labels.tolist(), strict=True))
        return super()._loss(logits, labels)


class Unanimous(CrowdDataModule):
    """Two votes an item, both for the item's number modulo 5."""

    name = "unanimous"
    regimes: ClassVar[Mapping[str, str]] = {"only": "no doubt"}
    standard_augmentation = "none"

    def load(self) -> CrowdData:
        n_items = 60
        items = torch.arange(n_items).repeat_interleave(2)
        noted = Annotations(items, torch.arange(2).repeat(n_items), items % 5, n_items, 6, 5)
        x = torch.randint(256, (n_items, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        return CrowdData(x=x, annotations=noted, true_labels=None, test_x=x[:2], test_labels=None)


def tiny(**arguments: Any) -> TinyCrowd:
    """Items with none to three votes."""
    return TinyCrowd("mixed", data_info=INFO, batch_size=8, **arguments)


def fit(method: LabelDelivery, data: CrowdDataModule, epochs: int, resume: Path | None = None, **trainer: Any) -> None:
    """Trains as the runner does."""
    data.request(method.train_views(), method.unlabeled_views())
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0, "logger": False}
    settings: dict[str, Any] = {"enable_checkpointing": False, **quiet, **trainer}
    L.Trainer(max_epochs=epochs, accelerator="cpu", devices=1, deterministic=True, **settings).fit(
        method, datamodule=data, ckpt_path=resume
    )


def recording(seed: int = 0, **arguments: Any) -> Recording:
    torch.manual_seed(seed)
    return Recording(INFO, **arguments)


def with_votes(method: LabelDelivery, votes: Tensor, seed: int = 0) -> LabelDelivery:
    """The method as it is within a training on ``votes``."""
    method._labels = EpochLabels(method.delivery, votes, seed)
    return method


def some_votes(n_items: int = 12) -> Tensor:
    votes = torch.randint(4, (n_items, 5), generator=torch.Generator().manual_seed(1))
    votes[:, 2] += votes.sum(1) == 0
    return votes


def some_batch(n_items: int = 12) -> dict[str, Tensor]:
    x = torch.randn(n_items, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    return {"x": x, "index": torch.arange(n_items)}


@pytest.mark.parametrize(
    "check", list(iter_checks(LabelDelivery, delivery="soft", mixup=0.2, label_smoothing=0.1, **FAST)), ids=str
)
def test_contract_with_soft_labels_smoothing_and_mixup(check) -> None:  # type: ignore[no-untyped-def]
    check()


# --- what a training is shown -----------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["multipass", "deterministic"])
def test_over_m_epochs_a_training_shows_each_of_an_items_m_votes_exactly_once(delivery: str) -> None:
    method, data = recording(delivery=delivery), tiny()
    fit(method, data, epochs=6)
    votes = data.train_annotations.votes()
    for item in data.train_items.tolist():
        m = int(votes[item].sum())
        shown = [method.used[epoch][item] for epoch in range(6)]
        if m == 0:
            assert set(shown) == {-1}
            continue
        for lap in range(6 // m):
            counts = torch.tensor(shown[lap * m : (lap + 1) * m]).bincount(minlength=5)
            assert torch.equal(counts, votes[item])


@pytest.mark.parametrize("delivery", ["majority", "soft", "multipass", "sls", "stale(2)"])
def test_labels_are_those_of_their_item_and_held_out_items_are_never_used(delivery: str) -> None:
    method, data = recording(delivery=delivery), Unanimous("only", batch_size=8, val_fraction=0.3)
    fit(method, data, epochs=2)
    for shown in method.used.values():
        assert sorted(shown) == data.train_items.tolist()
        for item, label in shown.items():
            assert (torch.tensor(label).argmax().item() if delivery == "soft" else label) == item % 5


def test_held_out_votes_are_not_delivered_even_to_a_batch_that_holds_their_items() -> None:
    method, data = recording(), Unanimous("only", batch_size=8)
    asked: list[Tensor] = []
    method.on_train_epoch_end = lambda: asked.append(method.epoch_labels())  # type: ignore[method-assign]
    fit(method, data, epochs=1)
    assert (asked[0][data.val_items] == -1).all() and (asked[0][data.train_items] >= 0).all()


def test_shuffled_sls_keeps_the_label_histogram_and_loses_the_pairing() -> None:
    method, data = recording(delivery="shuffled_sls"), Unanimous("only", batch_size=8)
    fit(method, data, epochs=2)
    first, second = (method.used[epoch] for epoch in (0, 1))
    assert first == second  # dealt once, and unanimous votes leave nothing to draw
    own = torch.tensor([item % 5 for item in first])
    assert torch.equal(torch.tensor(list(first.values())).bincount(minlength=5), own.bincount(minlength=5))
    kept = sum(label == item % 5 for item, label in first.items()) / len(first)
    assert kept < 0.5  # a fifth by chance


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_labels_of_an_epoch_are_those_of_the_pure_function_in_whatever_order_epochs_are_asked(delivery: str) -> None:
    votes = some_votes()
    votes[[0, 7]] = 0
    present = votes.sum(1) > 0
    labels = EpochLabels(delivery, votes, seed=3)
    for epoch in (4, 0, 2, 2, 4):
        expected = deliver(delivery, votes[present], epoch, 3)
        assert torch.equal(labels.of(epoch)[present], expected)
        missing = labels.of(epoch)[~present]
        assert torch.equal(missing, torch.full_like(missing, 0 if delivery == "soft" else -1))


# --- seeds, resuming, workers -----------------------------------------------------------------


def test_deliveries_share_initial_weights_and_seed_and_weights_are_those_of_plain_cross_entropy() -> None:
    states = []
    for delivery in DELIVERIES:
        torch.manual_seed(5)
        states.append(LabelDelivery(INFO, delivery=delivery, **FAST).state_dict())
    torch.manual_seed(5)
    plain = CrossEntropy(INFO, backbone="small_cnn").state_dict()
    assert set(states[0]) == {*plain, "delivery_seed"}
    assert all(torch.equal(state[name], plain[name]) for state in states for name in plain)
    assert len({int(state["delivery_seed"]) for state in states}) == 1
    torch.manual_seed(6)
    assert LabelDelivery(INFO, **FAST).delivery_seed != states[0]["delivery_seed"]


@pytest.mark.parametrize(("delivery", "mixup"), [("multipass", 0.0), ("sls", 0.2)])
def test_a_resumed_training_is_the_uninterrupted_one(tmp_path: Path, delivery: str, mixup: float) -> None:
    # checks.md 17 (pytorch-lightning#17543, #18098): resumed trainings went on with other numbers
    whole = recording(delivery=delivery, mixup=mixup)
    saver = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    fit(whole, tiny(), epochs=4, enable_checkpointing=True, callbacks=[saver])
    resumed = recording(seed=99, delivery=delivery, mixup=mixup)  # another delivery seed until it is restored
    fit(resumed, tiny(), epochs=4, resume=tmp_path / "epoch=1.ckpt")
    assert resumed.used == {epoch: whole.used[epoch] for epoch in (2, 3)}
    assert all(torch.equal(value, resumed.state_dict()[name]) for name, value in whole.state_dict().items())


def test_neither_workers_nor_what_is_drawn_meanwhile_change_a_number() -> None:
    class Draws(L.Callback):
        def on_train_batch_start(self, *args: Any) -> None:
            torch.rand(3)

    first, second = recording(mixup=0.4), recording(mixup=0.4)
    fit(first, tiny(), epochs=2)
    fit(second, tiny(num_workers=2), epochs=2, callbacks=[Draws()])
    assert first.used == second.used
    assert all(torch.equal(value, second.state_dict()[name]) for name, value in first.state_dict().items())


# --- losses -----------------------------------------------------------------------------------


def test_sls_optimises_the_same_expected_objective_as_soft_labels() -> None:
    """Proposition 1 for a whole batch and all weights, exactly: over every outcome of the draw, by its probability.

    Label smoothing is linear in the target, so the equality holds with it as well.
    """
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3)).double()
    x = torch.randn(3, 4, dtype=torch.float64)
    votes = torch.tensor([[3, 1, 0], [1, 1, 2], [0, 4, 1]])
    p = votes / votes.sum(1, keepdim=True, dtype=torch.float64)

    def loss_and_gradient(labels: Tensor, smoothing: float) -> Tensor:
        loss = delivered_loss(network(x), labels, smoothing)
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        return torch.cat([loss.detach().reshape(1), *(gradient.flatten() for gradient in gradients)])

    for smoothing in (0.0, 0.1):
        expected = torch.zeros(())
        for outcome in product(range(3), repeat=3):
            labels = torch.tensor(outcome)
            probability = p[torch.arange(3), labels].prod()
            if probability > 0:
                expected = expected + probability * loss_and_gradient(labels, smoothing)
        torch.testing.assert_close(expected, loss_and_gradient(p, smoothing))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_torchs_over_the_items_with_a_label(smoothing: float) -> None:
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    hard, soft = torch.tensor([0, 4, -1, 2, 2, -1]), some_votes(6).float()
    soft /= soft.sum(1, keepdim=True)
    soft[2] = soft[5] = 0
    present = hard >= 0
    for labels in (hard, soft):
        expected = F.cross_entropy(logits[present], labels[present], label_smoothing=smoothing)
        torch.testing.assert_close(delivered_loss(logits, labels, smoothing), expected)
        assert delivered_loss(logits[~present], labels[~present], smoothing) == 0


@pytest.mark.parametrize("delivery", ["sls", "soft"])
@pytest.mark.parametrize("mixup", [0.0, 0.5])
def test_a_batch_without_votes_moves_nothing(delivery: str, mixup: float) -> None:
    # checks.md 1 (pytorch/pytorch#70348); momentum, weight decay and batch-norm statistics stay as well
    votes = torch.cat([some_votes(), torch.zeros(12, 5, dtype=torch.long)])
    method = with_votes(LabelDelivery(INFO, delivery=delivery, mixup=mixup, **FAST), votes).train()
    steps = build_optimiser(method.parameters(), "sgd", lr=0.1, weight_decay=0.1, momentum=0.9)
    batch = some_batch()
    method.training_step(batch, 0).backward()
    steps.step()
    steps.zero_grad()
    before = copy.deepcopy(method.state_dict())
    loss = method.training_step({**batch, "index": batch["index"] + 12}, 1)
    loss.backward()
    steps.step()
    assert loss.item() == 0
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())


def test_golden_losses() -> None:
    torch.manual_seed(0)
    method = with_votes(LabelDelivery(INFO, delivery="soft", **FAST), some_votes())
    steps = build_optimiser(method.parameters(), "sgd", lr=0.01, weight_decay=5e-4, momentum=0.9)
    losses = []
    for number in range(4):
        loss = method.training_step(some_batch(), number)
        steps.zero_grad()
        loss.backward()
        steps.step()
        losses.append(loss.item())
    assert losses == pytest.approx(GOLDEN, rel=0.02)


GOLDEN = [1.6447, 1.4690, 1.3570, 1.3099]


# --- mixup ------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["majority", "soft"])
def test_mixup_mixes_items_and_both_labels_with_one_share_a_batch(delivery: str) -> None:
    torch.manual_seed(0)
    method = with_votes(LabelDelivery(INFO, delivery=delivery, mixup=0.7, **FAST), some_votes(), seed=4).eval()
    batch = some_batch()
    share, partners = mixup_pairs(12, 0.7, seed=4, epoch=0, batch=6)
    logits = method(share * batch["x"] + (1 - share) * batch["x"][partners])
    labels = method.epoch_labels()
    if delivery == "majority":
        labels = F.one_hot(labels, 5).float()
    expected = F.cross_entropy(logits, share * labels + (1 - share) * labels[partners])
    torch.testing.assert_close(method.training_step(batch, 6), expected)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_mixup_with_a_share_of_0_or_1_is_no_mixup(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    method = with_votes(LabelDelivery(INFO, delivery="multipass", mixup=1.0, **FAST), some_votes()).eval()
    monkeypatch.setattr(module_file, "mixup_pairs", lambda n, *rest: (share, torch.arange(n).flip(0)))
    mixed = method.training_step(some_batch(), 0)
    method.mixup = 0.0
    torch.testing.assert_close(mixed, method.training_step(some_batch(), 0))


def test_mixup_draws_from_its_beta_distribution_and_pairs_at_random() -> None:
    alpha = 0.2
    drawn = [mixup_pairs(6, alpha, seed=0, epoch=batch // 50, batch=batch % 50) for batch in range(3000)]
    shares = torch.tensor([share for share, _ in drawn], dtype=torch.float64)
    spread = 1 / (4 * (2 * alpha + 1))  # variance of Beta(alpha, alpha)
    assert abs(float(shares.mean()) - 0.5) < 4.5 * (spread / 3000) ** 0.5
    assert abs(float(shares.var()) - spread) < 0.02
    partners = torch.stack([pairs for _, pairs in drawn])
    assert torch.equal(partners.sort(1).values, torch.arange(6).expand(3000, 6))
    assert float((partners[:, 0].bincount(minlength=6) - 500).abs().max()) < 4.5 * (3000 * 5 / 36) ** 0.5
    again, pairs = mixup_pairs(6, alpha, seed=0, epoch=1, batch=2)
    assert again == drawn[52][0] and torch.equal(pairs, drawn[52][1])
    assert mixup_pairs(6, alpha, seed=1, epoch=1, batch=2)[0] != again


# --- arguments --------------------------------------------------------------------------------


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown delivery.*multipass"):
        LabelDelivery(INFO, delivery="multipas", **FAST)
    for smoothing in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="label_smoothing is .*; it must be at least 0 and below 1"):
            LabelDelivery(INFO, label_smoothing=smoothing, **FAST)
    for alpha in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="mixup is .*; alpha must be 0"):
            LabelDelivery(INFO, mixup=alpha, **FAST)


def test_training_without_the_data_module_says_what_to_pass() -> None:
    method, data = LabelDelivery(INFO, **FAST), tiny()
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False)
    with pytest.raises(RuntimeError, match=r"pass the data as trainer.fit\(method, datamodule=...\)"):
        trainer.fit(method, data.train_dataloader())
    with pytest.raises(RuntimeError, match="votes of the training annotations"):
        LabelDelivery(INFO, **FAST).training_step(some_batch(), 0)


@pytest.mark.parametrize("delivery", ["soft", "sls"])
def test_learns_digits(delivery: str) -> None:
    data = Digits("aggre", n_train=600, val_fraction=0.15, batch_size=64)
    torch.manual_seed(3)
    method = LabelDelivery(data.info, delivery=delivery, backbone="small_cnn", lr=0.05, augmentation="none")
    fit(method, data, epochs=4)
    assert method._labels is None  # the votes are let go of
    assert float(method.trainer.callback_metrics["val_accuracy"]) > 0.5
    assert 0 < float(method.trainer.callback_metrics["train_loss"]) < 2.5
