"""MAML by learn2learn, on episodes with several annotators."""

from __future__ import annotations

import copy
import gc
import os
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

pytest.importorskip("learn2learn", reason="learn2learn is built by `make setup`")

from benchmark.testing import iter_checks
from datamodules.base import DataInfo
from models.maml.module import Maml, soft_cross_entropy
from models.maml.network import SupportNorm, replace_batch_norms

INFO = DataInfo(n_classes=3, n_annotators=2, input_shape=(5,))
IMAGES = DataInfo(n_classes=3, n_annotators=2, input_shape=(1, 8, 8))


def episodes(shape: tuple[int, ...] = (5,), seed: int = 0) -> dict[str, Tensor]:
    """Two episodes of six support and three query items."""
    generator = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(2, 3, *shape, generator=generator)
    support_y, query_y = torch.arange(6) % 3, torch.arange(3)
    return {
        "support_x": centres[:, support_y] + 0.3 * torch.randn(2, 6, *shape, generator=generator),
        "support_y": support_y.expand(2, 6),
        "support_labels": support_y.view(1, 6, 1).expand(2, 6, 2).clone(),
        "query_x": centres[:, query_y] + 0.3 * torch.randn(2, 3, *shape, generator=generator),
        "query_y": query_y.expand(2, 3),
    }


def linear(**arguments: object) -> Maml:
    torch.manual_seed(0)
    return Maml(INFO, backbone="linear", **arguments)  # type: ignore[arg-type]


def hand_made(method: Maml, x: Tensor, targets: Tensor, query: Tensor, steps: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Query logits after gradient steps by ``torch.func``, and a function's graph back to the initial weights."""
    start = dict(method.network.named_parameters())
    weights = dict(start)

    def loss(at: dict[str, Tensor]) -> Tensor:
        return soft_cross_entropy(torch.func.functional_call(method.network, at, (x,)), targets)

    for _ in range(steps):
        gradients = torch.func.grad(loss)(weights)
        weights = {name: weights[name] - method.inner_lr * gradients[name] for name in weights}
    return torch.func.functional_call(method.network, weights, (query,)), start


@pytest.mark.parametrize("check", list(iter_checks(Maml, backbone="conv4_narrow", inner_lr=0.1)), ids=str)
def test_contract(check) -> None:  # type: ignore[no-untyped-def]
    check()


# --- oracles --------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 3])
def test_adapting_is_gradient_descent_on_the_soft_labels(steps: int) -> None:
    method, batch = linear(inner_steps=steps), episodes()
    batch["support_labels"][0, 0] = torch.tensor([0, 1])  # fractions of one half
    found = method.answer(batch, "majority")
    targets = F.one_hot(batch["support_y"], 3).float()
    targets[0, 0] = torch.tensor([0.5, 0.5, 0.0])
    for t in range(2):
        logits, _ = hand_made(method, batch["support_x"][t], targets[t], batch["query_x"][t], steps)
        torch.testing.assert_close(found[t], logits.log_softmax(1))


@pytest.mark.parametrize("first_order", [False, True])
def test_the_meta_gradient_goes_through_the_steps(first_order: bool) -> None:
    method, batch = linear(inner_steps=2, first_order=first_order), episodes()
    method.training_step(batch, 0).backward()
    losses = []
    for t in range(2):
        targets = F.one_hot(batch["support_y"][t], 3).float()
        logits, start = hand_made(method, batch["support_x"][t], targets, batch["query_x"][t], 2)
        losses.append(F.cross_entropy(logits, batch["query_y"][t]))
    expected = torch.autograd.grad(torch.stack(losses).mean(), list(start.values()))
    close = [
        torch.allclose(parameter.grad, gradient, atol=1e-6)  # type: ignore[arg-type]
        for parameter, gradient in zip(start.values(), expected, strict=True)
    ]
    assert all(close) is not first_order


def test_the_support_normalises_as_batch_norm_does_and_queries_do_not() -> None:
    norm = nn.BatchNorm2d(4)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(7, 4, 3, 3)
    ours = SupportNorm(norm)
    ours.n_support = 5
    torch.testing.assert_close(ours(x)[:5], norm(x[:5]))
    changed = torch.cat([x[:6], 9 * x[6:]])
    torch.testing.assert_close(ours(changed)[:6], ours(x)[:6])


# --- missing labels -------------------------------------------------------------------------------


def test_items_without_labels_take_no_part() -> None:
    torch.manual_seed(0)
    method, batch = Maml(IMAGES, backbone="conv4_narrow"), episodes((1, 8, 8))
    x, labels = batch["support_x"], batch["support_labels"]
    for adaptation in method.adaptations:
        plain = method.answer(batch, adaptation)
        longer = {
            **batch,
            "support_x": torch.cat([x, 5 + x[:, :2]], dim=1),
            "support_labels": torch.cat([labels, torch.full_like(labels[:, :2], -1)], dim=1),
        }
        torch.testing.assert_close(method.answer(longer, adaptation), plain)


def test_without_any_label_the_initial_weights_answer() -> None:
    method, batch = linear(), episodes()
    batch["support_labels"] = torch.full_like(batch["support_labels"], -1)
    expected = method.network(batch["query_x"].flatten(0, 1)).view(2, 3, 3).log_softmax(2)
    torch.testing.assert_close(method.answer(batch, "dawid_skene"), expected)


# --- what else is promised ------------------------------------------------------------------------


@pytest.mark.parametrize("adaptation", Maml.adaptations)
def test_neither_other_tasks_nor_the_order_of_annotators_and_items_matter(adaptation: str) -> None:
    # the contract asks this of adaptations that are not 'randomised', of which MAML has none: its classes have rows
    torch.manual_seed(0)
    method, batch = Maml(IMAGES, backbone="conv4_narrow", inner_lr=0.05), episodes((1, 8, 8))
    batch["support_labels"][:, 0, 1] = 2  # the annotators differ
    batch["support_labels"][1, 3] = -1
    together = method.answer(batch, adaptation)
    for t in range(2):
        alone = method.answer({name: value[t : t + 1] for name, value in batch.items()}, adaptation)
        torch.testing.assert_close(alone[0], together[t])
    x, labels = batch["support_x"], batch["support_labels"]
    turned = method.answer({**batch, "support_labels": labels.flip(2)}, adaptation)
    torch.testing.assert_close(turned, together)
    turned = method.answer({**batch, "support_x": x.flip(1), "support_labels": labels.flip(1)}, adaptation)
    torch.testing.assert_close(turned, together, atol=1e-4, rtol=1e-4)


def test_validation_runs_in_inference_mode() -> None:
    torch.manual_seed(0)
    method, batch = Maml(IMAGES, backbone="conv4_narrow").eval(), episodes((1, 8, 8))
    expected = method.answer(batch, "majority").detach()
    with torch.inference_mode():
        found = method.answer({name: value.clone() for name, value in batch.items()}, "majority")
    torch.testing.assert_close(found, expected)


def test_a_failing_gradient_is_not_told_as_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    # learn2learn printed the failure and went on, to fail for want of a variable
    def out_of_memory(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr("learn2learn.algorithms.maml.grad", out_of_memory)
    with pytest.raises(RuntimeError, match="out of memory"):
        linear().training_step(episodes(), 0)


def test_the_papers_two_rows_select_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    # by vote fractions, an early epoch was chosen where the other two went on rising
    batch = episodes()
    right = {"majority": 0, "majority_hard": 6, "dawid_skene": 3}  # of six query items
    method, logged = linear(), {}

    def answer(self: Maml, batch: dict[str, Tensor], adaptation: str) -> Tensor:
        wrong = torch.arange(6).view(2, 3) >= right[adaptation]
        return F.one_hot((batch["query_y"] + wrong) % 3, 3).float().log()

    monkeypatch.setattr(Maml, "answer", answer)
    monkeypatch.setattr(Maml, "log", lambda self, name, value, **_: logged.update({name: float(value)}))
    method.validation_step(batch, 0)
    assert logged == {"val_accuracy": pytest.approx((6 + 3) / 12)}


def test_meta_training_lowers_the_query_loss() -> None:
    method = linear(inner_lr=0.05)
    optimiser = torch.optim.Adam(method.parameters(), lr=0.01)
    before = copy.deepcopy(method.state_dict())
    losses = []
    for seed in range(60):
        optimiser.zero_grad()
        loss = method.training_step(episodes(seed=seed), seed)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-15:]) < sum(losses[:15])
    assert any(not torch.equal(value, before[name]) for name, value in method.state_dict().items())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_flat_over_episodes() -> None:
    # checks.md 23 (learnables/learn2learn#284, #88): memory grew with each episode, in training and in validation
    torch.manual_seed(0)
    method = Maml(IMAGES, backbone="conv4_narrow")
    batch = {name: value[:1] for name, value in episodes((1, 8, 8)).items()}

    def run(count: int) -> tuple[int, int]:
        for _ in range(count):
            method.zero_grad()
            method.training_step(batch, 0).backward()
            method.answer(batch, "majority")
        gc.collect()
        tensors = sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())
        with open("/proc/self/statm") as pages:
            return tensors, int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    run(50)
    first, second = run(10), run(250)  # each trains on one episode and adapts to another: 500
    assert second[0] <= first[0]
    assert second[1] - first[1] < 8 * 2**20  # an episode's networks and graph take about a megabyte


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inner_steps": 0}, "inner_steps is 0"),
        ({"inner_lr": 0.0}, "inner_lr is 0.0"),
        ({"gradient_clip": 0.0}, "gradient_clip 0.0"),
        ({"backbone": "conv5"}, "conv4"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Maml(IMAGES, **arguments)  # type: ignore[arg-type]


def test_other_kinds_of_batch_norm_are_refused() -> None:
    class WithActivation(nn.BatchNorm2d):
        pass

    with pytest.raises(ValueError, match="WithActivation"):
        replace_batch_norms(nn.Sequential(WithActivation(3)), "efficientnet")


def test_without_learn2learn_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "learn2learn", None)
    with pytest.raises(ImportError, match="make setup"):
        linear()
