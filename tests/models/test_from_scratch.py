"""Learners that see one support set only."""

from __future__ import annotations

import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from benchmark.testing import iter_checks
from datamodules.base import DataInfo
from models.from_scratch.learners import fit_weighted, log_probabilities
from models.from_scratch.module import FromScratch

INFO = DataInfo(n_classes=3, n_annotators=3, input_shape=(4,))
FAST = {"trees": 5, "hidden": 8, "head_steps": 10}


def episodes(n_annotators: int = 3, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    truth, asked = torch.arange(9) % 3, torch.arange(6) % 3
    centres = 3 * torch.randn(2, 3, 4, generator=generator)
    return {
        "support_x": centres[:, truth] + 0.3 * torch.randn(2, 9, 4, generator=generator),
        "support_labels": truth.view(1, 9, 1).expand(2, 9, n_annotators).clone(),
        "query_x": centres[:, asked] + 0.3 * torch.randn(2, 6, 4, generator=generator),
        "query_y": asked.expand(2, 6),
    }


def build(**arguments: object) -> FromScratch:
    torch.manual_seed(0)
    return FromScratch(INFO, **{**FAST, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize("check", list(iter_checks(FromScratch, **FAST)), ids=str)
def test_contract(check) -> None:  # type: ignore[no-untyped-def]
    check()


@pytest.mark.parametrize("learner", ["logistic", "forest"])
def test_clean_labels_are_scikit_learns_own_answer(learner: str) -> None:
    method, batch = build(), episodes()
    own = {
        "logistic": LogisticRegression(tol=1e-8, max_iter=2000),
        "forest": RandomForestClassifier(5, random_state=int(method.seed)),
    }[learner]
    found = method.answer(batch, f"{learner}_majority").exp()
    for t in range(2):
        x, y = batch["support_x"][t].double().numpy(), batch["support_labels"][t, :, 0].numpy()
        own.fit(x, y, sample_weight=[1.0] * 9)  # without weights, a forest draws other subsamples
        expected = torch.from_numpy(own.predict_proba(batch["query_x"][t].double().numpy()))
        torch.testing.assert_close(found[t].double(), expected, rtol=0, atol=1e-5)


def test_soft_labels_are_examples_with_weights() -> None:
    x = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]], dtype=torch.float64)
    targets = torch.tensor([[1.0, 0.0], [0.75, 0.25], [0.25, 0.75], [0.0, 1.0]], dtype=torch.float64)
    fitted = fit_weighted(lambda: LogisticRegression(tol=1e-8), x, targets)
    counts = (4 * targets).long()
    rows = torch.arange(4).repeat_interleave(2).repeat_interleave(counts.flatten())
    classes = torch.arange(2).repeat(4).repeat_interleave(counts.flatten())
    copies = LogisticRegression(tol=1e-8, C=0.25).fit(x[rows].numpy(), classes.numpy())
    expected = torch.from_numpy(copies.predict_proba(x.numpy()))
    torch.testing.assert_close(log_probabilities(fitted, x, 2).exp(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("adaptation", FromScratch.adaptations)
def test_learns_the_classes(adaptation: str) -> None:
    batch = episodes()
    method = build(trees=30, head_steps=60, head_lr=0.02)
    assert (method.answer(batch, adaptation).argmax(2) == batch["query_y"]).double().mean() > 0.9


@pytest.mark.parametrize("adaptation", FromScratch.adaptations)
def test_items_without_labels_take_no_part(adaptation: str) -> None:
    method, batch = build(), episodes()
    x, labels = batch["support_x"], batch["support_labels"]
    longer = {
        **batch,
        "support_x": torch.cat([x, 9 + x[:, :2]], dim=1),
        "support_labels": torch.cat([labels, torch.full_like(labels[:, :2], -1)], dim=1),
    }
    torch.testing.assert_close(method.answer(longer, adaptation), method.answer(batch, adaptation), rtol=0, atol=1e-5)


def test_one_class_left_and_none() -> None:
    method, batch = build(), episodes()
    for adaptation in ("logistic_majority", "forest_majority"):
        one = method.answer({**batch, "support_labels": torch.ones_like(batch["support_labels"])}, adaptation).exp()
        assert (one[..., 1] > 0.999).all() and (one > 0).all()
        none = method.answer({**batch, "support_labels": -torch.ones_like(batch["support_labels"])}, adaptation).exp()
        torch.testing.assert_close(none, torch.full((2, 6, 3), 1 / 3))


def test_large_images_are_averaged_small_ones_kept() -> None:
    method = build(side=2)
    x = torch.arange(16.0).view(1, 1, 1, 4, 4)
    assert method.flatten(x).tolist() == [[[2.5, 4.5, 10.5, 12.5]]]
    assert torch.equal(build(side=0).flatten(x), x.flatten(2))
    assert torch.equal(build(side=4).flatten(x), x.flatten(2))


def test_the_seed_of_the_cell_decides_the_forest() -> None:
    batch = episodes()
    batch["support_labels"] = torch.randint(3, (2, 9, 3), generator=torch.Generator().manual_seed(0))
    first, second = build(), build()
    torch.manual_seed(1)
    other = FromScratch(INFO, **FAST)  # type: ignore[arg-type]
    assert torch.equal(first.answer(batch, "forest_majority"), second.answer(batch, "forest_majority"))
    assert not torch.equal(first.answer(batch, "forest_majority"), other.answer(batch, "forest_majority"))


@pytest.mark.parametrize("name", ["trees", "hidden", "head_steps", "dawid_skene_steps"])
def test_bad_arguments_are_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0"):
        build(**{name: 0})


def test_a_fit_that_stopped_early_is_counted_and_warns_nobody(recwarn: pytest.WarningsRecorder) -> None:
    # a table's run printed scikit-learn's warning for each of hundreds of tasks, and its result said nothing of it
    batch, method = episodes(), build()
    before = method.answer(batch, "logistic_majority")
    assert method.unconverged() == {"logistic_majority": 0.0}
    method._logistic = lambda: LogisticRegression(tol=1e-8, max_iter=1)  # type: ignore[method-assign]
    method.answer(batch, "logistic_majority")
    method.answer(batch, "forest_majority")
    assert method.unconverged() == {"logistic_majority": 0.5}
    assert not recwarn.list
    del method._logistic
    assert torch.equal(method.answer(batch, "logistic_majority"), before)
