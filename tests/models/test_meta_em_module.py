"""MetaEM: which labels its EM sees in training, that it is the pure functions on its embedding, flat memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor

from benchmark.contracts.tiny_episodes import tiny_episodes
from benchmark.contracts.training import quiet
from benchmark.testing import Check, iter_checks
from datamodules.base import DataInfo
from models.meta_em.em import query_log_posterior, unrolled_em
from models.meta_em.module import MetaEM
from models.meta_em.variational import query_log_predictive, variational_em
from models.prototypical.module import Prototypical

INFO = DataInfo(n_classes=3, n_annotators=4, input_shape=(1, 8, 8))


def checks() -> Iterator[Check]:
    yield from iter_checks(MetaEM, backbone="conv4_narrow")
    yield from iter_checks(MetaEM, backbone="mlp", variational=True, pseudo_annotation=False)


@pytest.mark.parametrize("check", checks(), ids=str)
def test_contract(check: Check) -> None:
    check()


def small(**arguments: Any) -> MetaEM:
    torch.manual_seed(0)
    return MetaEM(INFO, **{"backbone": "mlp", **arguments})


# --- pseudo-annotators ----------------------------------------------------------------------------


def truth(n_episodes: int = 400) -> Tensor:
    return torch.arange(3).repeat(4).expand(n_episodes, -1)


def test_pseudo_annotators_follow_from_seed_epoch_and_batch() -> None:
    method, other = small(), small()
    first = method.training_labels(truth(), 0)
    torch.rand(3)  # the global generator has no say
    assert torch.equal(method.training_labels(truth(), 0), first)
    assert torch.equal(other.training_labels(truth(), 0), first)
    assert not _same(method.training_labels(truth(), 1), first)
    other.annotator_seed += 1
    assert not _same(other.training_labels(truth(), 0), first)
    other.load_state_dict(method.state_dict())
    assert torch.equal(other.training_labels(truth(), 0), first), "a restored method has other annotators"


def _same(labels: Tensor, other: Tensor) -> bool:
    return labels.shape == other.shape and torch.equal(labels, other)


def test_the_number_of_pseudo_annotators_is_drawn_or_fixed() -> None:
    method = small(pseudo_annotators=(3, 5, 7))
    widths = [method.training_labels(truth(1), batch).shape[2] for batch in range(60)]
    assert {width: widths.count(width) > 8 for width in set(widths)} == {3: True, 5: True, 7: True}
    assert {small(pseudo_annotators=(5,)).training_labels(truth(1), batch).shape[2] for batch in range(9)} == {5}


@pytest.mark.parametrize(
    ("shares", "expected"),
    [((1.0, 0.0, 0.0), 1.0), ((0.0, 1.0, 0.0), 0.75), ((0.0, 0.0, 1.0), 1 / 3), ((0.1, 0.7, 0.2), 0.6917)],
)
def test_pseudo_annotations_are_right_as_often_as_their_annotators(
    shares: tuple[float, float, float], expected: float
) -> None:
    expert, hammer, spammer = shares
    method = small(expert_share=expert, hammer_share=hammer, spammer_share=spammer, pseudo_annotators=(7,))
    labels = method.training_labels(truth(), 0)
    assert labels.min() >= 0 and labels.max() <= 2
    right = (labels == truth().unsqueeze(2)).float().mean()
    assert right == pytest.approx(expected, abs=0.02)


def test_without_pseudo_annotation_every_annotator_gives_the_source_label() -> None:
    labels = small(pseudo_annotation=False, pseudo_annotators=(5,)).training_labels(truth(), 3)
    assert labels.shape == (400, 12, 5) and (labels == truth().unsqueeze(2)).all()


# --- the pure functions on the embedding ----------------------------------------------------------


def test_answers_are_the_em_on_the_embedding() -> None:
    method, batch = small(tau=0.5, b=2.0, c=0.3, steps=3).eval(), tiny_episodes(INFO)
    with torch.no_grad():
        u, v = method.embed(batch["support_x"]), method.embed(batch["query_x"])
        state = unrolled_em(u, batch["support_labels"], 3, 3, 0.5, 2.0, 0.3)
        assert torch.equal(method.answer(batch, "em"), query_log_posterior(state, v))
    other = small(tau=0.5, b=2.0, c=0.3, steps=3, variational=True).eval()
    with torch.no_grad():
        bound = variational_em(u, batch["support_labels"], 3, 3, 0.5, 2.0, 0.3)
        assert torch.equal(other.answer(batch, "em"), query_log_predictive(bound, v))


def test_training_minimises_the_queries_cross_entropy_through_the_em() -> None:
    method, batch = small(), tiny_episodes(INFO, training=True)
    loss = method.training_step(batch, 0)
    together = method._embed(torch.cat([batch["support_x"], batch["query_x"]], 1))
    u, v = together[:, :6], together[:, 6:]
    answers = query_log_posterior(
        unrolled_em(u, method.training_labels(batch["support_y"], 0), 3, 2, 1.0, 10.0, 1.0), v
    )
    expected = -answers.gather(2, batch["query_y"].unsqueeze(2)).mean()
    torch.testing.assert_close(loss, expected)


def test_gradients_through_the_last_step_only_are_others_at_the_same_loss() -> None:
    losses, gradients = [], []
    for last in (False, True):
        method = small(last_step_only=last, scale=0.1)
        loss = method.training_step(tiny_episodes(INFO, training=True), 0)
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append(torch.cat([p.grad.flatten() for p in method.parameters() if p.grad is not None]))
    assert losses[0] == losses[1] and (gradients[0] - gradients[1]).abs().max() > 1e-6
    assert torch.isfinite(gradients[1]).all()


def test_with_clean_labels_and_a_flat_prior_it_is_the_prototypical_network() -> None:
    """The same weights at the same seed, and one step at tau = 0 is prototypes and distances."""
    settings: dict[str, Any] = {"backbone": "mlp"}
    torch.manual_seed(0)
    prototypical = Prototypical(INFO, **settings)
    method = small(steps=1, tau=0.0, pseudo_annotation=False, pseudo_annotators=(2,))
    for name, value in prototypical.state_dict().items():
        assert torch.equal(value, method.state_dict()[name]), name
    batch = tiny_episodes(INFO, training=True)
    loss, expected = method.training_step(batch, 0), prototypical.training_step(batch, 0)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)


# --- training -------------------------------------------------------------------------------------


def test_2000_training_episodes_leave_memory_flat() -> None:
    """checks.md 23 (learn2learn#284, #88): memory grew with each episode. Tensors alive are counted, step by step."""
    counts: list[int] = []

    class Count(L.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            if len(counts) in (20, 199):
                gc.collect()
            counts.append(
                sum(isinstance(thing, Tensor) for thing in gc.get_objects()) if len(counts) in (20, 199) else 0
            )

    batches = [tiny_episodes(INFO, seed, training=True) for seed in range(4)]
    batches = [{name: torch.cat([value] * 4)[:10] for name, value in batch.items()} for batch in batches]
    loader = torch.utils.data.DataLoader(batches * 50, batch_size=None)  # type: ignore[arg-type]
    with quiet():
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[Count()],
        )
        trainer.fit(small(), loader)
    assert len(counts) == 200 and counts[199] <= counts[20] + 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps 0"),
        ({"tau": -1.0}, "tau is -1.0"),
        ({"pseudo_annotators": ()}, "pseudo_annotators is"),
        ({"spammer_share": 0.4}, "must not be negative and sum to 1"),
        ({"expert_share": -0.1, "hammer_share": 0.9}, "must not be negative"),
        ({"hammer_accuracy": 1.2}, "hammer_accuracy is 1.2"),
        ({"variational": True, "tau": 0.0}, "needs tau above 0"),
        ({"variational": True, "last_step_only": True}, "last_step_only=False"),
        ({"backbone": "conv5"}, "conv4"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**arguments)
