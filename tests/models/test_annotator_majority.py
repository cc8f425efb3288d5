"""Each annotator's most frequent class."""

from __future__ import annotations

import lightning as L
import pytest
import torch

from benchmark.contracts.training import MethodCase, quiet
from benchmark.testing import iter_checks
from datamodules.base import DataInfo
from models.annotator_majority.module import AnnotatorMajority

TOKENS = DataInfo(n_classes=5, n_annotators=6, input_shape=(4, 8))


@pytest.mark.parametrize("check", list(iter_checks(AnnotatorMajority, data_info=TOKENS)), ids=str)
def test_contract(check) -> None:  # type: ignore[no-untyped-def]
    check()


def test_each_training_label_counts_once_however_many_epochs_and_trainings() -> None:
    run = MethodCase(AnnotatorMajority, {}, TOKENS).fit()  # two epochs
    noted = run.data.train_annotations
    expected = torch.zeros(6, 5, dtype=torch.int64)
    expected.index_put_((noted.annotators, noted.labels), torch.ones(len(noted.labels), dtype=torch.int64), True)
    assert torch.equal(run.method.counts, expected)
    with quiet():
        again = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False)
        again.fit(run.method, datamodule=run.data)
    assert torch.equal(run.method.counts, expected)


def counted(counts: list[list[int]]) -> AnnotatorMajority:
    method = AnnotatorMajority(DataInfo(len(counts[0]), len(counts), (8,)))
    method.counts.copy_(torch.tensor(counts))
    return method


def test_the_most_frequent_class_is_predicted_by_hand() -> None:
    method = counted([[5, 1, 0], [2, 3, 3], [0, 0, 0], [9, 0, 10]])
    answers = method.predict_annotators(torch.zeros(2, 8))
    # annotator 1: a tie of 1 and 2, and all say 2 more often; annotator 2 has no label: what all say most, 0
    assert answers.argmax(-1).tolist() == [[0, 2, 0, 2]] * 2
    torch.testing.assert_close(answers.exp().sum(-1), torch.ones(2, 4))
    asked = method.predict_annotators(torch.zeros(1, 8), torch.tensor([[3, -1, 0]]))
    assert torch.equal(asked[0, [0, 2]], answers[0, [3, 0]])


def test_one_label_more_than_any_other_class_is_enough() -> None:
    # what all others say may break a tie, and no more than that
    method = counted([[0, 3, 4]] + [[1000, 0, 0]] * 20)
    assert int(method.predict_annotators(torch.zeros(1, 8))[0, 0].argmax()) == 2
