"""Dawid-Skene over many tasks at once: each is what it would be alone, and crowd-kit's; precision is enough."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from crowdkit.aggregation import DawidSkene as CrowdKitDawidSkene
from torch import Tensor

from datamodules.annotations import Annotations
from datamodules.cifar10n import Cifar10N
from models.aggregation import dawid_skene, fit_dawid_skene, majority_episodes, majority_vote
from models.dawid_skene import _sum_runs, dawid_skene_episodes, fit_tasks, sort_labels, sort_triples


def tasks(seed: int = 0, shape: tuple[int, int, int] = (5, 12, 4), missing: float = 0.2, n_classes: int = 4) -> Tensor:
    """Labels ``[T, N, R]`` that are right with 0.7; the first task's last annotator and last item have none."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(n_classes, (*shape[:2], 1), generator=generator)
    right = torch.rand(shape, generator=generator) < 0.7
    labels = torch.where(right, truth, torch.randint(n_classes, shape, generator=generator))
    labels[torch.rand(shape, generator=generator) < missing] = -1
    labels[0, :, -1] = labels[0, -1] = -1
    return labels


@pytest.mark.parametrize("smoothing", [0.0, 0.01, 1.0])
def test_each_task_is_the_data_set_it_would_be_alone(smoothing: float) -> None:
    labels = tasks()
    together = dawid_skene_episodes(labels, 4, 7, smoothing)
    fitted = fit_tasks(sort_labels(labels, 4), 7, smoothing)
    for t, task in enumerate(labels):
        alone = fit_dawid_skene(Annotations.from_dense(task, 4), 7, smoothing=smoothing)
        torch.testing.assert_close(together[t], alone.posteriors, rtol=0, atol=1e-12)
        torch.testing.assert_close(fitted.log_confusion[t], alone.log_confusion)
        torch.testing.assert_close(fitted.log_likelihood[t], alone.log_likelihood)
        torch.testing.assert_close(fitted.log_prior[t], alone.log_prior)


@pytest.mark.parametrize("seed", [0, 1])
def test_each_task_is_crowdkits(seed: int) -> None:
    """Settings coincide without smoothing, where every item has a label."""
    labels = tasks(seed, (3, 12, 4), missing=0.0)[1:]
    ours = dawid_skene_episodes(labels, 4, 6, 0.0)
    for t, task in enumerate(labels):
        frame = Annotations.from_dense(task, 4).to_frame()
        theirs = CrowdKitDawidSkene(n_iter=6, tol=-1e9).fit_predict_proba(frame).sort_index()
        np.testing.assert_allclose(ours[t][:, theirs.columns].numpy(), theirs.to_numpy(), atol=1e-6)


def test_padding_changes_nothing_and_other_orders_permute_the_result() -> None:
    labels = tasks()
    plain = dawid_skene_episodes(labels, 4, 7)
    padded = torch.full((5, 15, 6), -1)
    padded[:, :12, :4] = labels
    torch.testing.assert_close(dawid_skene_episodes(padded, 4, 7)[:, :12], plain)
    items, annotators, classes = torch.randperm(12), torch.tensor([2, 0, 3, 1]), torch.tensor([1, 3, 0, 2])
    torch.testing.assert_close(dawid_skene_episodes(labels[:, items], 4, 7), plain[:, items])
    torch.testing.assert_close(dawid_skene_episodes(labels[..., annotators], 4, 7), plain)
    renamed = torch.where(labels >= 0, classes[labels.clamp_min(0)], -1)
    torch.testing.assert_close(dawid_skene_episodes(renamed, 4, 7)[..., classes], plain)


def test_both_kernels_give_the_same_sums_and_0_for_an_empty_run() -> None:
    """In float64 on a CPU the sums are a sparse product; elsewhere embedding_bag's. The bits do not tell which."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(7, 4, dtype=torch.float64, generator=generator)
    chosen = torch.randint(7, (20,), generator=generator)
    bounds = torch.tensor([0, 0, 9, 10, 10, 20, 20])
    sums = _sum_runs(rows, chosen, bounds)
    bags = torch.nn.functional.embedding_bag(chosen, rows, bounds, mode="sum", include_last_offset=True)
    assert torch.equal(sums, bags) and sums.shape == (6, 4)
    assert not sums[[0, 3, 5]].any() and sums[[1, 2, 4]].all()
    torch.testing.assert_close(_sum_runs(rows.float(), chosen, bounds), sums.float())


@pytest.mark.parametrize("shape", [(2, 3, 0), (0, 3, 2), (2, 0, 3), (2, 3, 2)], ids=str)
def test_without_labels_all_classes_stay_equally_likely(shape: tuple[int, int, int]) -> None:
    posteriors = dawid_skene_episodes(torch.full(shape, -1), 4, 3)
    torch.testing.assert_close(posteriors, torch.full((*shape[:2], 4), 0.25, dtype=torch.float64))


def test_float32_keeps_what_a_product_of_probabilities_loses() -> None:
    """300 labels an item: the product underflows to 0 in float32 for every class, and argmax names the first."""
    labels = tasks(3, (2, 40, 300), missing=0.0)[1:]
    double = fit_tasks(sort_labels(labels, 4), 10, 1.0)
    single = dawid_skene_episodes(labels, 4, 10, 1.0, dtype=torch.float32)
    assert single.dtype == torch.float32
    assert torch.equal(single.argmax(2), double.posteriors.argmax(2)) and len(single.argmax(2).unique()) == 4
    given = double.log_confusion[0].exp().float().gather(2, labels[0].T.unsqueeze(1).expand(-1, 4, -1))
    naive = double.log_prior[0].exp().float() * given.prod(dim=0).T
    assert (naive == 0).all(), "the example no longer underflows, and so shows nothing"


def test_a_smoothing_of_1_drowns_the_labels_of_four_items() -> None:
    """Why it is no default: three annotators, right with 0.85, and Dawid-Skene names one class for all items."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(4).expand(300, 4)
    right = torch.rand(300, 4, 3, generator=generator) < 0.85
    labels = torch.where(right, truth.unsqueeze(2), torch.randint(4, (300, 4, 3), generator=generator))
    accuracy = {
        smoothing: float((dawid_skene_episodes(labels, 4, 20, smoothing).argmax(2) == truth).double().mean())
        for smoothing in (0.01, 1.0)
    }
    assert accuracy[0.01] > 0.9 and accuracy[1.0] < 0.5


def test_vote_fractions_of_tasks_are_those_of_a_data_set() -> None:
    labels = tasks()
    fractions, hard = majority_episodes(labels, 4), majority_episodes(labels, 4, hard=True)
    for t, task in enumerate(labels):
        torch.testing.assert_close(fractions[t], majority_vote(Annotations.from_dense(task, 4)))
    assert hard[0, -1].tolist() == [0.25] * 4
    ties = majority_episodes(torch.tensor([[[0, 0, 2, 2, 1], [3, -1, -1, -1, -1]]]), 4, hard=True)
    assert ties.tolist() == [[[0.5, 0, 0.5, 0], [0, 0, 0, 1]]]


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="labels holds class 4; with n_classes=4 the last is 3"):
        dawid_skene_episodes(torch.full((1, 2, 3), 4), 4)
    with pytest.raises(ValueError, match=r"class ids \[T, N, R\]"):
        dawid_skene_episodes(torch.zeros(2, 3, dtype=torch.long), 4)
    with pytest.raises(ValueError, match="steps is 0"):
        dawid_skene_episodes(torch.zeros(1, 2, 3, dtype=torch.long), 4, 0)


def three_of_many(n_items: int, n_annotators: int) -> Annotations:
    """Three annotations an item, as in CIFAR-10N, by annotators who are right with 0.5 to 0.95."""
    generator = torch.Generator().manual_seed(0)
    items = torch.arange(n_items).repeat_interleave(3)
    annotators = torch.rand(n_items, n_annotators, generator=generator).argsort(dim=1)[:, :3].flatten()
    truth = torch.randint(10, (n_items,), generator=generator)[items]
    right = torch.rand(len(items), generator=generator) < torch.linspace(0.5, 0.95, n_annotators)[annotators]
    labels = torch.where(right, truth, torch.randint(10, truth.shape, generator=generator))
    return Annotations(items, annotators, labels, n_items, n_annotators, 10)


def assert_is_crowdkits_in_either_precision(annotations: Annotations) -> None:
    """After 10 steps, on which the speed is measured; crowd-kit knows no label that an annotator never gave."""
    theirs = CrowdKitDawidSkene(n_iter=10, tol=-1e9).fit_predict_proba(annotations.to_frame()).sort_index()
    ours = dawid_skene(annotations, 10, smoothing=0.0)
    assert np.mean(ours.argmax(1).numpy() == theirs[list(range(10))].to_numpy().argmax(1)) > 0.999
    sizes = (1, annotations.n_items, annotations.n_annotators, annotations.n_classes)
    triples = sort_triples(annotations.items, annotations.annotators, annotations.labels, sizes)
    single = fit_tasks(triples, 10, 0.0, dtype=torch.float32).posteriors[0]
    assert single.dtype == torch.float32
    assert (single.argmax(1) == ours.argmax(1)).double().mean() > 0.999
    apart = (single - ours).abs()
    assert apart.max() < 0.01 and apart.mean() < 1e-6


def test_on_random_annotations_like_cifar10ns_it_is_crowdkits() -> None:
    assert_is_crowdkits_in_either_precision(three_of_many(4_000, 60))


def test_on_cifar10n_it_is_crowdkits(real_data: Path) -> None:
    """150,000 annotations by 747 workers."""
    annotations, _ = Cifar10N("aggre", root=real_data).annotations_for_audit()
    assert_is_crowdkits_in_either_precision(annotations)
