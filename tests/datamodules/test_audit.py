"""The audit: by hand, against krippendorff and scikit-learn, and on crowds whose differences are known."""

from __future__ import annotations

import json
from pathlib import Path

import krippendorff
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, kstest

from datamodules.agreement import annotator_variance, krippendorff_alpha, raw_agreement, score
from datamodules.annotations import Annotations
from datamodules.audit import audit, describe
from datamodules.cifar10n import Cifar10N
from datamodules.cifar100n import Cifar100N
from datamodules.simulate import POPULATIONS, AnnotatorType, confusions, item_difficulty, simulate


def crowd(
    name: str, seed: int = 0, n_items: int = 1500, labels_per_item: float = 3, n_annotators: int = 40
) -> tuple[Annotations, torch.Tensor]:
    true_labels = torch.arange(n_items) % 5
    people = confusions(POPULATIONS[name], n_annotators, 5, seed)
    return simulate(true_labels, people, labels_per_item, seed, skew=1.0), true_labels


# --- agreement --------------------------------------------------------------------------------


def test_alpha_of_a_textbook_table() -> None:
    """Krippendorff's example of four observers, nominal (Computing Krippendorff's alpha-reliability)."""
    table = """
        1 2 3 3 2 1 4 1 2 . . .
        1 2 3 3 2 2 4 1 2 5 . 3
        . 3 3 3 2 3 4 2 2 5 1 .
        1 2 3 3 2 4 4 1 2 5 1 ."""
    rows = [[-1 if word == "." else int(word) - 1 for word in line.split()] for line in table.strip().split("\n")]
    noted = Annotations.from_dense(torch.tensor(rows).T, 5)
    assert krippendorff_alpha(noted) == pytest.approx(0.743, abs=5e-4)


def test_agreement_by_hand() -> None:
    # pairs that agree: 1 of 3 in item 0, 1 of 1 in item 1; item 2 has one label and does not count
    noted = Annotations.from_dense(torch.tensor([[0, 0, 1], [1, 1, -1], [0, -1, -1]]), 2)
    assert raw_agreement(noted) == pytest.approx((1 / 3 + 1) / 2)
    # coincidences: o00 = 1, o11 = 2, off the diagonal 2, n = 5; expected agreement (2*1 + 3*2) / (5*4)
    assert krippendorff_alpha(noted) == pytest.approx(1 - (2 / 5) / (1 - 8 / 20))


@given(st.lists(st.lists(st.integers(-1, 2), min_size=3, max_size=3), min_size=1, max_size=8))
def test_alpha_is_that_of_the_package_krippendorff(rows: list[list[int]]) -> None:
    noted = Annotations.from_dense(torch.tensor(rows), 3)
    ours = krippendorff_alpha(noted)
    try:
        with np.errstate(invalid="ignore"):
            theirs = krippendorff.alpha(value_counts=noted.votes().numpy(), level_of_measurement="nominal")
    except ValueError:  # no item with two labels
        theirs = float("nan")
    assert (ours is None and np.isnan(theirs)) or ours == pytest.approx(theirs)


def test_one_label_an_item_has_no_agreement_and_the_audit_goes_on() -> None:
    """checks.md 7 (fast-krippendorff#26): the package raises on one label an item, as CIFAR-100N has."""
    noted, true_labels = crowd("hammer-spammer", labels_per_item=1)
    found = audit(noted, true_labels)
    assert found.krippendorff_alpha is None and found.raw_agreement is None
    assert found.annotator_variance_ratio is not None and found.annotator_variance_ratio > 3
    assert ("Krippendorff's alpha", "n/a") in describe(found)
    assert any("no item has two labels" in note for note in found.notes)
    assert "cannot be said" in audit(noted).verdict


# --- do annotators differ ---------------------------------------------------------------------


def test_the_ratio_is_scipys_chi_squared_over_its_degrees_of_freedom() -> None:
    noted, true_labels = crowd("mixed")
    found = audit(noted, true_labels)
    wrong = (noted.labels != true_labels[noted.items]).long()
    table = torch.bincount(noted.annotators * 2 + wrong, minlength=2 * noted.n_annotators).reshape(-1, 2)
    expected = chi2_contingency(table.numpy(), correction=False)
    assert found.annotator_variance_ratio == pytest.approx(expected.statistic / expected.dof)
    assert found.noise_rate == pytest.approx(float(wrong.double().mean()))


@pytest.mark.parametrize("known", [True, False], ids=["clean labels", "leave-one-out majority"])
def test_identical_annotators_give_one_and_differing_ones_far_more(known: bool) -> None:
    for seed in range(3):
        same, true_labels = crowd("identical", seed)
        other, _ = crowd("mixed", seed)
        found, differing = (audit(noted, true_labels if known else None, seed) for noted in (same, other))
        assert 0.4 < found.annotator_variance_ratio < 1.7 and found.annotator_variance_p > 0.01
        assert found.verdict.startswith("No difference between annotators shows")
        assert differing.annotator_variance_ratio > 5 and differing.annotator_variance_p <= 0.005
        assert differing.verdict.startswith("Annotators differ")


@pytest.mark.parametrize("known", [True, False], ids=["clean labels", "leave-one-out majority"])
def test_the_p_value_is_uniform_where_annotators_are_the_same(known: bool) -> None:
    """Also where items differ in difficulty, which makes errors cluster on items but not on annotators."""
    true_labels = torch.arange(400) % 4
    people = confusions(POPULATIONS["identical"], 25, 4, 0)
    found = []
    for seed in range(150):
        difficulty = item_difficulty(400, 0.2, seed, 0.5)
        noted = simulate(true_labels, people, 3, seed, difficulty, skew=1.0)
        found.append(audit(noted, true_labels if known else None, seed, permutations=199).annotator_variance_p)
    assert kstest(found, "uniform").pvalue > 0.001
    assert np.mean(np.array(found) <= 0.05) < 0.11


def test_dealing_counts_is_dealing_ids() -> None:
    """The p-value draws error counts in place of shuffles; both must give the same distribution of ratios."""
    noted, true_labels = crowd("identical", n_items=200)
    wrong = noted.labels != true_labels[noted.items]
    found = annotator_variance(noted.annotators, wrong, noted.n_annotators, 0, 2000)
    generator = torch.Generator().manual_seed(0)
    shuffled = []
    for _ in range(400):
        order = torch.randperm(len(wrong), generator=generator)
        shuffled.append(annotator_variance(noted.annotators, wrong[order], noted.n_annotators, 0, 1).ratio)
    assert found.null_mean == pytest.approx(np.mean(shuffled), abs=0.05)
    assert found.null_sd == pytest.approx(np.std(shuffled), rel=0.2)


def test_permuted_ids_bring_the_ratio_back_to_one() -> None:
    noted, true_labels = crowd("mixed")
    found = audit(noted.permute_annotators(0), true_labels)
    assert 0.4 < found.annotator_variance_ratio < 1.7 and found.annotator_variance_p > 0.01


def test_the_spread_beyond_chance_is_that_of_the_true_accuracies() -> None:
    people = confusions([AnnotatorType("hammer", 1.0, accuracy=(0.5, 0.9))], 60, 5, 0)
    noted = simulate(torch.arange(8000) % 5, people, 3, 0)
    found = audit(noted, torch.arange(8000) % 5)
    assert found.annotator_error_sd == pytest.approx(float(people[:, 0, 0].std()), rel=0.1)


def test_leave_one_out_by_hand() -> None:
    # item 0: the twos win without one of theirs in a tie (1:1), the lone label loses; item 1: nobody else
    # item 2: a lead of two wins outright; item 3: two against two, either loses to the other
    rows = [[2, 2, 0, -1], [1, -1, -1, -1], [0, 0, 0, 1], [0, 0, 1, 1]]
    noted = Annotations.from_dense(torch.tensor(rows), 3)
    wrong = torch.stack([score(noted, None, seed)[1] for seed in range(300)]).double().mean(dim=0)
    scored, _ = score(noted, None, 0)
    assert scored.tolist() == [True] * 3 + [False] + [True] * 8
    assert wrong[:2].tolist() == pytest.approx([0.5, 0.5], abs=0.12) and wrong[2] == 1
    assert wrong[4:].tolist() == [0, 0, 0, 1] + [1] * 4


@given(st.lists(st.lists(st.integers(-1, 2), min_size=4, max_size=4), min_size=1, max_size=6), st.integers(0, 3))
def test_leave_one_out_is_what_a_loop_finds(rows: list[list[int]], seed: int) -> None:
    noted = Annotations.from_dense(torch.tensor(rows), 3)
    scored, wrong = score(noted, None, seed)
    votes = noted.votes()
    for row, (item, label) in enumerate(zip(noted.items.tolist(), noted.labels.tolist(), strict=True)):
        others = votes[item].clone()
        others[label] -= 1
        assert scored[row] == bool(others.sum())
        winners = (others == others.max()).nonzero().flatten().tolist()
        if scored[row] and (label not in winners or winners == [label]):
            assert wrong[row] == (label not in winners)


# --- the rest ---------------------------------------------------------------------------------


def test_counts_by_hand() -> None:
    noted = Annotations([0, 0, 1, 3], [0, 1, 1, 1], [0, 4, 0, 1], n_items=5, n_annotators=4, n_classes=6)
    found = audit(noted, torch.tensor([0, 1, 2, 1, -1]))
    assert (found.n_items, found.n_annotators, found.n_annotations, found.n_classes) == (5, 4, 4, 6)
    assert (found.n_items_without_labels, found.n_annotators_without_labels) == (2, 2)
    assert found.labels_per_item.min == 0 and found.labels_per_item.max == 2 and found.labels_per_item.median == 1
    assert found.labels_per_annotator.mean == 1.0 and found.labels_per_annotator.q3 == 1.5
    assert found.class_counts == (2, 1, 0, 0, 1, 0) and found.true_class_counts == (1, 2, 1, 0, 0, 0)
    assert found.noise_rate == 0.5


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), unique=True, max_size=9), st.booleans())
def test_any_table_gives_strict_json_and_text(pairs: list[tuple[int, int]], known: bool) -> None:
    columns = [torch.tensor(column, dtype=torch.int64) for column in ([p[0] for p in pairs], [p[1] for p in pairs])]
    noted = Annotations(*columns, torch.zeros(len(pairs)), n_items=3, n_annotators=3, n_classes=2)
    found = audit(noted, torch.tensor([0, 1, -1]) if known else None, permutations=19)
    back = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert {"raw_agreement", "krippendorff_alpha", "annotator_variance_ratio", "annotator_variance_p"} <= set(back)
    assert all(isinstance(label, str) and isinstance(value, str) for label, value in describe(found))


def test_copied_labels_are_noted() -> None:
    """CIFAR-10N's worst label stands for all three workers: full agreement that nobody reached."""
    noted = Annotations.from_dense(torch.tensor([[0, 0, 0], [1, 1, 1]]), 2)
    assert any("copied" in note for note in audit(noted, torch.tensor([0, 0])).notes)


def test_the_audit_is_the_same_whatever_was_drawn_before() -> None:
    noted, _ = crowd("mixed")
    torch.manual_seed(1)
    np.random.seed(1)
    first = audit(noted)
    torch.manual_seed(2)
    np.random.seed(2)
    assert audit(noted) == first


def test_clean_labels_that_do_not_fit_are_refused() -> None:
    noted = Annotations([0], [0], [0], n_items=2, n_annotators=1, n_classes=2)
    with pytest.raises(ValueError, match="give one for each of the 2 items"):
        audit(noted, torch.tensor([0]))
    with pytest.raises(ValueError, match="item 1: true label 2 is not between 0 and 1"):
        audit(noted, torch.tensor([0, 2]))


def test_labelme_annotators_differ(real_data: Path) -> None:
    """The positive control among the real data; its majority vote is right for about 77 % (data README)."""
    with np.load(real_data / "labelme" / "labelme_vgg16avg.npz", allow_pickle=False) as arrays:
        answers, truth = (torch.from_numpy(arrays[key].astype(np.int64)) for key in ("answers", "y_train"))
    found = audit(Annotations.from_dense(answers, 8), truth)
    assert (found.n_items, found.n_annotators, found.n_annotations) == (1000, 59, 2547)
    assert found.annotator_variance_ratio > 1.5 and found.annotator_variance_p <= 0.005
    assert found.majority_noise_rate == pytest.approx(0.23, abs=0.02)


def test_cifar10n_annotators_do_not_differ_and_cifar100n_ones_do(real_data: Path) -> None:
    """CIFAR-10N's worker ids do not line up with its labels; CIFAR-100N's do (data README, facts measured)."""
    ten = audit(*Cifar10N("aggre", root=real_data).annotations_for_audit())
    assert ten.noise_rate == pytest.approx((0.1723 + 0.1812 + 0.1764) / 3, abs=1e-4)
    assert 0.75 < ten.annotator_variance_ratio < 1.25 and ten.annotator_variance_p > 0.01
    assert ten.verdict.startswith("No difference between annotators shows")
    hundred = audit(*Cifar100N("noisy", root=real_data).annotations_for_audit())
    assert hundred.noise_rate == pytest.approx(0.4020, abs=1e-4) and hundred.krippendorff_alpha is None
    assert hundred.annotator_variance_ratio > 10 and hundred.annotator_variance_p <= 0.005
