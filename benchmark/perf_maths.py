"""What ``benchmark.perf`` measures of pure functions: each prepares ours and a reference from a number of items."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import combinations
from typing import Any

import torch
from sklearn.metrics import cohen_kappa_score
from torch import Tensor
from torch.nn import functional as F

from benchmark.metrics import DIC
from benchmark.perf_data import cifar10n_annotations
from datamodules.annotations import Annotations
from models.aggregation import dawid_skene, dawid_skene_episodes
from models.meta_em.em import query_log_posterior, unrolled_em

Run = Callable[[], object]

# --- EM over many episodes against a loop over them -----------------------------------------------

_EPISODES, _SUPPORT_ITEMS = 16, 20


def em(count: int) -> tuple[Run, Run]:
    """Two EM steps and the queries' cross-entropy, forward and backward: 4 classes, 7 annotators, 64 dimensions."""
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(40).remainder(4).expand(_EPISODES, 40)
    u = torch.randn(_EPISODES, _SUPPORT_ITEMS, 64, generator=generator)
    queries = torch.randn(_EPISODES, 40, 64, generator=generator)
    labels = torch.randint(4, (_EPISODES, _SUPPORT_ITEMS, 7), generator=generator)

    def side(at_once: int) -> Run:
        # leaves of their own, so that the loop pays for no slicing
        leaves = [[part.clone().requires_grad_() for part in x.split(at_once)] for x in (u, queries)]
        parts = list(zip(*leaves, labels.split(at_once), target.split(at_once), strict=True))

        def run() -> None:
            for _ in range(max(1, count // u[..., 0].numel())):
                for part in parts:
                    _em_episodes(*part)

        return run

    return side(_EPISODES), side(1)


def _em_episodes(u: Tensor, queries: Tensor, labels: Tensor, target: Tensor) -> None:
    state = unrolled_em(u, labels, 4, 2, tau=1.0, b=10.0, c=1.0)
    answers = query_log_posterior(state, queries)
    F.nll_loss(answers.flatten(0, 1), target.flatten()).backward()


# --- DIC against scikit-learn, pair by pair -------------------------------------------------------

_DIC_ANNOTATORS, _DIC_CLASSES = 30, 16


def dic(count: int) -> tuple[Run, Run]:
    """The metric over 30 annotators and 16 classes, against kappas of labels and of predictions in a loop."""
    generator = torch.Generator().manual_seed(0)
    labels, predictions = torch.randint(_DIC_CLASSES, (2, count, _DIC_ANNOTATORS), generator=generator)

    def ours() -> None:
        metric = DIC(_DIC_ANNOTATORS, _DIC_CLASSES)
        metric.update(predictions, labels)
        metric.compute()

    def reference() -> None:
        for answers in (labels.numpy(), predictions.numpy()):
            for first, second in combinations(range(_DIC_ANNOTATORS), 2):
                cohen_kappa_score(answers[:, first], answers[:, second])

    return ours, reference


# --- Dawid-Skene against crowd-kit ----------------------------------------------------------------

#: EM steps on both sides
_DAWID_SKENE_STEPS = 10
#: how many of the few-shot tasks crowd-kit is given: a loop over all of them takes many minutes
LOOPED_TASKS = 50
_TASK_ITEMS, _TASK_ANNOTATORS, _TASK_CLASSES = 20, 7, 4


def dawid_skene_whole(count: int) -> tuple[Run, Run]:
    """CIFAR-10N's annotations of ``count`` images, by three of 747 workers each; random ones where it is not found."""
    annotations = cifar10n_annotations(count)
    frame = annotations.to_frame()
    return lambda: dawid_skene(annotations, _DAWID_SKENE_STEPS, smoothing=0.0), lambda: _crowd_kit(frame)


def dawid_skene_tasks(count: int) -> tuple[Run, Run]:
    """``count`` tasks of 20 items, 7 annotators, 4 classes at once; crowd-kit loops over ``LOOPED_TASKS`` of them."""
    generator = torch.Generator().manual_seed(0)
    shape = (count, _TASK_ITEMS, _TASK_ANNOTATORS)
    truth = torch.randint(_TASK_CLASSES, (*shape[:2], 1), generator=generator)
    right = torch.rand(shape, generator=generator) < 0.7
    labels = torch.where(right, truth, torch.randint(_TASK_CLASSES, shape, generator=generator))
    frames = [Annotations.from_dense(task, _TASK_CLASSES).to_frame() for task in labels[:LOOPED_TASKS]]

    def reference() -> list[Any]:
        return [_crowd_kit(frame) for frame in frames]

    return lambda: dawid_skene_episodes(labels, _TASK_CLASSES, _DAWID_SKENE_STEPS, 0.0), reference


def _crowd_kit(frame: Any) -> Any:
    from crowdkit.aggregation import DawidSkene  # of the tests' extra, so that the other measurements run without

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas announces changes at every step
        # the bound can fall by a rounding error: with a tolerance of 0 it may stop early
        return DawidSkene(n_iter=_DAWID_SKENE_STEPS, tol=-1e9).fit_predict_proba(frame)
