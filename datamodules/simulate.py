"""Simulated annotators: who they are, who labels what, and what they answer.

Three steps, each with its own seed derived from one: :func:`confusions` draws the annotators of a population,
:func:`assign` says who labels which item, :func:`annotate` draws the answers. :func:`simulate` does the last
two.

>>> true_labels = torch.arange(1000) % 4
>>> people = confusions(POPULATIONS["hammer-spammer"], n_annotators=20, n_classes=4, seed=0)
>>> simulate(true_labels, people, labels_per_item=3, seed=0)
Annotations(3000 labels of 1000 items by 20 annotators, 4 classes)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from datamodules.annotations import Annotations
from datamodules.names import unknown_name
from datamodules.seeds import derive_seed

#: kind of annotator -> what one does
KINDS: Mapping[str, str] = {
    "expert": "right with a high probability (default 1), wrong classes equally likely",
    "hammer": "right with a given probability (default 0.8), wrong classes equally likely",
    "spammer": "answers every class with the same probability, whatever is true",
    "adversary": "right with a low probability (default 0), wrong classes equally likely",
    "pair_flipper": "takes one class for one certain other; right with a given probability (default 0.5)",
    "class_spammer": "answers one of a few classes of their own (default one), whatever is true",
}
_DEFAULT_ACCURACY = {"expert": 1.0, "hammer": 0.8, "adversary": 0.0, "pair_flipper": 0.5}


@dataclass(frozen=True)
class AnnotatorType:
    """One type in a population.

    Attributes:
        kind: one of :data:`KINDS`.
        share: share of the population, in [0, 1].
        accuracy: probability of the right answer; a pair ``(low, high)``: each annotator's own, drawn evenly
            between them; None: the kind's default. Spammers of both kinds have none.
        n_answers: how many classes a class-wise spammer uses.

    Raises:
        ValueError: for an unknown kind, or a value out of range; it names the field.
    """

    kind: str
    share: float
    accuracy: float | tuple[float, float] | None = None
    n_answers: int = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(unknown_name("kind of annotator", self.kind, KINDS))
        if not 0 <= self.share <= 1:
            raise ValueError(f"share of {self.kind} is {self.share}; it must lie between 0 and 1")
        if self.accuracy is not None and self.kind not in _DEFAULT_ACCURACY:
            raise ValueError(f"accuracy is {self.accuracy}, but a {self.kind} has none; leave it out")
        low, high = self.accuracy_range
        if not 0 <= low <= high <= 1:
            raise ValueError(f"accuracy of {self.kind} is {self.accuracy}; it must lie between 0 and 1, low first")
        if self.n_answers < 1:
            raise ValueError(f"n_answers of {self.kind} is {self.n_answers}; it must be at least 1")

    @property
    def accuracy_range(self) -> tuple[float, float]:
        """Lowest and highest probability of the right answer."""
        given = _DEFAULT_ACCURACY.get(self.kind, 0.0) if self.accuracy is None else self.accuracy
        return given if isinstance(given, tuple) else (given, given)


Population = Sequence[AnnotatorType]

#: ready-made populations; none is a paper's
POPULATIONS: Mapping[str, Population] = {
    "identical": (AnnotatorType("hammer", 1.0),),
    "hammer-spammer": (AnnotatorType("hammer", 0.5, accuracy=0.9), AnnotatorType("spammer", 0.5)),
    "mixed": (
        AnnotatorType("expert", 0.15, accuracy=0.97),
        AnnotatorType("hammer", 0.5, accuracy=(0.6, 0.95)),
        AnnotatorType("spammer", 0.1),
        AnnotatorType("adversary", 0.05),
        AnnotatorType("pair_flipper", 0.1),
        AnnotatorType("class_spammer", 0.1),
    ),
}


# --- who they are -----------------------------------------------------------------------------


def annotator_types(population: Population, n_annotators: int, seed: int, drawn: bool = False) -> list[AnnotatorType]:
    """The type of each annotator, in an order that tells nothing.

    Args:
        population: types whose shares sum to 1.
        n_annotators: how many annotators.
        seed: seed of the order (and of the draw).
        drawn: each annotator's type is drawn on its own; else the counts are the shares, rounded.

    Raises:
        ValueError: if the shares do not sum to 1.
    """
    shares = np.array([kind.share for kind in population])
    if abs(shares.sum() - 1) > 1e-6:
        raise ValueError(f"shares sum to {shares.sum():g}; they must sum to 1")
    generator = np.random.default_rng(derive_seed(seed=seed, purpose="annotator types"))
    if drawn:
        chosen = generator.choice(len(shares), size=n_annotators, p=shares / shares.sum())
    else:
        chosen = generator.permutation(np.repeat(np.arange(len(shares)), _share_out(n_annotators, shares)))
    return [population[index] for index in chosen]


def confusions(population: Population, n_annotators: int, n_classes: int, seed: int, drawn: bool = False) -> Tensor:
    """How each annotator answers: ``[R, C, C]`` float64, rows the true class, columns the answer.

    Args:
        population: types whose shares sum to 1.
        n_annotators: R.
        n_classes: C, at least 2.
        seed: an annotator's type and parameters depend on it, on nothing drawn elsewhere.
        drawn: see :func:`annotator_types`.

    Raises:
        ValueError: for fewer than two classes, shares that do not sum to 1, or a class-wise spammer with more
            answers than there are classes.
    """
    if n_classes < 2:
        raise ValueError(f"n_classes is {n_classes}; annotators need at least 2 classes to differ")
    types = annotator_types(population, n_annotators, seed, drawn)
    generator = np.random.default_rng(derive_seed(seed=seed, purpose="confusions"))
    matrices = [_confusion(kind, n_classes, generator) for kind in types]
    return torch.from_numpy(np.stack(matrices)) if matrices else torch.zeros(0, n_classes, n_classes).double()


def _confusion(kind: AnnotatorType, n_classes: int, generator: np.random.Generator) -> np.ndarray:
    """One annotator's ``[C, C]``."""
    if kind.kind == "spammer":
        return np.full((n_classes, n_classes), 1 / n_classes)
    if kind.kind == "class_spammer":
        return _class_spammer(kind.n_answers, n_classes, generator)
    accuracy = generator.uniform(*kind.accuracy_range)
    if kind.kind == "pair_flipper":
        return _pair_flipper(accuracy, n_classes, generator)
    matrix = np.full((n_classes, n_classes), (1 - accuracy) / (n_classes - 1))
    np.fill_diagonal(matrix, accuracy)
    return matrix


def _class_spammer(n_answers: int, n_classes: int, generator: np.random.Generator) -> np.ndarray:
    if n_answers > n_classes:
        raise ValueError(f"n_answers is {n_answers}, but there are only {n_classes} classes")
    matrix = np.zeros((n_classes, n_classes))
    matrix[:, generator.choice(n_classes, size=n_answers, replace=False)] = 1 / n_answers
    return matrix


def _pair_flipper(accuracy: float, n_classes: int, generator: np.random.Generator) -> np.ndarray:
    """Classes are paired at random, each is taken for its partner; with an odd number one has no one-to-one
    partner and is taken for a class of another pair.
    """
    order = generator.permutation(n_classes)
    partner = np.empty(n_classes, dtype=np.int64)
    even = n_classes // 2 * 2
    partner[order[:even]] = order[:even].reshape(-1, 2)[:, ::-1].reshape(-1)
    partner[order[even:]] = order[0]
    matrix = np.zeros((n_classes, n_classes))
    np.fill_diagonal(matrix, accuracy)
    matrix[np.arange(n_classes), partner] = 1 - accuracy
    return matrix


# --- who labels what --------------------------------------------------------------------------


def workloads(n_labels: int, n_annotators: int, n_items: int, seed: int, skew: float = 0.0) -> Tensor:
    """How many labels each annotator gives: ``[R]`` int64, summing to ``n_labels``, none above ``n_items``.

    Args:
        n_labels: labels in all.
        n_annotators: R.
        n_items: an annotator labels an item at most once.
        seed: seed of who is busy.
        skew: standard deviation of the logarithm of the workloads: 0 gives equal ones, 1.4 a mean of about
            2.5 times the median, as in CIFAR-10N.

    Raises:
        ValueError: if ``skew`` is negative, or there are more labels than items x annotators.
    """
    if skew < 0:
        raise ValueError(f"skew is {skew}; it must be 0 or more")
    if n_labels > n_items * n_annotators:
        raise ValueError(
            f"{n_labels} labels of {n_items} items by {n_annotators} annotators, each at most once an item; "
            "ask for fewer labels an item or more annotators"
        )
    generator = np.random.default_rng(derive_seed(seed=seed, purpose="workloads"))
    # shuffled, so that the remainder of an even share does not go to the first ids
    weights = np.exp(skew * generator.standard_normal(n_annotators))
    order = generator.permutation(n_annotators)
    counts = np.zeros(n_annotators, dtype=np.int64)
    while (left := n_labels - counts.sum()) > 0:
        free = order[counts[order] < n_items]
        counts[free] = np.minimum(counts[free] + _share_out(left, weights[free]), n_items)
    return torch.from_numpy(counts)


def assign(n_items: int, labels_per_annotator: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Who labels what: items ``[n]`` and annotators ``[n]`` int64, at random, no pair twice.

    Every item gets the same number of labels, or one more where they do not come out even; every annotator
    gives exactly as many as asked.

    Args:
        n_items: number of items.
        labels_per_annotator: ``[R]`` int64, each between 0 and ``n_items``.
        seed: seed of the assignment.

    Raises:
        ValueError: if an annotator is to give more labels than there are items.
    """
    if len(labels_per_annotator) and int(labels_per_annotator.max()) > n_items:
        most = int(labels_per_annotator.argmax())
        asked = int(labels_per_annotator[most])
        raise ValueError(f"annotator {most} is to give {asked} labels, but there are {n_items} items")
    generator = torch.Generator().manual_seed(derive_seed(seed=seed, purpose="assignment"))
    # dealt round the items in turn, an annotator's labels fall on different items as long as they are no
    # more than the items; the exchanges of permute_annotators then make it random
    annotators = torch.repeat_interleave(torch.arange(len(labels_per_annotator)), labels_per_annotator)
    places = torch.randperm(n_items, generator=generator)
    items = places[torch.arange(len(annotators)) % n_items] if n_items else torch.zeros(0, dtype=torch.int64)
    dealt = Annotations(items, annotators, torch.zeros_like(items), n_items, len(labels_per_annotator), 1)
    mixed = dealt.permute_annotators(derive_seed(seed=seed, purpose="assignment exchanges"))
    return mixed.items, mixed.annotators


def _share_out(total: int, weights: np.ndarray) -> np.ndarray:
    """Whole numbers that sum to ``total``, in proportion to ``weights`` (largest remainders first)."""
    exact = total * weights / weights.sum()
    counts = np.floor(exact + 1e-9).astype(np.int64)
    most_left_over = np.argsort(counts - exact, kind="stable")
    counts[most_left_over[: total - counts.sum()]] += 1
    return counts


# --- what they answer -------------------------------------------------------------------------


def item_difficulty(n_items: int, mean: float, seed: int, concentration: float = 2.0) -> Tensor:
    """Difficulties ``[N]`` float64 in [0, 1], drawn from a beta distribution.

    Args:
        n_items: N.
        mean: mean difficulty, above 0 and below 1.
        seed: seed of the draw.
        concentration: a and b of the distribution sum to it; below 2, most items are either easy or hard.
    """
    if not 0 < mean < 1:
        raise ValueError(f"mean difficulty is {mean}; it must lie above 0 and below 1")
    if concentration <= 0:
        raise ValueError(f"concentration is {concentration}; it must be above 0")
    generator = np.random.default_rng(derive_seed(seed=seed, purpose="difficulty"))
    drawn = generator.beta(mean * concentration, (1 - mean) * concentration, size=n_items)
    return torch.from_numpy(drawn)


def annotate(
    true_labels: Tensor,
    confusions: Tensor,
    items: Tensor,
    annotators: Tensor,
    seed: int,
    difficulty: Tensor | None = None,
) -> Tensor:
    """Answers ``[n]`` int64 of the given annotators on the given items, each drawn on its own.

    Args:
        true_labels: ``[N]`` int64 in ``[0, C)``.
        confusions: ``[R, C, C]``, rows the true class; rows sum to 1.
        items: item of each annotation ``[n]``.
        annotators: annotator of each annotation ``[n]``.
        seed: seed of the draw.
        difficulty: ``[N]`` in [0, 1]: the probability that whoever sees the item just guesses (uniformly).

    Raises:
        ValueError: if shapes do not fit, rows are no distributions, or a true label or difficulty is out of
            range.
    """
    _check_answers(true_labels, confusions, difficulty)
    chances = confusions.double()[annotators, true_labels[items]]
    if difficulty is not None:
        guessing = difficulty.double()[items].unsqueeze(1)
        chances = (1 - guessing) * chances + guessing / confusions.shape[-1]
    cumulated = chances.cumsum(dim=1)
    cumulated = cumulated / cumulated[:, -1:]  # ends at exactly 1, so that an impossible answer is never drawn
    generator = torch.Generator().manual_seed(derive_seed(seed=seed, purpose="answers"))
    draw = torch.rand(len(items), 1, generator=generator, dtype=torch.float64)
    return (draw >= cumulated).sum(dim=1)


def _check_answers(true_labels: Tensor, confusions: Tensor, difficulty: Tensor | None) -> None:
    n_classes = confusions.shape[-1]
    if confusions.ndim != 3 or confusions.shape[1] != n_classes:
        raise ValueError(f"confusions have shape {tuple(confusions.shape)}; they must be [annotators, C, C]")
    sums = confusions.double().sum(dim=2)
    if bool((confusions < 0).any()) or not torch.allclose(sums, torch.ones_like(sums), atol=1e-6):
        raise ValueError("confusions hold a row that is no distribution; each must be non-negative and sum to 1")
    outside = ((true_labels < 0) | (true_labels >= n_classes)).nonzero()
    if len(outside):
        item = int(outside[0])
        raise ValueError(f"item {item}: true label {int(true_labels[item])} is not between 0 and {n_classes - 1}")
    if difficulty is None:
        return
    if difficulty.shape != true_labels.shape or not bool(((difficulty >= 0) & (difficulty <= 1)).all()):
        raise ValueError("difficulty must hold a value between 0 and 1 for every item")


def simulate(
    true_labels: Tensor,
    confusions: Tensor,
    labels_per_item: float,
    seed: int,
    difficulty: Tensor | None = None,
    skew: float = 0.0,
    labels_per_annotator: Tensor | None = None,
) -> Annotations:
    """Simulated annotations of all items.

    Args:
        true_labels: ``[N]`` int64 in ``[0, C)``.
        confusions: ``[R, C, C]`` from :func:`confusions`.
        labels_per_item: labels an item; with a fraction, the mean (items then differ by one).
        seed: workloads, assignment and answers each derive their own from it.
        difficulty: ``[N]``, see :func:`annotate`.
        skew: how unequal the workloads are, see :func:`workloads`.
        labels_per_annotator: ``[R]``: exactly these workloads; they must sum to N x ``labels_per_item``,
            rounded.

    Raises:
        ValueError: see :func:`workloads`, :func:`assign` and :func:`annotate`.
    """
    n_items, (n_annotators, n_classes) = len(true_labels), confusions.shape[:2]
    n_labels = round(n_items * labels_per_item)
    if n_labels < 0:
        raise ValueError(f"labels_per_item is {labels_per_item}; it must be 0 or more")
    if labels_per_annotator is None:
        labels_per_annotator = workloads(n_labels, n_annotators, n_items, seed, skew)
    if len(labels_per_annotator) != n_annotators or int(labels_per_annotator.sum()) != n_labels:
        raise ValueError(
            f"labels_per_annotator holds {len(labels_per_annotator)} numbers that sum to "
            f"{int(labels_per_annotator.sum())}; {n_annotators} annotators are to give {n_labels} labels"
        )
    items, annotators = assign(n_items, labels_per_annotator, seed)
    labels = annotate(true_labels, confusions, items, annotators, seed, difficulty)
    return Annotations(items, annotators, labels, n_items, n_annotators, n_classes)
