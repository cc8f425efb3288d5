"""Flatness: the eigenvalue and the trace are those of the dense Hessian, and measuring leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from benchmark.contracts.tiny import TinyCrowd
from benchmark.evaluate import evaluate, flatness
from datamodules.base import DataInfo
from models.base import Batch, CrowdModule

#: a method's flatness, as a cell of the grid measures it
FRESH = """
from benchmark.contracts.tiny import TinyCrowd
from benchmark.evaluate import evaluate
from datamodules.base import DataInfo
from models.cross_entropy.module import CrossEntropy

datamodule = TinyCrowd("mixed", data_info=DataInfo(n_classes=4, n_annotators=5, input_shape=(1, 4, 4)))
datamodule.setup()
evaluate(CrossEntropy(datamodule.info, backbone="linear").eval(), datamodule, ["flatness"])
"""
METRICS = ("hessian_top_eigenvalue", "hessian_top_eigenvalue_error", "hessian_trace", "hessian_trace_error")
INFO = DataInfo(n_classes=4, n_annotators=5, input_shape=(1, 4, 4))


class Net(CrowdModule):
    """A small network; ``smooth`` has second derivatives within a layer, which ReLU has not."""

    def __init__(self, data_info: DataInfo, *, width: int = 8, smooth: bool = False) -> None:
        super().__init__(data_info)
        inputs = int(torch.Size(data_info.input_shape).numel())
        act = nn.Tanh if smooth else nn.ReLU
        hidden = [nn.Linear(inputs, width), nn.BatchNorm1d(width), act(), nn.Linear(width, width), act()]
        self.body = nn.Sequential(nn.Flatten(), *hidden, nn.Dropout(0.5))
        self.classifier = nn.Linear(width, data_info.n_classes)
        self.unused = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def predict_consensus(self, x: Tensor) -> Tensor:
        return self.classifier(self.body(x)).log_softmax(-1)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        raise NotImplementedError


def trained(net: Net, x: Tensor, targets: Tensor, steps: int = 200) -> Net:
    optimiser = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    for rows in torch.randint(len(x), (steps, 64), generator=torch.Generator().manual_seed(1)):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net.predict_consensus(x[rows]), targets[rows]).backward()
        optimiser.step()
    return net.eval()


def problem(width: int, smooth: bool, n_items: int = 150) -> tuple[Net, Tensor, Tensor]:
    """A trained network, items and soft targets."""
    torch.manual_seed(0)
    x = torch.randn(n_items, 6)
    targets = (2 * x[:, :4] + torch.randn(n_items, 4)).softmax(1)
    return trained(Net(DataInfo(4, 2, (6,)), width=width, smooth=smooth), x, targets), x, targets


def dense_hessian(net: Net, x: Tensor, targets: Tensor) -> Tensor:
    """``[D, D]`` float64, written down without curvlinops."""
    parameters = {name: value.detach().double() for name, value in net.named_parameters() if value.requires_grad}
    rest = {name: value.double() for name, value in net.state_dict().items() if name not in parameters}
    sizes = [value.numel() for value in parameters.values()]

    def loss(flat: Tensor) -> Tensor:
        parts = zip(parameters.items(), flat.split(sizes), strict=True)
        state = {**rest, **{name: part.view_as(value) for (name, value), part in parts}}
        h = functional_call(net.body, _below(state, "body."), (x.double(),))
        logits = h @ state["classifier.weight"].T + state["classifier.bias"]
        return -(targets.double() * logits.log_softmax(1)).sum(1).mean()

    hessian = torch.func.hessian(loss)(torch.cat([value.flatten() for value in parameters.values()]))
    assert isinstance(hessian, Tensor)
    return hessian


def _below(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def batches(x: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(64), targets.split(64), strict=True))  # the last is smaller


@pytest.mark.parametrize("smooth", [False, True], ids=["relu", "tanh"])
@pytest.mark.parametrize("width", [8, 28], ids=["whole matrix", "estimated"])
def test_eigenvalue_and_trace_are_within_one_percent_of_the_dense_hessian(width: int, smooth: bool) -> None:
    net, x, targets = problem(width, smooth)
    eigenvalues = torch.linalg.eigvalsh(dense_hessian(net, x, targets))
    found = flatness.curvature(flatness.hessian_operator(net, batches(x, targets)))
    assert (found.how == "the whole matrix") == (width == 8)
    assert found.top_eigenvalue == pytest.approx(float(eigenvalues[-1]), rel=0.01)
    assert found.trace == pytest.approx(float(eigenvalues.sum()), rel=0.01)
    assert found.trace_error < 0.01 * found.trace


@pytest.mark.parametrize("smooth", [False, True], ids=["relu", "tanh"])
def test_what_a_large_network_gets_finds_the_eigenvalue_and_knows_how_far_its_trace_may_be_off(
    smooth: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network of some hundred thousand parameters gets 12 Lanczos steps and 30 probes; here a small one does."""
    monkeypatch.setattr(flatness, "LANCZOS_STEPS", (12, 12))
    monkeypatch.setattr(flatness, "PROBES", (30, 30))
    net, x, targets = problem(28, smooth)
    eigenvalues = torch.linalg.eigvalsh(dense_hessian(net, x, targets))
    found = flatness.curvature(flatness.hessian_operator(net, batches(x, targets)))
    assert found.how.startswith("12 Lanczos steps, and 30 probes")
    assert found.top_eigenvalue == pytest.approx(float(eigenvalues[-1]), rel=0.01)
    assert found.top_eigenvalue_error < 0.01 * found.top_eigenvalue
    assert abs(found.trace - float(eigenvalues.sum())) < 4 * found.trace_error


def test_probes_scatter_around_the_trace_as_their_standard_error_says() -> None:
    # 20 probes only, as a large network gets: off by some standard errors at most, and never by a bias
    net, x, targets = problem(8, smooth=False)
    exact = float(dense_hessian(net, x, targets).trace())
    operator = flatness.hessian_operator(net, batches(x, targets))
    generator = torch.Generator().manual_seed(0)
    basis, diagonal, _ = flatness.lanczos(operator, 5, generator)
    assert torch.allclose(basis.T @ basis, torch.eye(5), atol=1e-5)
    many = flatness.probe(operator, basis, 400, generator) + float(diagonal.sum())
    assert len(many) == 400
    assert abs(float(many.mean()) - exact) < 4 * float(many.std()) / 400**0.5
    assert float(many.std()) / 400**0.5 < 0.03 * exact


def test_lanczos_stops_where_the_space_is_exhausted() -> None:
    # with weights of 0 only the last bias has a curvature: 1/4 in three directions, 0 in all others
    net, x, _ = problem(8, smooth=True)
    with torch.no_grad():
        for value in net.parameters():
            value.zero_()
    operator = flatness.hessian_operator(net, batches(x, torch.full((len(x), 4), 0.25)))
    basis, diagonal, off_diagonal = flatness.lanczos(operator, 10, torch.Generator().manual_seed(0))
    assert basis.shape[1] == len(diagonal) == len(off_diagonal) < 10
    assert float(flatness.curvature(operator).top_eigenvalue) == pytest.approx(0.25, rel=1e-4)
    assert float(flatness.curvature(operator).trace) == pytest.approx(0.75, rel=1e-4)


@pytest.fixture(scope="module")
def case() -> tuple[Net, TinyCrowd]:
    datamodule = TinyCrowd("mixed", data_info=INFO)
    datamodule.setup()
    torch.manual_seed(0)
    return Net(datamodule.info), datamodule


def test_measuring_is_repeatable_and_leaves_weights_gradients_and_mode_alone(case: tuple[Net, TinyCrowd]) -> None:
    net, datamodule = case
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net.classifier.weight.grad = torch.ones_like(net.classifier.weight)
    torch.manual_seed(5)
    first = evaluate(net, datamodule, ["consensus", "flatness"])  # under inference mode, after another protocol
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), drawn)  # no draw from the global stream
    second = evaluate(net, datamodule, ["flatness"])
    assert all(first.metrics[name] == second.metrics[name] for name in METRICS)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(net.classifier.weight.grad, torch.ones_like(net.classifier.weight))
    assert net.body[0].training is False and net.body[1].weight.grad is None  # type: ignore[union-attr]
    assert "batch norm frozen" in first.notes[0]


def test_the_loss_is_on_votes_of_the_training_part_whatever_the_method(case: tuple[Net, TinyCrowd]) -> None:
    net, datamodule = case
    found = flatness.training_batches(net, datamodule)
    votes = datamodule.train_annotations.votes()
    voted = datamodule.train_items[votes[datamodule.train_items].sum(1) > 0]
    targets = torch.cat([part for _, part in found])
    assert len(targets) == min(flatness.ITEMS, len(voted))
    expected = votes[voted] / votes[voted].sum(1, keepdim=True)
    assert torch.allclose(targets, expected)
    assert torch.equal(flatness.subset(torch.arange(9000)), flatness.subset(torch.arange(9000)))
    assert len(flatness.subset(torch.arange(9000)).unique()) == flatness.ITEMS


def test_measuring_prints_no_warning_of_a_library() -> None:
    # both curvlinops' import and torch's first forward derivative use torch.jit: only a fresh process shows it
    found = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "FutureWarning" not in found.stderr


def test_without_a_vote_there_is_no_loss_and_no_number() -> None:
    datamodule = TinyCrowd("missing", data_info=INFO)
    datamodule.setup()
    measured = flatness.measure(Net(datamodule.info).eval(), datamodule)
    assert dict(measured.metrics) == dict.fromkeys(METRICS) and not measured.notes
