"""Majority vote and Dawid-Skene against crowd-kit and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from crowdkit.aggregation import DawidSkene as CrowdKitDawidSkene
from crowdkit.aggregation import MajorityVote
from hypothesis import given
from hypothesis import strategies as st

from datamodules.annotations import Annotations
from models.aggregation import dawid_skene, fit_dawid_skene, majority_vote


def simulated(seed: int, n_items: int = 60, n_annotators: int = 7, n_classes: int = 4) -> Annotations:
    """Annotators of skill 0.4 to 0.9; about two thirds of all possible annotations are there."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(n_classes, (n_items, 1), generator=generator)
    skill = torch.linspace(0.4, 0.9, n_annotators)
    right = torch.rand(n_items, n_annotators, generator=generator) < skill
    other = torch.randint(n_classes, (n_items, n_annotators), generator=generator)
    dense = torch.where(right, truth, other)
    dense[torch.rand(n_items, n_annotators, generator=generator) < 0.33] = -1
    return Annotations.from_dense(dense, n_classes)


def test_fractions_and_hard_votes_by_hand() -> None:
    annotations = Annotations.from_dense(torch.tensor([[0, 0, 2], [-1, -1, -1], [1, -1, -1]]), 4)
    third = 1 / 3
    expected = [[2 * third, 0, third, 0], [0.25] * 4, [0, 1, 0, 0]]
    torch.testing.assert_close(majority_vote(annotations), torch.tensor(expected, dtype=torch.float64))
    hard = majority_vote(annotations, seed=3, hard=True)
    assert hard.tolist() == [[1, 0, 0, 0], [0.25] * 4, [0, 1, 0, 0]]


def test_vote_fractions_are_crowdkits() -> None:
    annotations = simulated(0)
    theirs = MajorityVote().fit_predict_proba(annotations.to_frame()).sort_index()
    ours = majority_vote(annotations)[torch.tensor(theirs.index.to_numpy())]
    np.testing.assert_allclose(ours.numpy(), theirs[[0, 1, 2, 3]].to_numpy(), atol=1e-12)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dawid_skene_is_crowdkits(seed: int) -> None:
    annotations = simulated(seed)
    # crowd-kit's bound can fall by a rounding error, so with tol=0 it may stop before n_iter
    theirs = CrowdKitDawidSkene(n_iter=20, tol=-1e9).fit_predict_proba(annotations.to_frame()).sort_index()
    ours = dawid_skene(annotations, 20, smoothing=0.0)[torch.tensor(theirs.index.to_numpy())]
    np.testing.assert_allclose(ours.numpy(), theirs[[0, 1, 2, 3]].to_numpy(), atol=1e-6)


@given(seed=st.integers(0, 10_000), smoothing=st.sampled_from([0.0, 0.01, 1.0]))
def test_posteriors_are_probabilities(seed: int, smoothing: float) -> None:
    posteriors = dawid_skene(simulated(seed, 12, 4), 5, smoothing=smoothing)
    assert torch.isfinite(posteriors).all() and (posteriors >= 0).all()
    torch.testing.assert_close(posteriors.sum(1), torch.ones(12, dtype=torch.float64))


def test_perfect_and_perfectly_wrong_annotators_give_finite_rising_likelihood() -> None:
    # checks.md 5 (chengsoonong/crowdastro#123): log(0) in EM made the likelihood NaN.
    truth = torch.arange(30) % 3
    dense = torch.stack([truth, truth, (truth + 1) % 3], dim=1)
    fitted = fit_dawid_skene(Annotations.from_dense(dense, 3), 15, smoothing=0.0)
    assert torch.isfinite(fitted.log_likelihood).all() and torch.isfinite(fitted.log_confusion).all()
    assert (fitted.log_likelihood.diff() >= -1e-9).all()
    assert torch.equal(fitted.posteriors.argmax(1), truth)


def test_likelihood_is_monotone_without_smoothing() -> None:
    likelihood = fit_dawid_skene(simulated(5), 40, smoothing=0.0).log_likelihood
    assert (likelihood.diff() >= -1e-8).all()


def test_a_class_that_nobody_voted_for_keeps_its_column() -> None:
    # checks.md 3 (cleanlab/cleanlab#519): a class never voted for shifted or lost columns.
    annotations = Annotations.from_dense(torch.tensor([[0, 1], [4, 4], [1, 1]]), 5)
    fitted = fit_dawid_skene(annotations, 5)
    assert fitted.posteriors.shape == (3, 5) and fitted.log_confusion.shape == (2, 5, 5)
    assert majority_vote(annotations).shape == (3, 5)
    assert fitted.posteriors.argmax(1).tolist()[1:] == [4, 1]


def test_a_class_that_one_annotator_never_used_stays_reachable() -> None:
    # checks.md 4 (conversationai-models#67): a zero error rate made a class impossible for ever.
    dense = torch.tensor([[0, 0, 0]] * 6 + [[1, 1, 1]] * 6 + [[0, 2, 2]])
    posteriors = dawid_skene(Annotations.from_dense(dense, 3), 30)
    assert posteriors[-1].argmax() == 2


def test_items_without_annotations_end_with_the_prior() -> None:
    dense = torch.tensor([[0, 0], [0, 0], [1, 1], [-1, -1]])
    fitted = fit_dawid_skene(Annotations.from_dense(dense, 2), 10)
    torch.testing.assert_close(fitted.posteriors[3], fitted.log_prior.exp())


def test_tolerance_stops_early_and_wrong_arguments_are_named() -> None:
    annotations = simulated(1)
    assert len(fit_dawid_skene(annotations, 500, tolerance=1e-4).log_likelihood) < 500
    with pytest.raises(ValueError, match="steps is 0"):
        fit_dawid_skene(annotations, 0)
