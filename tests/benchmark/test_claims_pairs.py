"""Claims that a metric is above what a probe says of pairs of trained models."""

from __future__ import annotations

from typing import Any

import pytest

from benchmark.claims import Verdict, evaluate_claims
from benchmark.spec import SpecError
from tests.benchmark.fixtures_report import outcomes_of, small_spec

TEST = {
    "kind": "above_pairs",
    "metric": "test_accuracy",
    "row": "first",
    "columns": ["easy", "hard"],
    "probe": "attention_difference",
    "pair": "two seeds",
}
FIGURE = {
    "form": "pairs",
    "y": ["attention_difference"],
    "pairs": [{"label": "two seeds", "first": "first", "second": "first", "across": True}],
}


def _record(column: str, first: int, second: int, value: float | None) -> dict[str, Any]:
    place = {"column": column, "pair": "two seeds", "probe": "attention_difference"}
    return {**place, "first_seed": first, "second_seed": second, "value": value, "reason": "", "details": {}}


def _verdict(
    pairs: list[dict[str, Any]], test: dict[str, Any] = TEST, figure: dict[str, Any] | None = FIGURE
) -> Verdict:
    claims = [{"id": "it", "says": "it is so", "source": "x", "test": test}]
    kind = {"kind": "figure", "figure": figure} if figure is not None else {}
    spec = small_spec(claims=claims, **kind)
    outcomes = outcomes_of(spec, "cpu", lambda row, column, seed: {"test_accuracy": 0.5 + 0.01 * seed})
    return evaluate_claims(spec, "cpu", outcomes, pairs)[0]


def test_a_seed_is_held_against_the_pairs_that_it_is_part_of() -> None:
    values = {(0, 1): 0.10, (0, 2): 0.20, (1, 2): 0.30}
    pairs = [
        _record(column, *seeds, value + shift)
        for column, shift in (("easy", 0.0), ("hard", 0.1))
        for seeds, value in values.items()
    ]
    pairs += [{**pairs[0], "probe": "loss_barrier", "value": 9.0}, {**pairs[0], "pair": "another", "value": 9.0}]
    verdict = _verdict(pairs)
    # by seed: .50 - (.15 + .05), .51 - (.20 + .05), .52 - (.25 + .05)
    assert verdict.n == 3 and verdict.effect == pytest.approx((0.30 + 0.26 + 0.22) / 3)
    assert verdict.verdict == "shown" and "attention difference of pairs, two seeds" in verdict.test


def test_without_probed_pairs_nothing_is_claimed() -> None:
    nothing = _verdict([])
    assert nothing.verdict == "not testable here" and nothing.reason == "no value, or no probed pair, in 3 of 3 seeds"
    some = [_record(column, 0, 1, 0.1) for column in ("easy", "hard")]
    few = _verdict(some)  # the third seed is in no pair
    assert (few.n, few.verdict) == (2, "not testable here") and "two seeds have only one pair" in few.reason
    # a seed of whose pairs one has no value is not held against the others alone
    assert _verdict([*some, _record("easy", 0, 2, None), _record("hard", 0, 2, 0.1)]).n == 1
    assert _verdict([_record("easy", 0, 1, 0.1), _record("hard", 0, 1, None)]).n == 0


@pytest.mark.parametrize(
    ("change", "figure", "message"),
    [
        ({}, None, "give it a figure of form 'pairs'"),
        ({"probe": "attention_diference"}, FIGURE, "did you mean attention_difference"),
        ({"pair": "two seed"}, FIGURE, "did you mean two seeds"),
        ({"row": "second"}, FIGURE, "the pair 'two seeds' must be of two seeds of 'second', not of first"),
    ],
)
def test_what_the_figure_does_not_have_is_named(
    change: dict[str, Any], figure: dict[str, Any] | None, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        _verdict([], {**TEST, **change}, figure)
