"""Soft labels of a support set."""

from __future__ import annotations

import pytest
import torch

from models.support_targets import RULES, support_targets

LABELS = torch.tensor([[[0, 0, 1], [1, 1, 1], [2, 0, -1], [-1, -1, -1]]])


def test_votes_by_hand() -> None:
    fractions = [[2 / 3, 1 / 3, 0], [0, 1, 0], [0.5, 0, 0.5], [0, 0, 0]]
    winners = [[1, 0, 0], [0, 1, 0], [0.5, 0, 0.5], [0, 0, 0]]
    for rule, expected in (("majority", fractions), ("majority_hard", winners)):
        found = support_targets(LABELS, 3, rule)
        torch.testing.assert_close(found, torch.tensor([expected], dtype=torch.float64))


@pytest.mark.parametrize("rule", RULES)
def test_weights_sum_to_one_or_to_nothing(rule: str) -> None:
    sums = support_targets(LABELS, 3, rule).sum(dim=2)
    torch.testing.assert_close(sums, torch.tensor([[1.0, 1.0, 1.0, 0.0]], dtype=torch.float64))


def test_an_unknown_rule_lists_near_ones() -> None:
    with pytest.raises(ValueError, match="did you mean majority"):
        support_targets(LABELS, 3, "majorty")
