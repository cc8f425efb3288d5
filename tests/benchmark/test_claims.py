"""Claims: verdicts follow from numbers by the stated rules, and from nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmark.claims import claim_notes, evaluate_claims, to_json, to_markdown, write_claims
from benchmark.claims.evaluate import Verdict
from benchmark.claims.judge import judge
from benchmark.claims.kinds import Equivalence, Side, parse_test
from benchmark.report.statistics import prediction_interval, prediction_p, t_interval
from benchmark.result import Outcome
from benchmark.spec import SpecError
from benchmark.table_parts import ClaimSpec
from tests.benchmark.fixtures_report import outcomes_of, result_of, small_spec

BETTER = {
    "kind": "paired_difference",
    "metric": "test_accuracy",
    "first": {"row": "first", "columns": ["easy", "hard"]},
    "second": {"row": "second", "columns": ["easy", "hard"]},
}
EQUAL = {**BETTER, "kind": "equivalence", "margin": 0.02}
FALLS = {
    "kind": "trend",
    "metric": "test_accuracy",
    "row": "first",
    "columns": ["easy", "hard"],
    "direction": "falling",
}
FOLLOWS = {"kind": "correlation", "row": "first", "columns": ["easy"], "curves": ["val_accuracy", "mean_skill"]}


def _verdict(test: dict[str, Any], differences: list[Any], metric: str = "test_accuracy") -> Verdict:
    """Verdict where the first row is better than the second by ``differences``, a value (or status) per seed."""
    spec = small_spec(claims=[{"id": "it", "says": "it is so", "source": "Table 1", "test": test}])

    def numbers(row: str, column: str, seed: int) -> dict[str, float | None] | str:
        difference = differences[seed]
        if isinstance(difference, str):
            return difference if row == "first" else {metric: 0.5}
        base = 0.5 + 0.1 * seed - (0.2 if column == "hard" else 0.0)
        return {metric: base + (difference if row == "first" else 0.0)}

    return evaluate_claims(spec, "cpu", outcomes_of(spec, "cpu", numbers, seeds=len(differences)))[0]


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([0.05, 0.06, 0.055], "shown"),
        ([-0.05, -0.06, -0.055], "contradicted"),
        ([0.05, -0.06, 0.01], "not shown"),
        ([0.05], "not testable here"),
    ],
)
def test_a_paired_difference_is_judged_by_its_interval_over_seeds(differences: list[float], expected: str) -> None:
    verdict = _verdict(BETTER, differences)
    assert verdict.verdict == expected
    if expected != "not testable here":
        assert verdict.n == 3 and verdict.effect == pytest.approx(float(np.mean(differences)))
        assert verdict.low is not None and verdict.high is not None and verdict.low < verdict.effect < verdict.high


def test_seeds_are_paired_so_that_what_they_share_cancels() -> None:
    # the seeds' own levels differ by .1, ten times the difference that is to be seen
    assert _verdict(BETTER, [0.010, 0.011, 0.012]).verdict == "shown"


def test_the_unit_is_the_seed_not_the_column() -> None:
    assert _verdict(BETTER, [0.05, 0.06, 0.055]).n == 3


def test_lower_is_better_where_the_metric_says_so() -> None:
    test = {**BETTER, "metric": "test_nll"}
    assert _verdict(test, [-0.05, -0.06, -0.055], metric="test_nll").verdict == "shown"
    assert _verdict(test, [0.05, 0.06, 0.055], metric="test_nll").verdict == "contradicted"


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([0.001, -0.001, 0.002], "shown"),
        ([0.05, 0.051, 0.052], "contradicted"),
        ([-0.05, -0.051, -0.052], "contradicted"),
        ([0.03, -0.03, 0.0], "not shown"),
        ([0.018, 0.022, 0.02], "not shown"),
    ],
)
def test_equivalence_needs_the_margin_not_the_absence_of_a_difference(differences: list[float], expected: str) -> None:
    assert _verdict(EQUAL, differences).verdict == expected


def test_a_trend_over_columns() -> None:
    assert _verdict(FALLS, [0.0, 0.001, -0.001]).effect == pytest.approx(0.2)
    assert _verdict(FALLS, [0.0] * 6).verdict == "shown"
    assert _verdict({**FALLS, "direction": "rising"}, [0.0] * 6).verdict == "contradicted"


def test_what_rounding_leaves_of_equal_numbers_is_no_effect() -> None:
    # 0.1 + 0.2 - 0.3 is 6e-17: the same in every seed, so a t test would call it significant
    spec = small_spec(claims=[{"id": "it", "says": "it", "source": "x", "test": BETTER}])
    values = {("first", "easy"): 0.1 + 0.2, ("second", "easy"): 0.3}
    outcomes = outcomes_of(spec, "cpu", lambda row, column, _: {"test_accuracy": values.get((row, column), 0.5)})
    assert evaluate_claims(spec, "cpu", outcomes)[0].verdict == "not shown"


def test_a_value_above_a_reference() -> None:
    test = {"kind": "value", "metric": "test_accuracy", "row": "second", "columns": ["easy"], "above": 0.4}
    assert _verdict(test, [0.0] * 6).verdict == "shown"


def _followed(curves: dict[str, list[float | None]]) -> Verdict:
    spec = small_spec(claims=[{"id": "it", "says": "it follows", "source": "Figure 1", "test": FOLLOWS}])
    outcomes = [
        Outcome(each.row, each.column, each.cell, "0", "done", result_of(each.cell, {}, curves=curves))
        for each in outcomes_of(spec, "cpu", lambda *_: {})
    ]
    return evaluate_claims(spec, "cpu", outcomes)[0]


def test_a_correlation_of_curves_over_epochs() -> None:
    rising, falling = [0.1, 0.2, 0.3, 0.4, 0.5], [0.9, 0.8, 0.6, 0.5, 0.3]
    # weak, but the same in every seed: an interval over seeds alone has no width and would call it shown
    weak = _followed({"val_accuracy": rising, "mean_skill": [0.3, 0.1, 0.5, 0.2, 0.4]})  # type: ignore[dict-item]
    assert weak.verdict == "not shown" and weak.effect is not None and weak.effect > 0
    assert weak.low is not None and weak.high is not None and weak.low < 0 < weak.effect < weak.high
    assert _followed({"val_accuracy": rising, "mean_skill": rising}).verdict == "shown"  # type: ignore[dict-item]
    assert _followed({"val_accuracy": rising, "mean_skill": falling}).verdict == "contradicted"  # type: ignore[dict-item]
    flat = _followed({"val_accuracy": rising, "mean_skill": [0.7] * 5})  # type: ignore[dict-item]
    assert flat.verdict == "not testable here" and "constant" in flat.reason
    assert _followed({}).verdict == "not testable here"


@pytest.mark.parametrize(
    ("differences", "part"),
    [
        (["missing"] * 3, "6 of 12 cells missing"),
        (["failed: Error: x"] * 3, "6 of 12 cells failed"),
        (["n/a: digits has no annotator ids"] * 3, "n/a: digits has no annotator ids"),
        ([0.1, "missing", "missing"], "one seed has no spread"),
    ],
)
def test_what_cannot_be_tested_says_why(differences: list[Any], part: str) -> None:
    verdict = _verdict(BETTER, differences)
    assert verdict.verdict == "not testable here" and part in verdict.reason
    assert verdict.effect is None and verdict.p is None


def test_seeds_that_lack_a_cell_are_left_out_and_told() -> None:
    verdict = _verdict(BETTER, [0.05, 0.06, "failed: Error: x", 0.055])
    assert (verdict.verdict, verdict.n) == ("shown", 3) and "2 of 16 cells failed" in verdict.reason


def test_cells_that_were_not_asked_for_are_told() -> None:
    spec = small_spec(claims=[{"id": "it", "says": "it", "source": "x", "test": BETTER}])
    only = [each for each in outcomes_of(spec, "cpu", lambda *_: {"test_accuracy": 0.5}) if each.row == "first"]
    verdict = evaluate_claims(spec, "cpu", only)[0]
    assert verdict.verdict == "not testable here" and "not run: second in easy" in verdict.reason
    assert evaluate_claims(spec, "cpu", [])[0].verdict == "not testable here"


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ({**BETTER, "kind": "paired_diference"}, "did you mean paired_difference"),
        ({**BETTER, "metric": "test_acuracy"}, "did you mean test_accuracy"),
        ({**BETTER, "first": {"row": "frist", "columns": ["easy", "hard"]}}, "did you mean first"),
        ({**BETTER, "first": {"row": "first", "columns": ["easy", "hrad"]}}, "did you mean hard"),
        ({**BETTER, "first": {"row": "first", "columns": ["easy"]}}, "equally many columns"),
        ({**EQUAL, "margin": 0}, "margin"),
        ({**BETTER, "extra": 1}, "extra"),
        ({}, "kind of test"),
    ],
)
def test_a_wrong_claim_names_itself_and_the_remedy(test: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        _verdict(test, [0.1, 0.2])
    assert "'it' of 'demo/small'" in str(caught.value)


def test_p_values_are_adjusted_over_the_claims_of_a_paper_and_a_profile() -> None:
    claims = [{"id": name, "says": "it", "source": "x", "test": BETTER} for name in ("one", "two")]
    spec = small_spec(claims=claims)
    rng = np.random.default_rng(0)
    noise = {("first", seed): float(rng.normal(0.02, 0.01)) for seed in range(4)}
    outcomes = outcomes_of(
        spec, "cpu", lambda row, _, seed: {"test_accuracy": 0.5 + noise.get((row, seed), 0.0)}, seeds=4
    )
    verdicts = evaluate_claims(spec, "cpu", outcomes)
    assert all(each.p is not None and each.p_holm == pytest.approx(2 * each.p) for each in verdicts)


def test_markdown_and_json_hold_every_verdict(tmp_path: Path) -> None:
    verdicts = [_verdict(BETTER, [0.05, 0.06, 0.055]), _verdict(EQUAL, ["missing"] * 3)]
    text = to_markdown(verdicts)
    assert "**shown**" in text and "**not testable here**" in text and "6 of 12 cells missing" in text
    records = json.loads(json.dumps(to_json(verdicts), allow_nan=False))
    assert [record["verdict"] for record in records] == ["shown", "not testable here"]
    assert [path.name for path in write_claims(verdicts, tmp_path)] == ["claims.md", "claims.json"]
    assert "No table here lists a claim" in to_markdown([])


def test_publishing_one_profile_keeps_the_verdicts_of_the_others(tmp_path: Path) -> None:
    # publishing the cpu profile alone once wiped the demo and paper verdicts of every paper
    first = replace(_verdict(BETTER, [0.05, 0.06, 0.055]), profile="demo")
    words = (first.says, first.test)
    known = {("demo/small", "it"): words, ("demo/small", "other"): words}
    gone, changed = replace(first, claim="gone"), replace(first, claim="other", test="another test")
    write_claims([first, gone, changed], tmp_path)
    second = replace(_verdict(BETTER, [-0.05, -0.06, -0.055]), profile="cpu")
    write_claims([second], tmp_path, known)
    records = json.loads((tmp_path / "claims.json").read_text())
    kept = [(each["claim"], each["profile"], each["verdict"]) for each in records]
    # neither a claim that is gone nor the verdict of a test that is no longer the claim's
    assert kept == [("it", "cpu", "contradicted"), ("it", "demo", "shown")]
    write_claims([replace(second, verdict="not shown")], tmp_path, known)
    assert "**contradicted**" not in (tmp_path / "claims.md").read_text()
    (tmp_path / "claims.json").write_text("[{}]")
    with pytest.raises(ValueError, match=r"claims\.json cannot be read as verdicts"):
        write_claims([second], tmp_path, known)


def test_few_seeds_that_agree_exactly_show_nothing() -> None:
    # two seeds, both better by one test item: no spread, so an interval without width and p = 0 called it shown
    assert _verdict(BETTER, [0.25, 0.25, 0.25]).verdict == "not shown"
    few = _verdict(BETTER, [0.25, 0.25])
    assert few.verdict == "not shown" and few.p == pytest.approx(0.5)
    assert _verdict(BETTER, [-0.25] * 3).verdict == "not shown"
    assert _verdict(BETTER, [0.25] * 6).verdict == "shown"


def test_one_realisation_is_not_made_certain_by_repeating_it() -> None:
    # CIFAR-10N's ids against permuted ids: three seeds of the same ids made their luck look like a finding
    against = [-0.06, -0.07, -0.09]
    assert _verdict(BETTER, against).verdict == "contradicted"
    assert _verdict({**BETTER, "one_realisation": True}, against).verdict == "not shown"
    assert _verdict({**BETTER, "one_realisation": True}, [0.30, 0.31, 0.32]).verdict == "shown"
    assert _verdict({**BETTER, "one_realisation": True}, [-0.30, -0.31, -0.32]).verdict == "contradicted"


def test_by_chance_alone_one_realisation_is_judged_wrongly_in_a_twentieth_of_cases() -> None:
    generator = np.random.default_rng(0)
    effects = generator.normal(size=(2_000, 1)) - generator.normal(size=(2_000, 4))
    intervals = [prediction_interval(row) for row in effects.tolist()]
    wrong = np.mean([found is not None and not found.low <= 0 <= found.high for found in intervals])
    assert wrong == pytest.approx(0.05, abs=0.015)
    p_values = [prediction_p(row) for row in effects.tolist()]
    assert np.mean([p is not None and p < 0.05 for p in p_values]) == pytest.approx(wrong, abs=1e-9)


# --- non-inferiority, equality with a constant, correlation over items ----------------------------

NO_WORSE = {**BETTER, "kind": "non_inferiority", "margin": 0.02}
AT_CHANCE = {"kind": "equals", "metric": "test_accuracy", "row": "second", "columns": ["easy"], "value": 0.1}
GAIN = {
    "kind": "gain_correlation",
    "first": {"row": "first", "columns": ["easy", "hard"]},
    "second": {"row": "second", "columns": ["easy", "hard"]},
    "array": "nll",
    "against": "distance",
}


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([0.05, 0.06, 0.055], "shown"),
        ([-0.005, 0.001, -0.002], "shown"),
        ([-0.05, -0.06, -0.055], "contradicted"),
        ([-0.02, -0.025, -0.015], "not shown"),
        ([0.05, -0.06, 0.01], "not shown"),
        ([-0.01] * 3, "not shown"),
        ([-0.01] * 5, "shown"),
        ([-0.03] * 5, "contradicted"),
        ([0.05], "not testable here"),
    ],
)
def test_at_least_as_good_allows_the_margin_and_no_more(differences: list[float], expected: str) -> None:
    verdict = _verdict(NO_WORSE, differences)
    assert verdict.verdict == expected
    if len(set(differences)) > 1:
        assert verdict.confidence == 0.9 and verdict.low is not None and verdict.high is not None
        assert verdict.p == pytest.approx(stats.ttest_1samp(differences, -0.02, alternative="greater").pvalue)
        assert (verdict.low > -0.02) == (expected == "shown") and (verdict.high < -0.02) == (expected == "contradicted")


def test_at_least_as_good_is_judged_by_the_metrics_direction() -> None:
    test = {**NO_WORSE, "metric": "test_nll"}
    assert _verdict(test, [-0.05, -0.06, -0.055], metric="test_nll").verdict == "shown"
    assert _verdict(test, [0.05, 0.06, 0.055], metric="test_nll").verdict == "contradicted"


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([0.099, 0.101, 0.103], "shown"),
        ([0.20, 0.21, 0.19], "contradicted"),
        ([0.05, 0.15, 0.10], "not shown"),
        ([0.1] * 3, "not shown"),
        ([0.1] * 5, "shown"),
        ([0.3] * 3, "not shown"),
        ([0.3] * 6, "contradicted"),
    ],
)
def test_a_metric_equals_a_constant_within_the_margin(accuracies: list[float], expected: str) -> None:
    spec = small_spec(claims=[{"id": "it", "says": "it", "source": "x", "test": {**AT_CHANCE, "margin": 0.02}}])
    outcomes = outcomes_of(
        spec, "cpu", lambda row, column, seed: {"test_accuracy": accuracies[seed]}, seeds=len(accuracies)
    )
    verdict = evaluate_claims(spec, "cpu", outcomes)[0]
    assert verdict.verdict == expected and "= 0.1, within ±0.02" in verdict.test
    assert verdict.effect == pytest.approx(float(np.mean(accuracies)) - 0.1)


def test_equivalence_of_seeds_that_agree_exactly_needs_five_of_them() -> None:
    assert _verdict(EQUAL, [0.0, 0.0]).verdict == "not shown"
    assert _verdict(EQUAL, [0.0] * 5).verdict == "shown"


@pytest.mark.parametrize("kind", ["non_inferiority", "equals"])
def test_at_the_margin_a_claim_is_shown_in_a_twentieth_of_cases(kind: str) -> None:
    document = NO_WORSE if kind == "non_inferiority" else {**AT_CHANCE, "margin": 0.02}
    spec = small_spec()
    test = parse_test(ClaimSpec(id="it", says="it", source="x", test=document), spec)
    generator = np.random.default_rng(0)
    effects = generator.normal(-0.02, 0.001, size=(400, 5))
    judged = [judge(test, row)[0] for row in effects.tolist()]
    assert judged.count("shown") / 400 == pytest.approx(0.05, abs=0.033)
    assert judged.count("contradicted") / 400 < 0.083, "three standard errors above a twentieth"


def _gain(slope: float, seeds: int = 4, **changes: Any) -> Verdict:
    """The first row's loss is lower by ``slope`` times the distance and noise of its own."""
    spec = small_spec(claims=[{"id": "it", "says": "it", "source": "Figure 1", "test": GAIN}])
    outcomes = []
    for each in outcomes_of(spec, "cpu", lambda *_: {}, seeds=seeds):
        of_seed = np.random.default_rng([each.cell.seed, each.column == "easy"])
        distance, noise = of_seed.random(60), of_seed.normal(size=(2, 60))
        nll = 1.0 + noise[int(each.row == "first")] - (slope * distance if each.row == "first" else 0.0)
        arrays = {"distance": distance.tolist(), "nll": nll.tolist(), **changes.get(each.row, {})}
        result = result_of(each.cell, {}, arrays=arrays)
        outcomes.append(Outcome(each.row, each.column, each.cell, each.digest, "done", result))
    return evaluate_claims(spec, "cpu", outcomes)[0]


def test_the_gain_grows_with_the_distance_by_spearman_over_items_and_t_over_seeds() -> None:
    assert _gain(20.0).verdict == "shown" and _gain(-20.0).verdict == "contradicted"
    none = _gain(0.0)
    assert none.n == 4 and none.effect is not None and abs(none.effect) < 0.2
    assert "correlation over items" in none.test


def test_the_gains_effect_is_the_mean_of_scipys_correlations_over_columns() -> None:
    distance, first, second = [0.0, 0.1, 0.2, 0.3, 0.4], [1.0, 0.9, 0.7, 0.8, 0.1], [1.0, 1.0, 1.0, 1.0, 1.0]
    verdict = _gain(0.0, first={"distance": distance, "nll": first}, second={"distance": distance, "nll": second})
    gains = [high - low for low, high in zip(first, second, strict=True)]
    assert verdict.effect == pytest.approx(stats.spearmanr(distance, gains).statistic)


@pytest.mark.parametrize(
    "arrays", [{"distance": [0.5] * 60}, {"nll": []}, {"nll": [1.0] * 59}], ids=["other votes", "absent", "other items"]
)
def test_a_gain_of_other_items_or_votes_is_not_testable_and_says_why(arrays: dict[str, list[float]]) -> None:
    verdict = _gain(1.0, second=arrays)
    assert verdict.verdict == "not testable here" and "of other items" in verdict.reason


def test_a_claim_reads_its_columns_metric_by_the_columns_prefix() -> None:
    columns = [
        {"name": "easy", "label": "Last", "regime": "aggre"},
        {"name": "hard", "label": "Best", "regime": "aggre", "prefix": "best_"},
    ]
    test = {**BETTER, "first": {"row": "first", "columns": ["hard"]}, "second": {"row": "first", "columns": ["easy"]}}
    spec = small_spec(columns=columns, claims=[{"id": "it", "says": "it", "source": "x", "test": test}])
    outcomes = outcomes_of(
        spec, "cpu", lambda row, _, seed: {"test_accuracy": 0.5, "best_test_accuracy": 0.6 + 0.001 * seed}
    )
    verdict = evaluate_claims(spec, "cpu", outcomes)[0]
    assert verdict.verdict == "shown" and verdict.effect == pytest.approx(0.101)


def test_names_of_the_new_kinds_are_checked() -> None:
    with pytest.raises(SpecError, match="equally many columns"):
        _verdict({**GAIN, "first": {"row": "first", "columns": ["easy"]}}, [0.1, 0.2])
    with pytest.raises(SpecError, match="did you mean test_accuracy"):
        _verdict({**NO_WORSE, "metric": "test_acuracy"}, [0.1, 0.2])
    with pytest.raises(SpecError, match="margin"):
        _verdict(AT_CHANCE, [0.1, 0.2])


def test_a_note_says_of_each_tested_claim_whether_it_shows_and_by_how_much() -> None:
    claim = {
        "id": "better",
        "says": "First is better.",
        "source": "nowhere",
        "test": {
            "kind": "paired_difference",
            "metric": "test_accuracy",
            "first": {"row": "first", "columns": ["easy"]},
            "second": {"row": "second", "columns": ["easy"]},
        },
    }
    spec = small_spec(claims=[claim, {**claim, "id": "untested", "test": {**claim["test"], "metric": "test_nll"}}])
    values = {"first": 0.5, "second": 0.7}
    outcomes = outcomes_of(
        spec, "cpu", lambda row, _, seed: {"test_accuracy": values[row] + 0.01 * seed**2 * (row > "g")}
    )
    assert claim_notes(evaluate_claims(spec, "cpu", outcomes)) == [
        "Claim better (First is better): contradicted here, effect in the claim's direction "
        "−0.217 [−0.268, −0.165], 3 seeds."
    ]


EFFECTS = st.lists(st.integers(-(10**6), 10**6).map(lambda value: value / 1e4), min_size=2, max_size=10, unique=True)


def test_a_spread_whose_square_is_zero_is_none() -> None:
    side = Side(row="a", columns=("c",))
    test = Equivalence(kind="equivalence", metric="m", first=side, second=side, margin=1.0)
    assert judge(test, [0.0, 9e-175])[0] == "not shown" and judge(test, [0.0, 9e-175] * 3)[0] == "shown"


@given(EFFECTS, st.floats(0.1, 50))
def test_equivalence_is_the_ninety_per_cent_interval_within_the_margin(values: list[float], margin: float) -> None:
    side = Side(row="a", columns=("c",))
    test = Equivalence(kind="equivalence", metric="m", first=side, second=side, margin=margin)
    interval = t_interval(values, confidence=0.90)
    assert interval is not None
    within = -margin < interval.low and interval.high < margin
    edge = min(abs(abs(interval.low) - margin), abs(abs(interval.high) - margin)) < 1e-6
    assert edge or (judge(test, values)[0] == "shown") == within


# --- gains against gains, margins as shares -------------------------------------------------------

GAINS = {
    "kind": "gain_difference",
    "metric": "test_accuracy",
    "row": "first",
    "over": "second",
    "columns": ["hard"],
    "than_columns": ["easy"],
}


def _gains(hard: list[float], easy: list[float], metric: str = "test_accuracy") -> Verdict:
    test = {**GAINS, "metric": metric}
    spec = small_spec(claims=[{"id": "it", "says": "it is so", "source": "Table 1", "test": test}])

    def numbers(row: str, column: str, seed: int) -> dict[str, float | None]:
        gain = (hard if column == "hard" else easy)[seed]
        return {metric: 0.5 + 0.1 * seed + (gain if row == "first" else 0.0)}

    return evaluate_claims(spec, "cpu", outcomes_of(spec, "cpu", numbers, seeds=len(hard)))[0]


def test_a_gain_is_held_against_the_gain_in_other_columns() -> None:
    verdict = _gains([0.10, 0.112, 0.12], [0.01, 0.02, 0.031])
    assert verdict.verdict == "shown" and verdict.effect == pytest.approx((0.09 + 0.092 + 0.089) / 3)
    assert _gains([0.01, 0.02, 0.031], [0.10, 0.112, 0.12]).verdict == "contradicted"
    assert _gains([0.10, 0.11, 0.12], [0.10, 0.12, 0.11]).verdict == "not shown"
    falling = _gains([-0.10, -0.112, -0.12], [-0.01, -0.02, -0.031], metric="test_nll")
    assert falling.verdict == "shown", "lower is better there"
    assert "First gains over Second more in Hard than in Easy" in verdict.test


def test_a_margin_may_be_a_share_of_the_second_side() -> None:
    test = {**BETTER, "kind": "non_inferiority", "metric": "test_nll", "margin": 0.15, "relative": True}
    spec = small_spec(claims=[{"id": "it", "says": "it is so", "source": "Table 1", "test": test}])

    def verdict(ratio: float) -> Verdict:
        def seconds(row: str, column: str, seed: int) -> dict[str, float | None]:
            of_reference = 100.0 * (seed + 1)  # the seeds' own levels differ; their ratios do not
            return {"test_nll": of_reference * ((ratio + 0.001 * seed) if row == "first" else 1.0)}

        return evaluate_claims(spec, "cpu", outcomes_of(spec, "cpu", seconds, seeds=3))[0]

    assert verdict(1.05).verdict == "shown" and verdict(1.05).effect == pytest.approx(-0.051)
    assert verdict(1.3).verdict == "contradicted"
    assert "worse by less than 15 %" in verdict(1.05).test


def test_what_has_no_chance_in_it_needs_no_many_seeds() -> None:
    test = {**BETTER, "exact": True}
    assert _verdict(test, [0.05, 0.05, 0.05]).verdict == "shown"
    assert _verdict(test, [-0.05, -0.05, -0.05]).verdict == "contradicted"
    assert _verdict(test, [0.05, 0.0, 0.05]).verdict == "not shown"
    assert _verdict(BETTER, [0.05, 0.05, 0.05]).verdict == "not shown", "three seeds that agree by chance"
