"""Simulated annotators do what their type says, in the numbers asked for, by their seed alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from datamodules.simulate import (
    KINDS,
    POPULATIONS,
    AnnotatorType,
    annotate,
    annotator_types,
    assign,
    confusions,
    item_difficulty,
    simulate,
    workloads,
)


def one(kind: str, n_classes: int = 4, seed: int = 0, **parameters: object) -> torch.Tensor:
    """The confusion matrix ``[C, C]`` of a single annotator."""
    return confusions([AnnotatorType(kind, 1.0, **parameters)], 1, n_classes, seed)[0]


# --- who they are -----------------------------------------------------------------------------


@given(st.sampled_from(sorted(KINDS)), st.integers(2, 7), st.integers(0, 50))
def test_every_row_of_a_confusion_is_a_distribution(kind: str, n_classes: int, seed: int) -> None:
    matrix = one(kind, n_classes, seed)
    assert (matrix >= 0).all()
    torch.testing.assert_close(matrix.sum(dim=1), torch.ones(n_classes).double())


def test_each_kind_answers_as_its_description_says() -> None:
    assert torch.equal(one("expert"), torch.eye(4).double())
    hammer = one("hammer", accuracy=0.7)
    assert hammer.diagonal().tolist() == pytest.approx([0.7] * 4)
    assert hammer[0, 1:].tolist() == pytest.approx([0.1] * 3)
    assert one("spammer").unique().tolist() == [0.25]
    adversary = one("adversary")
    assert adversary.diagonal().sum() == 0 and adversary[2, 0] == pytest.approx(1 / 3)


@given(st.integers(2, 9), st.integers(0, 20))
def test_a_pair_flipper_takes_a_class_for_one_other_and_an_even_number_both_ways(n_classes: int, seed: int) -> None:
    matrix = one("pair_flipper", n_classes, seed, accuracy=0.6)
    assert matrix.diagonal().tolist() == pytest.approx([0.6] * n_classes)
    assert ((matrix > 0).sum(dim=1) == 2).all()
    if n_classes % 2 == 0:
        assert torch.equal(matrix, matrix.T)


def test_a_class_spammer_answers_few_classes_whatever_is_true() -> None:
    matrix = one("class_spammer", 6, n_answers=2)
    assert (matrix == matrix[0]).all()
    assert sorted(matrix[0].tolist()) == [0, 0, 0, 0, 0.5, 0.5]


def test_an_accuracy_range_gives_each_annotator_their_own() -> None:
    drawn = confusions([AnnotatorType("hammer", 1.0, accuracy=(0.6, 0.9))], 200, 3, 0)[:, 0, 0]
    assert drawn.min() >= 0.6 and drawn.max() <= 0.9 and drawn.std() > 0.05


@given(st.integers(1, 200), st.integers(0, 20))
def test_shares_are_met_to_within_one_annotator(n_annotators: int, seed: int) -> None:
    population = POPULATIONS["mixed"]
    types = annotator_types(population, n_annotators, seed)
    assert len(types) == n_annotators
    assert all(abs(types.count(kind) - kind.share * n_annotators) < 1 + 1e-6 for kind in population)


def test_drawn_types_vary_in_number_and_ids_do_not_tell_the_type() -> None:
    population = POPULATIONS["hammer-spammer"]
    counts = {sum(kind.kind == "spammer" for kind in annotator_types(population, 20, s, drawn=True)) for s in range(20)}
    assert len(counts) > 3
    first = [annotator_types(population, 20, seed)[0].kind for seed in range(40)]
    assert 8 < first.count("spammer") < 32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "hamer", "share": 1}, "unknown kind of annotator: 'hamer'; did you mean hammer"),
        ({"kind": "hammer", "share": 1.2}, "share of hammer is 1.2"),
        ({"kind": "hammer", "share": 1, "accuracy": 1.1}, "accuracy of hammer is 1.1"),
        ({"kind": "hammer", "share": 1, "accuracy": (0.9, 0.1)}, "low first"),
        ({"kind": "spammer", "share": 1, "accuracy": 0.5}, "a spammer has none; leave it out"),
        ({"kind": "class_spammer", "share": 1, "n_answers": 0}, "n_answers of class_spammer is 0"),
    ],
)
def test_a_type_that_cannot_be_names_its_field(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AnnotatorType(**arguments)


def test_a_population_that_cannot_be_says_why() -> None:
    with pytest.raises(ValueError, match="shares sum to 0.5; they must sum to 1"):
        confusions([AnnotatorType("expert", 0.5)], 3, 4, 0)
    with pytest.raises(ValueError, match="n_classes is 1"):
        confusions(POPULATIONS["mixed"], 3, 1, 0)
    with pytest.raises(ValueError, match="n_answers is 5, but there are only 4 classes"):
        one("class_spammer", n_answers=5)


# --- who labels what --------------------------------------------------------------------------


@given(st.integers(1, 30), st.integers(1, 8), st.floats(0, 1), st.floats(0, 3), st.integers(0, 20))
def test_workloads_sum_up_and_nobody_labels_more_than_there_is(
    n_items: int, n_annotators: int, density: float, skew: float, seed: int
) -> None:
    n_labels = round(density * n_items * n_annotators)
    counts = workloads(n_labels, n_annotators, n_items, seed, skew)
    assert counts.sum() == n_labels and counts.min() >= 0 and counts.max() <= n_items
    if skew == 0:
        assert counts.max() - counts.min() <= 1


@given(st.integers(1, 30), st.lists(st.integers(0, 30), max_size=8), st.integers(0, 20))
def test_an_assignment_gives_everyone_their_number_and_items_their_share(
    n_items: int, loads: list[int], seed: int
) -> None:
    counts = torch.tensor([min(load, n_items) for load in loads], dtype=torch.int64)
    items, annotators = assign(n_items, counts, seed)
    assert torch.equal(torch.bincount(annotators, minlength=len(counts)), counts)
    assert len(set(zip(items.tolist(), annotators.tolist(), strict=True))) == len(items)
    per_item = torch.bincount(items, minlength=n_items)
    assert per_item.max() - per_item.min() <= 1


def test_skewed_workloads_are_as_unequal_as_cifar10n() -> None:
    counts = workloads(150_000, 747, 50_000, 0, skew=1.4).double()
    assert 1.8 < counts.mean() / counts.median() < 3.5


def test_an_assignment_is_random_beyond_its_margins() -> None:
    """The deal that gives everyone their number is a regular pattern; pairs of annotators must still mix."""
    together = torch.zeros(10, 10)
    for seed in range(40):
        items, annotators = assign(100, torch.full((10,), 20), seed)
        first, second = annotators[items.argsort(stable=True)].reshape(100, 2).T
        together += torch.bincount(first * 10 + second, minlength=100).reshape(10, 10)
    pairs = together[torch.triu(torch.ones(10, 10), 1) > 0] + together.T[torch.triu(torch.ones(10, 10), 1) > 0]
    assert chisquare(pairs.numpy()).pvalue > 0.001


def test_more_labels_than_annotators_can_give_is_refused() -> None:
    with pytest.raises(ValueError, match="fewer labels an item or more annotators"):
        workloads(31, 3, 10, 0)
    with pytest.raises(ValueError, match="annotator 1 is to give 11 labels, but there are 10 items"):
        assign(10, torch.tensor([3, 11]), 0)
    with pytest.raises(ValueError, match="skew is -1"):
        workloads(3, 3, 10, 0, skew=-1)


# --- what they answer -------------------------------------------------------------------------


def test_answers_follow_the_confusion_and_difficulty_mixes_in_guessing() -> None:
    true_labels = torch.arange(30_000) % 3
    people = confusions([AnnotatorType("pair_flipper", 1.0, accuracy=0.7)], 1, 3, 1)
    items, annotators = torch.arange(30_000), torch.zeros(30_000, dtype=torch.int64)
    for level in (0.0, 0.5, 1.0):
        given_labels = annotate(true_labels, people, items, annotators, 0, torch.full((30_000,), level))
        counts = torch.bincount(true_labels * 3 + given_labels, minlength=9).reshape(3, 3) / 10_000
        torch.testing.assert_close(counts.double(), (1 - level) * people[0] + level / 3, atol=0.02, rtol=0)


def test_an_impossible_answer_is_never_given() -> None:
    true_labels = torch.arange(20_000) % 7
    noted = simulate(true_labels, confusions([AnnotatorType("adversary", 1.0)], 5, 7, 0), 5, 0)
    assert (noted.labels != true_labels[noted.items]).all()


def test_one_seed_gives_the_same_crowd_whatever_was_drawn_before() -> None:
    true_labels = torch.arange(300) % 5
    people = confusions(POPULATIONS["mixed"], 12, 5, 3)
    torch.manual_seed(1)
    first = simulate(true_labels, people, 2.5, 7, skew=1.0)
    torch.manual_seed(2)
    assert torch.equal(confusions(POPULATIONS["mixed"], 12, 5, 3), people)
    assert simulate(true_labels, people, 2.5, 7, skew=1.0).equals(first)
    assert not simulate(true_labels, people, 2.5, 8, skew=1.0).equals(first)


def test_each_purpose_has_its_own_seed() -> None:
    """Two populations with one seed label the same items: only then is their comparison paired."""
    true_labels = torch.arange(300) % 5
    crowds = [simulate(true_labels, confusions(POPULATIONS[name], 12, 5, 0), 3, 0) for name in ("mixed", "identical")]
    assert torch.equal(crowds[0].items, crowds[1].items) and torch.equal(crowds[0].annotators, crowds[1].annotators)


@given(st.floats(0, 4), st.integers(0, 5))
def test_density_is_met_and_spread_over_items(labels_per_item: float, seed: int) -> None:
    noted = simulate(
        torch.zeros(40, dtype=torch.int64), confusions(POPULATIONS["mixed"], 4, 2, 0), labels_per_item, seed
    )
    assert len(noted) == round(40 * labels_per_item)
    assert noted.labels_per_item().max() - noted.labels_per_item().min() <= 1


def test_exact_workloads_are_kept() -> None:
    loads = torch.tensor([0, 5, 20, 15])
    noted = simulate(
        torch.zeros(20).long(),
        confusions(POPULATIONS["identical"], 4, 2, 0),
        2,
        0,
        labels_per_annotator=loads,
    )
    assert torch.equal(noted.labels_per_annotator(), loads)
    with pytest.raises(ValueError, match="4 numbers that sum to 40; 4 annotators are to give 60 labels"):
        simulate(
            torch.zeros(20).long(),
            confusions(POPULATIONS["identical"], 4, 2, 0),
            3,
            0,
            labels_per_annotator=loads,
        )


def test_item_difficulty_has_its_mean_and_stays_in_range() -> None:
    drawn = item_difficulty(20_000, 0.2, 0, concentration=0.5)
    assert drawn.min() >= 0 and drawn.max() <= 1 and abs(drawn.mean() - 0.2) < 0.01
    for arguments, message in (
        ((5, 0.0, 0), "mean difficulty is 0.0"),
        ((5, 0.5, 0, 0.0), "concentration is 0.0"),
    ):
        with pytest.raises(ValueError, match=message):
            item_difficulty(*arguments)


def test_answers_refuse_what_does_not_fit() -> None:
    people, labels, pair = torch.eye(2).repeat(1, 1, 1), torch.tensor([0, 1]), torch.tensor([0])
    for arguments, message in (
        ((torch.tensor([0, 2]), people, pair, pair, 0), "item 1: true label 2 is not between 0 and 1"),
        ((labels, people[0], pair, pair, 0), r"must be \[annotators, C, C\]"),
        ((labels, people * 0.9, pair, pair, 0), "a row that is no distribution"),
        (
            (labels, people, pair, pair, 0, torch.tensor([0.5, 1.5])),
            "difficulty must hold a value between 0 and 1",
        ),
        ((labels, people, pair, pair, 0, torch.tensor([0.5])), "for every item"),
    ):
        with pytest.raises(ValueError, match=message):
            annotate(*arguments)
