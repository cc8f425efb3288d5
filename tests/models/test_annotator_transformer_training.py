"""The annotator transformer in a Trainer: skills, resuming, validation accuracy, weight averaging."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor
from torch.optim.swa_utils import update_bn

from datamodules.digits import Digits
from models.annotator_transformer.module import AnnotatorTransformer
from models.annotator_transformer.swa import averaging_start

FAST: dict[str, Any] = {
    "backbone": "small_cnn",
    "augmentation": "none",
    "weak_augmentation": "none",
    "strong_augmentation": "shift",
    "lr": 0.005,
}


def trainer(epochs: int, **changes: Any) -> L.Trainer:
    settings: dict[str, Any] = {
        "max_epochs": epochs,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    return L.Trainer(**{**settings, **changes})


def made(regime: str = "aggre", n_train: int = 130, **kwargs: Any) -> tuple[AnnotatorTransformer, Digits]:
    datamodule = Digits(regime, n_train=n_train, batch_size=64)
    datamodule.setup()
    torch.manual_seed(0)
    method = AnnotatorTransformer(datamodule.info, **{**FAST, **kwargs})
    datamodule.request(method.train_views(), method.unlabeled_views())
    return method, datamodule


def fitted(epochs: int = 4, callbacks: tuple[Callback, ...] = (), **kwargs: Any) -> AnnotatorTransformer:
    """Trained on a few digits; the trainer stays attached."""
    method, datamodule = made(**kwargs)
    trainer(epochs, callbacks=list(callbacks)).fit(method, datamodule=datamodule)
    return method


# --- skills, resuming, validation -------------------------------------------------------------------


@pytest.mark.parametrize(("source", "regime"), [("as_released", "rand1"), ("annobench", "worst")])
def test_skills_are_those_of_a_slow_direct_version(source: str, regime: str) -> None:
    # one item at a time, one annotator at a time where training has them alone, plain counting
    method, datamodule = made(regime, 40, setting=source, skill_warmup=1.0, estimation_annotators=7)
    trainer(1).fit(method, datamodule=datamodule)
    method.eval()
    before = method.skill.clone()
    best = sorted(range(60), key=lambda who: (-float(before[who]), who))[:7]
    correct, total = torch.zeros(60), torch.zeros(60)
    annotations = datamodule.train_annotations
    with torch.no_grad():
        for batch in datamodule.scan_dataloader("none", batch_size=1):
            sequences = [[who] for who in best] if method.setting.training == "alone" else [best]
            answers = [int(a) for s in sequences for a in method.network(batch["x"], torch.tensor([s]))[0].argmax(-1)]
            votes = torch.bincount(torch.tensor(answers), minlength=10)
            mine = annotations.items == batch["index"]
            for who, label in zip(annotations.annotators[mine], annotations.labels[mine], strict=True):
                total[who] += 1
                correct[who] += int(label == votes.argmax())
    method.estimate_skills(datamodule)
    torch.testing.assert_close(method.skill, (5 + correct) / (7 + total))
    assert not torch.equal(method.skill, before)


def test_a_resumed_training_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    # checks.md 17 (pytorch-lightning#17543, #18098): resumed was not uninterrupted. Order, augmentation, skills
    # and the average must all come back; the first resumed epoch once came in the order of epoch 0. Dropout draws
    # from the global generator, which Lightning does not save.
    settings = {"setting": "as_released", "dropout": 0.0, "skill_warmup": 0.25, "swa_start": 0.5}
    method, datamodule = made(**settings)
    saver = ModelCheckpoint(dirpath=tmp_path, filename="{epoch}", save_top_k=-1, every_n_epochs=1)
    trainer(4, callbacks=[saver], enable_checkpointing=True).fit(method, datamodule=datamodule)
    for epoch in (0, 2):  # before the average begins, and within
        resumed, again = made(**settings)
        trainer(4).fit(resumed, datamodule=again, ckpt_path=tmp_path / f"epoch={epoch}.ckpt", weights_only=False)
        for name, value in method.state_dict().items():
            torch.testing.assert_close(resumed.state_dict()[name], value, rtol=0, atol=0, msg=f"{name}, epoch {epoch}")


def test_logged_validation_accuracy_counts_every_annotation_once() -> None:
    # checks.md 20 (pytorch-lightning#2924): the small last batch was weighted like a full one
    method, _ = made()
    data = Digits("aggre", n_train=130, batch_size=64, eval_batch_size=8)
    data.request(method.train_views(), method.unlabeled_views())
    fit = trainer(1)
    fit.fit(method, datamodule=data)
    logged = fit.validate(method, datamodule=data, verbose=False)[0]["val_accuracy"]
    right = total = 0
    with torch.no_grad():
        for batch in data.val_dataloader():
            predicted = method.eval().predict_annotators(batch["x"], batch["annotators"]).argmax(-1)
            present = batch["labels"] >= 0
            right += int((predicted == batch["labels"])[present].sum())
            total += int(present.sum())
    assert len(data.val_items) % 8 and logged == pytest.approx(right / total, abs=1e-6)


# --- weight averaging and state ---------------------------------------------------------------------


def test_averaging_starts_where_lightnings_did() -> None:
    assert [averaging_start(0.8, epochs) for epochs in (100, 200, 5, 2, 1)] == [79, 159, 3, 1, 1]


class WeightsOfEpochs(Callback):
    """Copies of the network's parameters at the end of each epoch, and the learning rate of its steps."""

    def __init__(self) -> None:
        self.weights: list[list[Tensor]] = []
        self.rates: list[float] = []

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.weights.append([p.detach().clone() for p in pl_module.network.parameters()])


def test_what_is_reported_are_the_averaged_weights() -> None:
    # checks.md 18 (pytorch-lightning#6074): a file saved under SWA held the raw weights.
    seen = WeightsOfEpochs()
    method = fitted(6, (seen,), swa_start=0.8)
    assert averaging_start(0.8, 6) == 3 and len(seen.weights) == 6
    for own, *epochs in zip(method.network.parameters(), *seen.weights[3:], strict=True):
        torch.testing.assert_close(own.detach(), torch.stack(epochs).mean(0), rtol=1e-4, atol=1e-6)
    steps = len(seen.rates) // 6
    assert len(set(seen.rates[3 * steps :])) == 1 and len(set(seen.rates[: 3 * steps])) > 1


def test_batch_norm_statistics_are_those_of_the_averaged_weights() -> None:
    method = fitted(5)
    fresh = copy.deepcopy(method.network.backbone)

    def inputs() -> Iterator[Tensor]:
        for batch in method.trainer.datamodule.train_dataloader():
            yield from method._batch_norm_inputs(batch)

    update_bn(inputs(), fresh)
    for name, value in fresh.state_dict().items():
        torch.testing.assert_close(method.network.backbone.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_without_averaging_the_last_epoch_is_kept() -> None:
    seen = WeightsOfEpochs()
    method = fitted(3, (seen,), swa=False, fixmatch_coefficient=0.0)
    assert all(torch.equal(a, b) for a, b in zip(method.network.parameters(), seen.weights[-1], strict=True))


def test_a_saved_state_predicts_the_same_bits() -> None:
    method = fitted(3).eval()
    info = method.data_info
    restored = AnnotatorTransformer(info, **FAST).eval()
    restored.load_state_dict(method.state_dict())
    x = torch.rand(7, *info.input_shape)
    with torch.no_grad():
        assert torch.equal(method.predict_consensus(x), restored.predict_consensus(x))
    assert torch.equal(method.annotator_skill(), restored.annotator_skill())


def test_two_trainings_give_the_same_bits() -> None:
    first, second = fitted(2, setting="as_released").state_dict(), fitted(2, setting="as_released").state_dict()
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_skills_start_from_agreement_with_the_majority_and_then_follow_the_model() -> None:
    started = fitted(2, setting="as_released", skill_warmup=1.0)
    annotations = started.trainer.datamodule.train_annotations
    majority = annotations.majority(0)
    counts = torch.zeros(2, annotations.n_annotators)
    for item, who, label in zip(annotations.items, annotations.annotators, annotations.labels, strict=True):
        counts[:, who] += torch.tensor([float(label == majority[item]), 1.0])
    torch.testing.assert_close(started.skill, (5 + counts[0]) / (7 + counts[1]))
    followed = fitted(2, setting="as_released", skill_warmup=0.5)
    assert not torch.equal(followed.skill, started.skill)
    assert float(followed.trainer.callback_metrics["mean_skill"]) == pytest.approx(float(followed.skill.mean()))


def test_uniform_skills_are_the_prior_mean_before_the_warmup_ends() -> None:
    method = fitted(1, setting="as_reported", skill_warmup=1.0)
    torch.testing.assert_close(method.skill, torch.full_like(method.skill, 2 / 7))
