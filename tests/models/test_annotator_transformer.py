"""The annotator transformer: maths against closed forms, predictions against slow direct versions, training."""

from __future__ import annotations

import copy
from typing import Any

import lightning as L
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from benchmark.testing import iter_checks
from datamodules.base import DataInfo
from models.annotator_transformer.losses import fixmatch_loss, supervised_loss
from models.annotator_transformer.module import AnnotatorTransformer
from models.annotator_transformer.settings import SETTINGS, resolve_setting
from models.annotator_transformer.skills import (
    agreement_counts,
    mean_consensus,
    most_skilled,
    smoothed_skill,
    vote_consensus,
)
from models.optimisers import build_optimiser

INFO = DataInfo(n_classes=5, n_annotators=9, input_shape=(1, 8, 8))
FEATURES = 128  # of small_cnn
FAST: dict[str, Any] = {
    "backbone": "small_cnn",
    "augmentation": "none",
    "weak_augmentation": "none",
    "strong_augmentation": "shift",
}


def built(seed: int = 0, **kwargs: Any) -> AnnotatorTransformer:
    torch.manual_seed(seed)
    return AnnotatorTransformer(INFO, **{**FAST, **kwargs})


def tiny_batch(n_items: int = 12, width: int = 3, seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)

    def part(views: tuple[str, ...]) -> dict[str, Any]:
        order = [torch.randperm(INFO.n_annotators, generator=generator)[:width] for _ in range(n_items)]
        return {
            **{view: torch.randn(n_items, *INFO.input_shape, generator=generator) for view in views},
            "annotators": torch.stack(order),
            "labels": torch.randint(INFO.n_classes, (n_items, width), generator=generator),
            "index": torch.arange(n_items),
        }

    return {**part(("x",)), "unlabeled": part(("weak", "strong"))}


# --- contract ---------------------------------------------------------------------------------------


CHECKS = [
    pytest.param(check, id=f"{setting}-{check}")
    for setting in ("as_released", "annobench")
    for check in iter_checks(AnnotatorTransformer, setting=setting, **FAST)
]


@pytest.mark.parametrize("check", CHECKS)
def test_contract(check: Any) -> None:
    check()


# --- skills -----------------------------------------------------------------------------------------


def test_skill_closed_form() -> None:
    correct, total = torch.tensor([0, 3, 10]), torch.tensor([0, 4, 10])
    released = smoothed_skill(correct, total, 5.0, 2.0)
    torch.testing.assert_close(released, torch.tensor([5 / 7, 8 / 11, 15 / 17]))
    torch.testing.assert_close(smoothed_skill(correct, total, 2.0, 5.0)[:1], torch.tensor([2 / 7]))


@given(seed=st.integers(0, 10_000))
def test_agreement_counts_are_those_of_a_loop(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    annotators, labels, reference = (torch.randint(-1, high, (6, 4), generator=generator) for high in (5, 3, 3))
    correct, total = [0] * 5, [0] * 5
    for who, given_label, wanted in zip(annotators.flatten(), labels.flatten(), reference.flatten(), strict=True):
        if who >= 0 and given_label >= 0 and wanted >= 0:
            total[who] += 1
            correct[who] += int(given_label == wanted)
    counted = agreement_counts(annotators, labels, reference, 5)
    assert counted[0].tolist() == correct and counted[1].tolist() == total


def test_most_skilled_breaks_ties_by_id() -> None:
    assert most_skilled(torch.tensor([0.5, 0.9, 0.5, 0.9]), 3).tolist() == [1, 3, 0]
    assert most_skilled(torch.tensor([0.5, 0.9]), 7).tolist() == [1, 0]


@given(seed=st.integers(0, 10_000), n_annotators=st.integers(1, 7))
def test_vote_consensus_is_the_released_rule(seed: int, n_annotators: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    predictions = torch.randn(8, n_annotators, 4, generator=generator).log_softmax(-1)
    consensus = vote_consensus(predictions)
    torch.testing.assert_close(consensus.exp().sum(-1), torch.ones(8))
    for row, chosen in zip(predictions, consensus.argmax(-1), strict=True):
        votes = torch.bincount(row.argmax(-1), minlength=4)
        assert votes[chosen] == votes.max()
        tied = (votes == votes.max()).nonzero().flatten()
        assert chosen == tied[row.exp().mean(0)[tied].argmax()]


def test_votes_of_certain_annotators_leave_no_class_impossible() -> None:
    certain = torch.full((1, 7, 3), -1e4)
    certain[:, :, 1] = 0.0
    assert torch.isfinite(vote_consensus(certain)).all() and vote_consensus(certain).argmax() == 1


def test_mean_consensus_is_the_log_of_the_mean() -> None:
    predictions = torch.randn(5, 3, 4).log_softmax(-1)
    torch.testing.assert_close(mean_consensus(predictions), predictions.exp().mean(1).log())


# --- losses -----------------------------------------------------------------------------------------


def test_supervised_loss_by_hand() -> None:
    logits, labels = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
    skill = torch.tensor([0.8, 0.4])
    log = logits.log_softmax(-1)
    each = -(0.95 * log[:, 0] + 0.05 * log[:, 1])  # smoothing 0.1 over two classes
    for weighting, weights in (("none", [1, 1]), ("plain", [0.8, 0.4]), ("batch_maximum", [1, 0.5])):
        expected = (each * torch.tensor(weights)).mean()
        torch.testing.assert_close(supervised_loss(logits, labels, skill, 0.1, weighting), expected)  # type: ignore[arg-type]


def test_fixmatch_loss_by_hand() -> None:
    weak = torch.tensor([[2.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.0, 0.0, 3.0]], requires_grad=True)
    strong = torch.tensor([[0.0, 1.0, 0.0], [5.0, 0.0, 0.0], [0.0, 0.0, 0.5]], requires_grad=True)
    # probabilities of the weak view's best classes: .787, .356, .909; the second is below the threshold
    log = strong.detach().log_softmax(-1)
    loss = fixmatch_loss(weak, strong, threshold=0.6, temperature=1.0)
    torch.testing.assert_close(loss.detach(), -(log[0, 0] + log[2, 2]) / 3)
    loss.backward()
    assert weak.grad is None and strong.grad is not None and strong.grad[1].abs().sum() == 0


def test_fixmatch_temperature_sharpens_confidence() -> None:
    weak, strong = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    assert fixmatch_loss(weak, strong, threshold=0.8, temperature=1.0) == 0
    assert fixmatch_loss(weak, strong, threshold=0.8, temperature=0.5) > 0


def test_training_loss_is_supervised_plus_fixmatch() -> None:
    method = built(fixmatch_coefficient=0.5, fixmatch_threshold=0.25, setting="as_released").eval()
    method.skill.copy_(torch.linspace(0.2, 0.9, INFO.n_annotators))
    batch = tiny_batch()
    who = batch["annotators"]
    logits, more = method.network(batch["x"], who), batch["unlabeled"]
    weights = method.skill[who] / method.skill[who].max()
    each = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=0.1, reduction="none")
    weak = method.network(more["weak"], more["annotators"]).flatten(0, 1).softmax(-1)
    strong = method.network(more["strong"], more["annotators"]).flatten(0, 1)
    kept = weak.max(-1).values >= 0.25
    unlabeled = (F.cross_entropy(strong, weak.argmax(-1), reduction="none") * kept).mean()
    assert 0 < kept.sum() < len(kept)
    torch.testing.assert_close(method.training_step(batch, 0), (each * weights.flatten()).mean() + 0.5 * unlabeled)


# --- network ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_padding_changes_nothing(training: bool) -> None:
    network = built(dropout=0.0).network.eval()
    features, who = torch.randn(4, FEATURES), tiny_batch(4)["annotators"]
    padded = torch.cat([who, torch.full((4, 2), -1)], dim=1)
    with torch.set_grad_enabled(training):  # without gradients PyTorch takes another path through the encoder
        plain, wider = network.predict(features, who), network.predict(features, padded)
    assert wider.shape == (4, 5, 5) and torch.isfinite(wider).all()
    torch.testing.assert_close(wider[:, :3], plain, rtol=1e-4, atol=1e-5)


def test_permuting_a_sequence_permutes_its_outputs() -> None:
    network = built().network.eval()
    features, who = torch.randn(4, FEATURES), tiny_batch(4)["annotators"]
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(
        network.predict(features, who[:, order]), network.predict(features, who)[:, order], rtol=1e-4, atol=1e-5
    )


def test_together_depends_on_the_company_and_alone_does_not() -> None:
    network = built().network.eval()
    features = torch.randn(2, FEATURES)
    with_others, other_company = torch.tensor([[0, 1], [0, 1]]), torch.tensor([[0, 5], [0, 5]])

    def first(who: Tensor, alone: bool) -> Tensor:
        return network.predict(features, who, alone)[:, 0]

    assert not torch.allclose(first(with_others, False), first(other_company, False))
    torch.testing.assert_close(first(with_others, True), first(other_company, True))


def test_padded_ids_are_safe_and_get_no_gradient() -> None:
    # checks.md 2 (salesforce/LAVIS#536): an embedding lookup crashed on ids of -1.
    network = built().network
    who = torch.tensor([[-1, -1], [3, -1]])
    logits = network.predict(torch.randn(2, FEATURES), who)
    assert torch.isfinite(logits).all()
    logits[1, 0].sum().backward()
    gradient = network.annotator_token.weight.grad
    assert gradient is not None and gradient[[0, 8]].abs().sum() == 0 and gradient[3].abs().sum() > 0


@pytest.mark.parametrize("training", ["together", "alone"])
def test_a_batch_without_labels_moves_nothing(training: str) -> None:
    # checks.md 1 (pytorch/pytorch#70348): the mean over no labels is NaN.
    method = built(training=training)
    steps = build_optimiser(method.parameters(), "adamw", lr=0.1, weight_decay=0.1)
    batch = tiny_batch()
    for part in (batch, batch["unlabeled"]):
        part["annotators"] = part["labels"] = torch.full((12, 3), -1)
    before = copy.deepcopy(method.state_dict())
    loss = method.training_step(batch, 0)
    loss.backward()
    steps.step()
    assert loss.item() == 0
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())


# --- inference --------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["as_reported", "as_released"])
def test_inference_is_that_of_a_slow_direct_version(source: str) -> None:
    method = built(setting=source, n_inference_annotators=4).eval()
    method.skill.copy_(torch.tensor([0.1, 0.9, 0.3, 0.8, 0.2, 0.7, 0.6, 0.4, 0.5]))
    best = [1, 3, 5, 6]
    x = tiny_batch(20)["x"]
    with torch.no_grad():
        consensus = method.predict_consensus(x)
        for item, row in zip(x, consensus, strict=True):
            sequences = [best] if source == "as_released" else [[who] for who in best]
            answers: list[int] = []
            for sequence in sequences:
                logits = method.network(item[None], torch.tensor([sequence]))[0]
                answers += logits.argmax(-1).tolist()
            votes = torch.bincount(torch.tensor(answers), minlength=5)
            assert votes[row.argmax()] == votes.max()


def test_all_annotators_are_predicted_alone() -> None:
    method = built().eval()
    x = tiny_batch(3)["x"]
    with torch.no_grad():
        everyone = method.predict_annotators(x)
        for who in range(INFO.n_annotators):
            single = method.predict_annotators(x, torch.full((3, 1), who))[:, 0]
            torch.testing.assert_close(everyone[:, who], single, rtol=1e-4, atol=1e-5)


def test_one_item_and_no_annotators_in_evaluation() -> None:
    # checks.md 22: a last batch of one item; and test sets come with no annotators at all.
    method = built().eval()
    x = tiny_batch(1)["x"]
    assert method.predict_consensus(x).shape == (1, 5)
    assert method.predict_annotators(x, torch.zeros(1, 0, dtype=torch.long)).shape == (1, 0, 5)


# --- settings ---------------------------------------------------------------------------------------


def test_settings_are_those_of_report_and_code() -> None:
    reported, released = SETTINGS["as_reported"], SETTINGS["as_released"]
    assert reported.skill_prior == (2, 5) and released.skill_prior == (5, 2)
    assert reported.inference == "alone" and released.inference == "together"
    assert reported.skill_warmup * 100 == released.skill_warmup * 200 == 25


def test_single_arguments_override_and_may_name_a_setting() -> None:
    mixed = resolve_setting("as_released", inference="as_reported", lr=0.1, skill_prior=[1.0, 1.0])
    assert mixed.inference == "alone" and mixed.lr == 0.1 and mixed.skill_prior == (1.0, 1.0)
    assert mixed.skill_start == SETTINGS["as_released"].skill_start


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"setting": "as_relased"}, "as_released"),
        ({"inference": "togeter"}, "together"),
        ({"skill_prior": (0.0, 1.0)}, "skill_prior"),
        ({"skill_warmup": 25.0}, "fraction of the epochs"),
        ({"n_heads": 3}, "does not divide"),
        ({"swa_start": 80}, "swa_start is 80; it must lie between 0 and 1"),
        ({"fixmatch_threshold": 1.5}, "fixmatch_threshold is 1.5"),
        ({"n_inference_annotators": 0}, "n_inference_annotators is 0; at least 1"),
        ({"estimation_annotators": 0}, "estimation_annotators is 0; at least 1"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        built(**arguments)


def test_a_third_of_747_annotators_is_249() -> None:
    info = DataInfo(10, 747, (1, 8, 8))
    assert AnnotatorTransformer(info, **FAST).n_estimation_annotators == 249
    assert AnnotatorTransformer(info, estimation_annotators=31, **FAST).n_estimation_annotators == 31


# --- training steps ---------------------------------------------------------------------------------


def test_golden_losses() -> None:
    method = built(setting="as_released", dropout=0.0)
    steps = build_optimiser(method.parameters(), "adamw", lr=0.003, weight_decay=0.01)
    losses = []
    for _ in range(4):
        loss = method.training_step(tiny_batch(), 0)
        steps.zero_grad()
        loss.backward()
        steps.step()
        losses.append(loss.item())
    assert losses == pytest.approx(GOLDEN, rel=0.02)


GOLDEN = [1.6223, 1.5515, 1.4971, 1.4557]


def test_without_fixmatch_no_second_batch_is_asked_for() -> None:
    assert built(fixmatch_coefficient=0.0).unlabeled_views() == {}
    assert set(built().unlabeled_views()) == {"weak", "strong"}


def test_skills_need_the_datamodule() -> None:
    method = built(setting="as_released")
    method.trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    with pytest.raises(RuntimeError, match="datamodule="):
        method.on_train_start()
