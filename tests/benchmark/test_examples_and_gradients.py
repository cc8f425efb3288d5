"""Examples and gradients: per-item numbers by hand, and the gradient's variance by enumerating the labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy, spearmanr
from torch import Tensor, nn
from torch.nn import functional as F

from benchmark.contracts.tiny import TinyCrowd
from benchmark.evaluate import evaluate
from benchmark.evaluate.gradients import label_noise
from datamodules.base import CrowdData, DataInfo
from models.base import Batch, CrowdModule

INFO = DataInfo(n_classes=4, n_annotators=5, input_shape=(1, 4, 4))


class Net(CrowdModule):
    def __init__(self, data_info: DataInfo) -> None:
        super().__init__(data_info)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Tanh())
        self.classifier = nn.Linear(6, 4)

    def predict_consensus(self, x: Tensor) -> Tensor:
        return self.classifier(self.body(x)).log_softmax(-1)

    def embed(self, x: Tensor) -> Tensor | None:
        features: Tensor = self.body(x)
        return features

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        raise NotImplementedError


class Featureless(Net):
    def embed(self, x: Tensor) -> Tensor | None:
        return None


class WithFullVotes(TinyCrowd):
    def load(self) -> CrowdData:
        data = super().load()
        more = torch.randint(0, 4, (self.n_items, 4), generator=torch.Generator().manual_seed(4))
        votes = data.annotations.votes() + more
        votes[1] = 0  # nobody knows anything of this one
        return replace(data, full_votes=votes)


@pytest.fixture(scope="module")
def case() -> tuple[Net, WithFullVotes]:
    datamodule = WithFullVotes("mixed", data_info=INFO, eval_batch_size=7)
    datamodule.setup()
    torch.manual_seed(0)
    return Net(datamodule.info).eval(), datamodule


def test_examples_compare_with_the_full_votes_of_the_same_item(case: tuple[Net, WithFullVotes]) -> None:
    net, datamodule = case
    measured = evaluate(net, datamodule, ["examples"])
    items, data = datamodule.train_items, datamodule.data
    assert data.full_votes is not None
    x = (data.x[items].float() / 255 - 0.5) / 0.25
    q = net.predict_consensus(x).detach().double().exp().numpy()
    with np.errstate(invalid="ignore"):
        full = (data.full_votes[items].double() / data.full_votes[items].sum(1, keepdim=True)).numpy()
        votes = datamodule.train_annotations.votes()[items].double()
        sparse = (votes / votes.sum(1, keepdim=True)).numpy()
        costs, distances = -(full * np.log(q)).sum(1), jensenshannon(sparse, full, axis=1) ** 2
    found = {name: np.array(values, dtype=float) for name, values in measured.arrays.items()}
    assert np.isnan(costs).sum() <= 1 and np.isnan(distances).any()
    assert found["example_soft_nll"] == pytest.approx(costs, abs=2e-6, nan_ok=True)
    assert found["example_distance"] == pytest.approx(distances, abs=2e-6, nan_ok=True)
    assert measured.metrics["train_soft_nll_full"] == pytest.approx(np.nanmean(costs), abs=1e-6)
    assert all(
        value is None or len(str(abs(value)).split("e")[0]) <= 9 for value in measured.arrays["example_distance"]
    )


@given(seed=st.integers(0, 99), n_classes=st.integers(2, 5))
def test_label_noise_is_the_variance_over_all_labels_of_the_last_layers_gradient(seed: int, n_classes: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(n_classes, 3, generator=generator).double().requires_grad_()
    bias = torch.randn(n_classes, generator=generator).double().requires_grad_()
    h = torch.randn(3, generator=generator).double()
    p = torch.randn(n_classes, generator=generator).mul(2).double().softmax(0)
    gradients = []
    for label in range(n_classes):
        loss = F.cross_entropy((weight @ h + bias).unsqueeze(0), torch.tensor([label]))
        parts = torch.autograd.grad(loss, (weight, bias))
        gradients.append(torch.cat([part.flatten() for part in parts]))
    away = torch.stack(gradients) - p @ torch.stack(gradients)
    expected = float((p * away.square().sum(1)).sum())
    assert float(label_noise(h.unsqueeze(0), p.unsqueeze(0))) == pytest.approx(expected, abs=1e-12)


def test_gradient_variance_is_correlated_with_the_votes_entropy(case: tuple[Net, WithFullVotes]) -> None:
    net, datamodule = case
    measured = evaluate(net, datamodule, ["gradients"])
    votes = datamodule.train_annotations.votes()[datamodule.train_items].double().numpy()
    voted = votes.sum(1) > 0
    assert measured.arrays["vote_entropy"] == pytest.approx(entropy(votes[voted], axis=1), abs=1e-6)
    assert len(measured.arrays["gradient_variance"]) == voted.sum() < len(votes)
    arrays = [np.array(measured.arrays[name]).round(5) for name in ("gradient_variance", "vote_entropy")]
    expected = spearmanr(*arrays).statistic
    assert measured.metrics["gradient_entropy_correlation"] == pytest.approx(expected, abs=1e-6)


def test_a_method_without_features_has_no_correlation(case: tuple[Net, WithFullVotes]) -> None:
    measured = evaluate(Featureless(INFO), case[1], ["gradients"])
    assert dict(measured.metrics) == {"gradient_entropy_correlation": None} and not measured.arrays
