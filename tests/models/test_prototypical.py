"""Prototypical networks: prototypes by hand, each adaptation's labels, and what is remembered is never stale."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmark.contracts.tiny_episodes import tiny_episodes
from benchmark.testing import Check, iter_checks
from datamodules.base import DataInfo
from models.aggregation import dawid_skene_episodes, majority_episodes
from models.crowd_heads import fit_conal, fit_crowd_layer, predict
from models.prototypical.module import SMOOTHINGS, Prototypical
from models.prototypical.prototypes import class_prototypes, log_nearness

INFO = DataInfo(n_classes=3, n_annotators=4, input_shape=(1, 8, 8))


@pytest.mark.parametrize("check", iter_checks(Prototypical, backbone="conv4_narrow", head_steps=3), ids=str)
def test_contract(check: Check) -> None:
    check()


def small(**arguments: Any) -> Prototypical:
    torch.manual_seed(0)
    return Prototypical(INFO, backbone="mlp", **arguments).eval()


def test_one_hot_weights_give_snells_prototypes_with_half_the_distance() -> None:
    u, queries = torch.randn(2, 6, 5), torch.randn(2, 4, 5)
    y = torch.tensor([0, 1, 2, 2, 0, 0])
    one_hot = torch.nn.functional.one_hot(y, 3).float().expand(2, -1, -1)
    prototypes = class_prototypes(u, one_hot)
    expected = torch.stack([u[:, y == k].mean(1) for k in range(3)], dim=1)
    torch.testing.assert_close(prototypes, expected)
    distances = torch.cdist(queries, expected).square()
    torch.testing.assert_close(log_nearness(queries, prototypes), (-distances / 2).log_softmax(2))


def test_distances_far_from_the_origin_keep_their_digits() -> None:
    u, queries = torch.randn(1, 6, 5), torch.randn(1, 4, 5)
    weights = torch.rand(1, 6, 3)
    near = log_nearness(queries, class_prototypes(u, weights))
    far = log_nearness(queries + 1000, class_prototypes(u + 1000, weights))
    torch.testing.assert_close(far, near, rtol=0, atol=1e-2)


def test_a_class_without_weight_gets_the_middle_of_the_labelled_items() -> None:
    u = torch.tensor([[[0.0], [2.0], [10.0], [99.0]]])
    weights = torch.tensor([[[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0]]])
    assert class_prototypes(u, weights).flatten().tolist() == [1, 10, 4]
    assert class_prototypes(u, 0 * weights).flatten().tolist() == [27.75] * 3
    leaf = u.clone().requires_grad_()
    class_prototypes(leaf, 0 * weights).sum().backward()
    assert leaf.grad is not None and torch.isfinite(leaf.grad).all()


def test_each_adaptation_uses_the_labels_it_says() -> None:
    method, batch = small(head_steps=4, head_lr=0.1, dawid_skene_steps=5), tiny_episodes(INFO)
    x, labels = batch["support_x"], batch["support_labels"]
    labelled = (labels >= 0).any(2, keepdim=True)
    with torch.no_grad():
        u, v = method.embed(x), method.embed(batch["query_x"])
        expected: dict[str, Tensor] = {
            "majority": majority_episodes(labels, 3),
            "majority_hard": majority_episodes(labels, 3, hard=True),
            **{name: dawid_skene_episodes(labels, 3, 5, smoothing) for name, smoothing in SMOOTHINGS.items()},
        }
        for name, weights in expected.items():
            answers = log_nearness(v, class_prototypes(u, (weights * labelled).float()))
            torch.testing.assert_close(method.answer(batch, name), answers, msg=name)
        for name, fit in (("crowd_layer", fit_crowd_layer), ("conal", fit_conal)):
            answers = predict(fit(u, labels, 3, steps=4, lr=0.1), v)
            torch.testing.assert_close(method.answer(batch, name), answers, msg=name)
    assert set(method.adaptations) == {*expected, "crowd_layer", "conal"}
    assert len({tuple(method.answer(batch, name).flatten().tolist()) for name in method.adaptations}) == 7


def test_unlabelled_items_take_no_part() -> None:
    method, batch = small(), tiny_episodes(INFO)
    batch["support_labels"][:, 2] = -1
    keep = [1, 3, 4, 5]
    fewer = {**batch, "support_x": batch["support_x"][:, keep], "support_labels": batch["support_labels"][:, keep]}
    for name in ("majority", "majority_hard", *SMOOTHINGS):
        torch.testing.assert_close(method.answer(batch, name), method.answer(fewer, name))


def test_remembered_embeddings_are_never_stale() -> None:
    """Adaptations share embeddings; a step of training, other weights or other items in place must all be seen."""
    method, x = small(), torch.randn(2, 3, 1, 8, 8)
    calls: list[int] = []
    method.backbone.register_forward_hook(lambda *_: calls.append(1))

    def fresh() -> Tensor:
        return method._embed(x)

    with torch.no_grad():
        first = method.embed(x)
        assert method.embed(x) is first and len(calls) == 1
        for change in (
            lambda: x.add_(1),
            lambda: next(method.parameters()).mul_(2),
            lambda: method.load_state_dict(small(scale=3.0).state_dict()),
            lambda: next(method.buffers()).add_(0.5),
        ):
            change()
            assert torch.equal(method.embed(x), fresh())
        method.train()
        assert not method._seen
        for _ in range(9):
            method.eval().embed(torch.randn(1, 2, 1, 8, 8))
        assert len(method._seen) <= 4
    assert method.embed(x).requires_grad, "with gradients nothing is taken from memory"


def test_the_scale_multiplies_the_embedding_and_can_be_learned() -> None:
    x = torch.randn(1, 2, 1, 8, 8)
    torch.testing.assert_close(small(scale=3.0).embed(x), 3 * small().embed(x))
    assert not small().log_scale.requires_grad
    learned = small(scale=0.1, learn_scale=True).train()
    learned.training_step(tiny_episodes(INFO, training=True), 0).backward()
    assert learned.log_scale.grad is not None and learned.log_scale.grad.abs() > 0
    with pytest.raises(ValueError, match="scale is 0"):
        small(scale=0.0)
    with pytest.raises(ValueError, match="backbone 'linear' has no weights to train"):
        Prototypical(INFO, backbone="linear")


def test_training_learns_to_tell_new_classes_apart() -> None:
    """Classes differ in one corner of the image, the rest is noise: an untrained network sees mostly noise."""

    def batch(seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        found = tiny_episodes(INFO, seed, training=True)
        signs = torch.randn(3, 3, 4, generator=generator).sign()
        for part in ("support", "query"):
            x = 2 * torch.randn(found[f"{part}_x"].shape, generator=generator)
            own = signs.gather(1, found[f"{part}_y"].unsqueeze(2).expand(-1, -1, 4))
            x[..., 0, 0, :4] = 3 * own
            found[f"{part}_x"] = x
        return found

    def accuracy(method: Prototypical) -> float:
        hits = []
        with torch.no_grad():
            for seed in range(100, 120):
                tasks = batch(seed)
                tasks["support_labels"] = tasks.pop("support_y").unsqueeze(2)
                hits.append((method.answer(tasks, "majority").argmax(2) == tasks["query_y"]).float().mean())
        return float(torch.stack(hits).mean())

    method = small(lr=3e-3)
    before = accuracy(method)
    optimiser = method.train().configure_optimizers()
    for step in range(150):
        optimiser.zero_grad()
        method.training_step(batch(step), step).backward()
        optimiser.step()
    assert accuracy(method.eval()) > before + 0.1
