"""The distribution protocol: numbers by hand on a tiny data set with votes on its test items."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy, spearmanr
from torch import Tensor

from benchmark.contracts.tiny import TinyCrowd
from benchmark.evaluate import evaluate
from benchmark.evaluate.distribution import majority_accuracy
from benchmark.evaluate.measured import Measured
from datamodules.annotations import Annotations
from datamodules.base import CrowdData, DataInfo
from models.base import Batch, CrowdModule

INFO = DataInfo(n_classes=4, n_annotators=5, input_shape=(1, 4, 4))


class Fixed(CrowdModule):
    """Some distribution an item, from its pixels."""

    def predict_consensus(self, x: Tensor) -> Tensor:
        return (3 * x.flatten(1)[:, :4]).log_softmax(-1)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        raise NotImplementedError


class WithTestVotes(TinyCrowd):
    def load(self) -> CrowdData:
        data = super().load()
        votes = votes_of(len(data.test_x))
        items, classes = torch.arange(len(votes)).repeat_interleave(4), torch.arange(4).repeat(len(votes))
        repeats = votes.flatten()
        items, classes = items.repeat_interleave(repeats), classes.repeat_interleave(repeats)
        order = torch.cat([torch.arange(int(n)) for n in votes.sum(1)])
        noted = Annotations(items, order, classes, len(votes), int(votes.sum(1).max()), 4)
        return replace(data, test_annotations=noted)


def votes_of(n_items: int) -> Tensor:
    votes = torch.randint(-4, 5, (n_items, 4), generator=torch.Generator().manual_seed(2)).clamp_min(0)
    votes[:, 1] += 1
    votes[3] = 0  # an item without a vote
    return votes


def test_every_number_is_that_of_scipy_on_the_items_with_votes() -> None:
    datamodule = WithTestVotes("mixed", data_info=INFO, eval_batch_size=5)
    datamodule.setup()
    measured = evaluate(Fixed(datamodule.info), datamodule, ["distribution"])
    x = (datamodule.data.test_x.float() / 255 - 0.5) / 0.25
    known = torch.arange(len(x)) != 3
    q = (3 * x.flatten(1)[:, :4]).double().softmax(1)[known].numpy()
    votes = votes_of(len(x))[known].double()
    p = (votes / votes.sum(1, keepdim=True)).numpy()
    expected = {
        "test_soft_nll": (entropy(p, axis=1) + entropy(p, q, axis=1)).mean(),
        "test_kl": entropy(p, q, axis=1).mean(),
        "test_js": (jensenshannon(p, q, axis=1) ** 2).mean(),
        "test_soft_brier": ((p - q) ** 2).sum(1).mean(),
        "test_entropy_correlation": spearmanr(entropy(q, axis=1), entropy(p, axis=1).round(10)).statistic,
        "test_majority_accuracy": sum(p[i, q[i].argmax()] == p[i].max() for i in range(len(p))) / len(p),
    }
    found = dict(measured.metrics)
    assert 0 <= found.pop("test_ece_width") <= 1  # type: ignore[operator]
    assert found == pytest.approx(expected, abs=1e-6)


def test_any_of_the_tied_majorities_is_right() -> None:
    votes = torch.tensor([[2, 2, 0], [2, 2, 0], [2, 2, 0], [0, 0, 0]])
    assert majority_accuracy(torch.eye(3)[[0, 1, 2, 0]], votes) == pytest.approx(2 / 3)


def test_without_votes_on_test_items_there_is_nothing_to_measure() -> None:
    datamodule = TinyCrowd("mixed", data_info=INFO)
    datamodule.setup()
    assert evaluate(Fixed(datamodule.info), datamodule, ["distribution", "examples"]) == Measured()


def test_protocols_share_no_metric_and_merge() -> None:
    datamodule = WithTestVotes("mixed", data_info=INFO)
    datamodule.setup()
    both = evaluate(Fixed(datamodule.info), datamodule, ["consensus", "distribution"]).metrics
    assert {"test_accuracy", "test_ece", "test_ece_width", "test_soft_nll"} <= set(both)


def test_notes_merge_in_order_each_once_and_stay_when_names_get_a_prefix() -> None:
    first = Measured({"a": 1.0}, {"r": [1.0]}, ("x", "y"))
    second = Measured({"b": 2.0}, {}, ("y", "z"))
    assert first.merged_with(second) == Measured({"a": 1.0, "b": 2.0}, {"r": [1.0]}, ("x", "y", "z"))
    assert first.prefixed("best_") == Measured({"best_a": 1.0}, {"best_r": [1.0]}, ("x", "y"))
    with pytest.raises(ValueError, match=r"\['r'\]"):
        first.merged_with(Measured({}, {"r": [2.0]}))
