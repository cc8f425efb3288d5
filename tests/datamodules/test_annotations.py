"""Annotations: views against a plain loop over a dictionary, malformed tables by their message."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from crowdkit.aggregation import MajorityVote
from hypothesis import given
from hypothesis import strategies as st

from datamodules.annotations import AnnotationError, Annotations


@st.composite
def tables(draw: st.DrawFn) -> Annotations:
    """Any table: items, annotators and classes without labels, rows in any order, or none at all."""
    n_items, n_annotators, n_classes = (
        draw(st.integers(1, 7)),
        draw(st.integers(1, 5)),
        draw(st.integers(1, 4)),
    )
    pair = st.tuples(st.integers(0, n_items - 1), st.integers(0, n_annotators - 1))
    pairs = draw(st.lists(pair, unique=True, max_size=25))
    labels = draw(st.lists(st.integers(0, n_classes - 1), min_size=len(pairs), max_size=len(pairs)))
    columns = [torch.tensor(column, dtype=torch.int64) for column in ([p[0] for p in pairs], [p[1] for p in pairs])]
    return Annotations(*columns, torch.tensor(labels, dtype=torch.int64), n_items, n_annotators, n_classes)


def as_dictionary(noted: Annotations) -> dict[tuple[int, int], int]:
    columns = (noted.items.tolist(), noted.annotators.tolist(), noted.labels.tolist())
    return {(item, annotator): label for item, annotator, label in zip(*columns, strict=True)}


def small() -> Annotations:
    return Annotations([2, 0, 0], [1, 1, 0], [0, 1, 1], n_items=4, n_annotators=3, n_classes=5)


# --- views ------------------------------------------------------------------------------------


@given(tables())
def test_votes_count_what_a_loop_counts(noted: Annotations) -> None:
    expected = torch.zeros(noted.n_items, noted.n_classes, dtype=torch.int64)
    for (item, _), label in as_dictionary(noted).items():
        expected[item, label] += 1
    assert torch.equal(noted.votes(), expected)


@given(tables())
def test_dense_and_padded_hold_the_same_triples_and_nothing_else(noted: Annotations) -> None:
    assert Annotations.from_dense(noted.dense(), noted.n_classes).equals(noted)
    annotators, labels = noted.padded()
    assert Annotations.from_padded(annotators, labels, noted.n_annotators, noted.n_classes).equals(noted)
    assert annotators.shape[1] == max(1, int(noted.labels_per_item().max()))
    assert torch.equal(annotators == -1, labels == -1)


@given(tables(), st.integers(0, 9))
def test_the_order_of_the_rows_changes_nothing(noted: Annotations, seed: int) -> None:
    order = torch.randperm(len(noted), generator=torch.Generator().manual_seed(seed))
    shuffled = Annotations(
        noted.items[order],
        noted.annotators[order],
        noted.labels[order],
        noted.n_items,
        noted.n_annotators,
        noted.n_classes,
    )
    assert shuffled.equals(noted)


@given(tables(), st.integers(0, 5))
def test_majority_is_a_most_frequent_label(noted: Annotations, seed: int) -> None:
    votes, majority = noted.votes(), noted.majority(seed)
    for item in range(noted.n_items):
        if votes[item].sum() == 0:
            assert majority[item] == -1
        else:
            assert votes[item, majority[item]] == votes[item].max()


def test_majority_is_crowdkits_where_no_vote_is_tied() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (200, 5), generator=generator)
    noted = Annotations.from_dense(labels, 3)
    top = noted.votes().topk(2).values
    clear = (top[:, 0] > top[:, 1]).nonzero().flatten()
    expected = MajorityVote().fit_predict(noted.to_frame())
    assert noted.majority(0)[clear].tolist() == expected.loc[clear.numpy()].tolist()


def test_ties_are_broken_at_random_and_alike_for_a_seed() -> None:
    noted = Annotations.from_dense(torch.tensor([[0, 1]]).repeat(2000, 1), 2)
    share = noted.majority(0).double().mean()
    assert 0.45 < share < 0.55
    assert torch.equal(noted.majority(0), noted.majority(0))
    assert not torch.equal(noted.majority(0), noted.majority(1))


def test_a_class_without_votes_keeps_its_column() -> None:
    """checks.md 3 (cleanlab#519): votes for 0, 1 and 4 of 5 classes must not shift or lose columns."""
    noted = Annotations([0, 1, 2], [0, 0, 0], [0, 1, 4], n_items=3, n_annotators=1, n_classes=5)
    assert noted.votes().tolist() == [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 1]]


def test_a_table_without_any_annotation_has_all_its_views() -> None:
    empty = small().select(torch.zeros(0, dtype=torch.int64))
    assert len(empty) == 0 and empty.n_items == 4
    assert empty.votes().sum() == 0 and (empty.majority(0) == -1).all() and (empty.dense() == -1).all()
    assert [view.shape for view in empty.padded()] == [(4, 1), (4, 1)]
    assert len(empty.permute_annotators(0)) == len(empty.drop(0.5, 0)) == len(empty.budget(2, 0)) == 0


def test_dense_refuses_cifar10h_but_votes_and_padded_do_not_need_it() -> None:
    """Elsewhere items x annotators x classes was collated into batches: 2 GB on CIFAR-10H."""
    annotators = torch.arange(51).repeat(10_000) * 50
    items = torch.arange(10_000).repeat_interleave(51)
    noted = Annotations(items, annotators, torch.zeros_like(items), 10_000, 2_571, 10)
    with pytest.raises(ValueError, match=r"25,710,000 cells, above the limit of .*padded\(\) or votes\(\)"):
        noted.dense()
    assert noted.votes()[:, 0].eq(51).all() and noted.padded()[0].shape == (10_000, 51)


# --- other annotations of the same items ------------------------------------------------------


@given(tables(), st.data())
def test_select_keeps_the_numbering(noted: Annotations, data: st.DataObject) -> None:
    wanted = data.draw(st.lists(st.integers(0, noted.n_items - 1), unique=True))
    chosen = noted.select(torch.tensor(wanted, dtype=torch.int64))
    assert as_dictionary(chosen) == {pair: label for pair, label in as_dictionary(noted).items() if pair[0] in wanted}
    assert chosen.n_items == noted.n_items
    mask = torch.zeros(noted.n_items, dtype=torch.bool)
    mask[wanted] = True
    assert noted.select(mask).equals(chosen)


@given(tables(), st.floats(0, 1), st.floats(0, 1), st.integers(0, 3))
def test_drop_takes_exactly_its_share_and_nests(noted: Annotations, first: float, second: float, seed: int) -> None:
    low, high = sorted((first, second))
    less, more = as_dictionary(noted.drop(low, seed)), as_dictionary(noted.drop(high, seed))
    assert len(less) == len(noted) - round(low * len(noted))
    assert more.items() <= less.items() <= as_dictionary(noted).items()


@given(tables(), st.integers(0, 4), st.integers(0, 3))
def test_budget_leaves_k_an_item_and_nests(noted: Annotations, k: int, seed: int) -> None:
    chosen = noted.budget(k, seed)
    assert torch.equal(chosen.labels_per_item(), noted.labels_per_item().clamp(max=k))
    assert as_dictionary(chosen).items() <= as_dictionary(noted.budget(k + 1, seed)).items()


def test_budget_takes_every_annotation_of_an_item_equally_often() -> None:
    noted = Annotations.from_dense(torch.zeros(6000, 3, dtype=torch.int64), 1)
    assert (noted.budget(1, 0).labels_per_annotator() - 2000).abs().max() < 200


@given(tables(), st.integers(0, 3))
def test_permuting_keeps_labels_and_workloads(noted: Annotations, seed: int) -> None:
    permuted = noted.permute_annotators(seed)
    assert torch.equal(permuted.votes(), noted.votes())
    assert torch.equal(permuted.labels_per_annotator(), noted.labels_per_annotator())
    assert len(as_dictionary(permuted)) == len(noted)


def test_permuting_destroys_identity_with_one_label_an_item() -> None:
    """With one label an item nothing can move within items; ids must then move across them."""
    annotators = torch.arange(4000) // 100
    noted = Annotations(torch.arange(4000), annotators, annotators % 4, 4000, 40, 4)
    permuted = noted.permute_annotators(0)
    stayed = (permuted.annotators == annotators).double().mean()
    assert stayed < 0.05  # 1 in 40 by chance
    agreeing = (permuted.labels == permuted.annotators % 4).double().mean()
    assert 0.2 < agreeing < 0.3  # 1 in 4 by chance; it was all of them


def test_permuting_destroys_identity_where_everyone_labels_everything() -> None:
    """A complete table leaves no free place to move an id to: a shuffle with redraws would never end."""
    noted = Annotations.from_dense(torch.arange(4).repeat(1000, 1), 4)
    permuted = noted.permute_annotators(0)
    assert 0.2 < (permuted.dense() == noted.dense()).double().mean() < 0.3


def test_permuting_depends_on_the_seed_alone() -> None:
    noted = Annotations.from_dense(torch.randint(-1, 3, (50, 6), generator=torch.Generator().manual_seed(0)), 3)
    torch.manual_seed(1)
    first = noted.permute_annotators(5)
    torch.manual_seed(2)
    assert noted.permute_annotators(5).equals(first)
    assert not noted.permute_annotators(6).equals(first)


# --- tables -----------------------------------------------------------------------------------


def frame(**columns: list[object]) -> pd.DataFrame:
    return pd.DataFrame({"task": ["b", "a", "b"], "worker": [907, -3, -3], "label": [0, 2, 1]} | columns)


def test_ids_of_any_kind_are_numbered_and_come_back() -> None:
    noted = Annotations.from_frame(frame())
    assert (noted.n_items, noted.n_annotators, noted.n_classes) == (2, 2, 3)
    assert noted.item_ids == ("a", "b") and noted.annotator_ids == (-3, 907)
    assert as_dictionary(noted) == {(0, 0): 2, (1, 0): 1, (1, 1): 0}
    back = noted.to_frame()
    assert sorted(map(tuple, back.values.tolist())) == sorted(map(tuple, frame().values.tolist()))
    assert Annotations.from_frame(back).equals(noted)


@given(tables())
def test_a_table_survives_the_way_to_a_frame_and_back(noted: Annotations) -> None:
    back = Annotations.from_frame(
        noted.to_frame(),
        n_classes=noted.n_classes,
        items=range(noted.n_items),
        annotators=range(noted.n_annotators),
    )
    assert back.equals(noted)


def test_ids_given_explicitly_keep_those_without_a_label() -> None:
    noted = Annotations.from_frame(
        frame(label=["cat", "dog", "cat"]),
        classes=["ant", "cat", "dog"],
        items=["c", "b", "a"],
        annotators=[1, -3, 907],
    )
    assert (noted.n_items, noted.n_annotators, noted.n_classes) == (3, 3, 3)
    assert noted.votes().tolist() == [[0, 0, 0], [0, 2, 0], [0, 0, 1]]
    assert noted.labels_per_annotator().tolist() == [0, 2, 1]
    assert set(noted.to_frame()["label"]) == {"cat", "dog"}


def test_whole_numbers_in_other_types_are_labels() -> None:
    for labels in (
        np.array([0.0, 2.0, 1.0]),
        np.array([0, 2, 1], dtype=object),
        pd.array([0, 2, 1], dtype="Int64"),
    ):
        assert Annotations.from_frame(frame(label=labels)).n_classes == 3


def test_reading_a_frame_warns_of_nothing() -> None:
    """pandas hands out read-only arrays, of which torch warned on every read."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Annotations.from_frame(frame())


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (frame().drop(columns="worker"), {}, "no column worker; the table has task, label.*Rename"),
        (pd.concat([frame(), frame()[["label"]]], axis=1), {}, "two columns are called label; keep one"),
        (frame(task=["b", None, "b"]), {}, "row 1: no task; delete the row"),
        (frame(worker=[1, 2, float("nan")]), {}, "row 2: no worker; delete the row"),
        (frame(label=[0, float("nan"), 1]), {}, "row 1: no label; delete the row"),
        (frame(label=[0, 1, 2.5]), {}, "row 2: label is 2.5, not a whole number"),
        (frame(label=[0, 1, float("inf")]), {}, "row 2: label is inf, not a whole number"),
        (frame(), {"n_classes": 2}, "row 1: label is 2; with 2 of them it must lie between 0 and 1; correct"),
        (frame(label=[0, 1, -1]), {}, "row 2: label is -1.*leave out missing annotations"),
        (
            frame(label=["x", "y", "z"]),
            {"classes": ["x", "y"]},
            "row 2: unknown class 'z'; there are 'x', 'y'. Correct",
        ),
        (
            frame(label=["x", "y", "z"]),
            {"n_classes": 5},
            "3 classes occur .* but n_classes is 5; give all of them",
        ),
        (frame(), {"classes": [0, 1, 2], "n_classes": 4}, "n_classes is 4, yet 3 classes are given"),
        (frame(), {"items": ["a"]}, "row 0: unknown task 'b'; there are 'a'. Correct"),
        (frame(), {"annotators": [907, 907, -3]}, "907 is given twice as a worker; list each once"),
        (
            frame(task=["b", "a", "b"], worker=[5, 6, 5]),
            {},
            "rows 0 and 2: worker 5 labels task 'b' twice; keep one",
        ),
    ],
)
def test_a_malformed_table_is_refused_by_row_and_remedy(table: pd.DataFrame, options: dict, message: str) -> None:
    with pytest.raises(AnnotationError, match=message):
        Annotations.from_frame(table, **options)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([0, -1], [0, 0], [0, 0]), "row 1: item is -1.*between 0 and 2; leave out missing"),
        (([0, 3], [0, 0], [0, 0]), "row 1: item is 3.*between 0 and 2"),
        (([0, 1], [0, 2], [0, 0]), "row 1: annotator is 2.*between 0 and 1"),
        (([0, 1], [0, 1], [0, 9]), "row 1: label is 9.*between 0 and 1"),
        (([1, 0, 1], [0, 0, 0], [0, 0, 1]), "rows 0 and 2: annotator 0 labels item 1 twice; keep one"),
        (([0, 1], [0], [0, 0]), "columns of lengths"),
        (([[0]], [0], [0]), "item column has shape"),
        (([0, 1], [0, 1], ["cat", "dog"]), "label column holds other things than numbers.*from_frame"),
        (([0], [0], [float("nan")]), "row 0: label is nan, not a whole number"),
    ],
)
def test_malformed_triples_are_refused_by_row_and_remedy(columns: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Annotations(*columns, n_items=3, n_annotators=2, n_classes=2)


def test_arguments_out_of_range_are_named() -> None:
    noted = small()
    for call, message in (
        (lambda: noted.drop(1.5, 0), "rate is 1.5"),
        (lambda: noted.budget(-1, 0), "k is -1"),
        (lambda: noted.select(torch.tensor([4])), "no item 4; select from items 0 to 3"),
        (lambda: noted.select(torch.ones(3, dtype=torch.bool)), "a mask of 3 for 4 items"),
        (
            lambda: Annotations.from_padded(torch.tensor([[0]]), torch.tensor([[-1]]), 1, 1),
            "row 0: an annotator without",
        ),
        (
            lambda: Annotations.from_padded(torch.tensor([[0]]), torch.tensor([0]), 1, 1),
            "give a label with every",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()
