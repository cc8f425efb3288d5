"""Out-of-distribution scores: areas as by hand and by scikit-learn, each score as its paper writes it."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import empirical_covariance
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torch import Tensor, nn

from benchmark.contracts.tiny import TinyCrowd
from benchmark.evaluate import evaluate, ood
from benchmark.evaluate.detection import separation
from benchmark.evaluate.ood_scores import (
    ODIN_EPSILON,
    ODIN_TEMPERATURE,
    SCORES,
    SHRINKAGE,
    FeatureGaussians,
    odin_score,
    output_scores,
)
from datamodules.base import DataInfo
from models.base import Batch, CrowdModule

INFO = DataInfo(n_classes=4, n_annotators=5, input_shape=(1, 4, 4))
KINDS = ("auroc", "aupr", "fpr95")


class Net(CrowdModule):
    def __init__(self, data_info: DataInfo = INFO) -> None:
        super().__init__(data_info)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Tanh())
        self.classifier = nn.Linear(6, 4)

    def predict_consensus(self, x: Tensor) -> Tensor:
        return self.classifier(self.body(x)).log_softmax(-1)

    def class_logits(self, x: Tensor) -> Tensor | None:
        logits: Tensor = self.classifier(self.body(x))
        return logits

    def embed(self, x: Tensor) -> Tensor | None:
        features: Tensor = self.body(x)
        return features

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        raise NotImplementedError


class OnlyConsensus(Net):
    def class_logits(self, x: Tensor) -> Tensor | None:
        return None

    def embed(self, x: Tensor) -> Tensor | None:
        return None


class WithOthers(TinyCrowd):
    ood_sets: ClassVar[tuple[str, ...]] = ("stripes", "nowhere")

    def load_ood(self, name: str) -> Tensor:
        assert name == "stripes"
        return torch.randint(0, 256, (31, 1, 4, 4), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)

    def ood_digest(self, name: str) -> str | None:
        return "abc" if name == "stripes" else None


@pytest.fixture(scope="module")
def case() -> tuple[Net, WithOthers]:
    datamodule = WithOthers("mixed", data_info=INFO)
    datamodule.setup()
    torch.manual_seed(0)
    return Net().eval(), datamodule


# --- areas ----------------------------------------------------------------------------------------

few_values = st.lists(st.integers(0, 6), min_size=1, max_size=30)


@settings(max_examples=60)
@given(inside=few_values, outside=few_values)
def test_areas_are_those_by_hand_and_by_scikit_learn_ties_included(inside: list[int], outside: list[int]) -> None:
    found = separation(torch.tensor(inside), torch.tensor(outside))
    pairs = [1.0 if o > i else 0.5 if o == i else 0.0 for o in outside for i in inside]
    assert found["auroc"] == pytest.approx(np.mean(pairs))
    truth = np.repeat([0, 1], [len(inside), len(outside)])
    scores = np.array(inside + outside, dtype=float)
    assert found["auroc"] == pytest.approx(roc_auc_score(truth, scores))
    assert found["aupr"] == pytest.approx(average_precision_score(truth, scores))
    accepted_wrongly, accepted_rightly, _ = roc_curve(1 - truth, -scores, drop_intermediate=False)
    assert found["fpr95"] == pytest.approx(accepted_wrongly[accepted_rightly >= 0.95 - 1e-12][0])


def test_false_positives_are_counted_where_95_of_100_test_items_are_accepted() -> None:
    inside = torch.arange(100.0)
    assert separation(inside, torch.tensor([94.0, 94.5, 95.0, 200.0]))["fpr95"] == 0.25
    assert separation(inside, inside + 1000) == {"auroc": 1.0, "aupr": 1.0, "fpr95": 0.0}
    with pytest.raises(ValueError, match="0 test items against 2"):
        separation(inside[:0], inside[:2])
    with pytest.raises(ValueError, match="NaN or infinite"):
        separation(inside, torch.tensor([float("nan")]))


# --- scores ---------------------------------------------------------------------------------------


def test_scores_of_the_outputs_are_those_of_their_papers(case: tuple[Net, WithOthers]) -> None:
    net, x = case[0], torch.rand(7, 1, 4, 4)
    logits = net.class_logits(x).detach().double().numpy()  # type: ignore[union-attr]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    found = output_scores(net, x)
    expected = {
        "msp": -probabilities.max(1),
        "entropy": -(probabilities * np.log(probabilities)).sum(1),
        "max_logit": -logits.max(1),
        "energy": -np.log(np.exp(logits).sum(1)),
    }
    for name, values in expected.items():
        assert found[name].detach().numpy() == pytest.approx(values, abs=1e-6)


def test_odin_steps_towards_the_predicted_class_by_epsilon_pixels(case: tuple[Net, WithOthers]) -> None:
    # for a linear network the gradient is known: (w_y - mean of w under the softmax) / T
    net, x = Net(), torch.rand(5, 1, 4, 4)
    net.body = nn.Sequential(nn.Flatten(), nn.Identity())
    net.classifier = nn.Linear(16, 4)
    with torch.inference_mode():  # as evaluate() calls it
        found = odin_score(net, x.clone(), std=(0.25,))
    weight, flat = net.classifier.weight.detach(), x.flatten(1)
    scaled = (flat @ weight.T + net.classifier.bias.detach()) / ODIN_TEMPERATURE
    gradient = weight[scaled.argmax(1)] - scaled.softmax(1) @ weight
    moved = flat + ODIN_EPSILON / 0.25 * gradient.sign()
    outputs = (moved @ weight.T + net.classifier.bias.detach()).double() / ODIN_TEMPERATURE
    assert found is not None and torch.allclose(found, -outputs.softmax(1).amax(1), atol=1e-9)
    assert all(value.grad is None for value in net.parameters())
    assert odin_score(OnlyConsensus(), x, None) is None


def test_mahalanobis_is_the_distance_to_the_nearest_class_under_the_shared_covariance() -> None:
    torch.manual_seed(0)
    features, labels = torch.randn(60, 3).double(), torch.arange(60) % 2 * 2  # class 1 has no item
    features[labels == 2] += 3
    gaussians = FeatureGaussians.fit(features, labels)
    means = np.stack([features[labels == k].mean(0).numpy() for k in (0, 2)])
    covariance = empirical_covariance(features.numpy() - means[labels.numpy() // 2], assume_centered=True)
    shrunk = (1 - SHRINKAGE) * covariance + SHRINKAGE * np.trace(covariance) / 3 * np.eye(3)
    probes = torch.randn(8, 3).double()
    away = probes.numpy()[:, None] - means
    expected = np.einsum("nki,ij,nkj->nk", away, np.linalg.inv(shrunk), away).min(1)
    assert gaussians.distance(probes).numpy() == pytest.approx(expected)


def test_the_covariance_is_never_singular() -> None:
    dead = FeatureGaussians.fit(torch.zeros(4, 5), torch.tensor([0, 0, 1, 1]))
    assert torch.isfinite(dead.distance(torch.randn(3, 5))).all()
    one_item = FeatureGaussians.fit(torch.randn(1, 5), torch.tensor([2]))
    assert torch.isfinite(one_item.distance(torch.randn(3, 5))).all()


# --- the protocol ---------------------------------------------------------------------------------


def test_every_number_of_a_set_is_that_of_its_scores(case: tuple[Net, WithOthers]) -> None:
    net, datamodule = case
    measured = evaluate(net, datamodule, ["ood"])
    scores = [*SCORES, "mean"]
    assert set(measured.metrics) == {f"stripes_{score}_{kind}" for score in scores for kind in KINDS}
    images = [(x.float() / 255 - 0.5) / 0.25 for x in (datamodule.data.test_x, datamodule.load_ood("stripes"))]
    inside, outside = (-net.class_logits(x).detach().double().amax(1) for x in images)  # type: ignore[union-attr]
    truth = np.repeat([0, 1], [len(inside), len(outside)])
    expected = roc_auc_score(truth, torch.cat([inside, outside]).numpy())
    assert measured.metrics["stripes_max_logit_auroc"] == pytest.approx(expected)
    for kind in KINDS:
        values = [measured.metrics[f"stripes_{score}_{kind}"] for score in SCORES]
        assert measured.metrics[f"stripes_mean_{kind}"] == pytest.approx(np.mean(values))  # type: ignore[arg-type]
    assert evaluate(net, datamodule, ["ood"]) == measured


def test_an_absent_set_is_a_note_with_the_command_that_gets_it(case: tuple[Net, WithOthers]) -> None:
    (note,) = evaluate(*case, ["ood"]).notes
    assert "nowhere" in note and "`annobench data prepare nowhere`" in note


def test_what_a_method_cannot_give_is_none_and_so_is_the_mean(case: tuple[Net, WithOthers]) -> None:
    metrics = evaluate(OnlyConsensus(), case[1], ["ood"]).metrics
    given_ = {name for name, value in metrics.items() if value is not None}
    assert given_ == {f"stripes_{score}_{kind}" for score in ("msp", "entropy") for kind in KINDS}


def test_without_labels_there_are_no_class_means(case: tuple[Net, WithOthers]) -> None:
    datamodule = WithOthers("missing", data_info=INFO)
    datamodule.setup()
    metrics = evaluate(case[0], datamodule, ["ood"]).metrics
    assert metrics["stripes_mahalanobis_auroc"] is None and metrics["stripes_odin_auroc"] is not None


def test_encoded_data_says_why_its_images_are_not_measured() -> None:
    datamodule = WithOthers("mixed", data_info=INFO)
    datamodule.setup()
    datamodule.represent(datamodule.data.x.flatten(1).float(), datamodule.data.test_x.flatten(1).float())
    measured = evaluate(OnlyConsensus(), datamodule, ["ood"])
    assert not measured.metrics and any("encoded features" in note for note in measured.notes)


def test_the_digest_follows_the_files(case: tuple[Net, WithOthers], monkeypatch: pytest.MonkeyPatch) -> None:
    before = ood.data_digest(case[1])
    assert before == ood.data_digest(WithOthers("mixed", data_info=INFO))
    monkeypatch.setattr(WithOthers, "ood_digest", lambda self, name: "abc")
    assert ood.data_digest(case[1]) != before


def test_large_sets_are_cut_to_the_same_choice_every_time() -> None:
    images = torch.arange(ood.MAX_ITEMS + 500)
    chosen = ood.chosen_items("svhn", images)
    assert len(chosen.unique()) == ood.MAX_ITEMS and torch.equal(chosen, ood.chosen_items("svhn", images))
    assert not torch.equal(chosen, ood.chosen_items("cifar100", images))
    assert len(ood.chosen_items("svhn", images[:20])) == 20


def test_on_real_images_the_sets_at_hand_are_measured(real_data: Path) -> None:
    from datamodules.cifar10h import Cifar10H
    from models.cross_entropy.module import CrossEntropy

    datamodule = Cifar10H("full", root=real_data)
    datamodule.setup()
    method = CrossEntropy(datamodule.info, backbone="mlp")
    measured = evaluate(method, datamodule, ["ood"])
    present = [name for name in datamodule.ood_sets if datamodule.ood_digest(name)]
    assert present and all(measured.metrics[f"{name}_mean_auroc"] is not None for name in present)
    assert len(measured.notes) == len(datamodule.ood_sets) - len(present)
