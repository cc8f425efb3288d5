"""Verdicts from outcomes, by the rules in the package's docstring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from benchmark.claims.kinds import ClaimTest, Correlation, Equivalence, PairedDifference, Trend, parse_test
from benchmark.report.notes import data_line
from benchmark.report.statistics import (
    Interval,
    correlation_interval,
    equivalence,
    holm,
    paired_t,
    prediction_interval,
    prediction_p,
    present,
    slope,
    spearman,
    spread,
    t_interval,
    wilcoxon_exact,
)
from benchmark.result import DONE, NOT_APPLICABLE, Outcome, Result
from benchmark.spec import ClaimSpec, TableSpec

Judgement = Literal["shown", "not shown", "contradicted", "not testable here"]


@dataclass(frozen=True)
class Verdict:
    """What the results say of one claim under one profile.

    Attributes:
        paper: key of the paper.
        table: the table that the claim belongs to.
        claim: its id.
        says: what it says.
        source: where the paper says it.
        profile: how much compute.
        data: what was measured on.
        test: the comparison in words.
        verdict: the judgement.
        effect: mean effect over seeds, or None.
        low: lower end of its interval, or None.
        high: upper end, or None.
        confidence: of the interval.
        p: p-value of the test, or None.
        n: seeds with an effect.
        reason: why it is not testable, or which seeds are left out; else empty.
        p_holm: ``p`` adjusted over the claims of the paper under the profile, or None.
    """

    paper: str
    table: str
    claim: str
    says: str
    source: str
    profile: str
    data: str
    test: str
    verdict: Judgement
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float = 0.95
    p: float | None = None
    n: int = 0
    reason: str = ""
    p_holm: float | None = None


def evaluate_claims(spec: TableSpec, profile: str, outcomes: Sequence[Outcome]) -> list[Verdict]:
    """A verdict for each claim of ``spec``, in its order.

    Raises:
        SpecError: if a claim's test is not valid for the table, or the profile does not exist.
    """
    return adjusted([_verdict(claim, spec, profile, outcomes) for claim in spec.claims])


def adjusted(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """``verdicts`` with Holm's p-values; a family is all claims of a paper under one profile."""
    families: dict[tuple[str, str], list[int]] = {}
    for index, verdict in enumerate(verdicts):
        families.setdefault((verdict.paper, verdict.profile), []).append(index)
    done = list(verdicts)
    for members in families.values():
        for index, value in zip(members, holm([verdicts[index].p for index in members]), strict=True):
            done[index] = replace(verdicts[index], p_holm=value)
    return done


def _verdict(claim: ClaimSpec, spec: TableSpec, profile: str, outcomes: Sequence[Outcome]) -> Verdict:
    test = parse_test(claim, spec)
    needed = [outcome for outcome in outcomes if (outcome.row, outcome.column) in test.places()]
    blank = Verdict(
        paper=spec.paper.key,
        table=spec.table,
        claim=claim.id,
        says=claim.says,
        source=claim.source,
        profile=profile,
        data=data_line(spec, spec.profile(profile), needed),
        test=describe(test, spec),
        verdict="not testable here",
    )
    effects = effects_by_seed(test, spec, needed)
    lacking = _lacking(test, needed, effects)
    kept = present(list(effects.values()))
    if len(kept) < 2:
        why = lacking or "no seed was run"
        return replace(blank, n=len(kept), reason=why if not kept else f"one seed has no spread; {why}")
    judgement, interval, p = judge(test, kept, _epochs(test, needed))
    return replace(
        blank,
        verdict=judgement,
        effect=interval.estimate,
        low=interval.low,
        high=interval.high,
        confidence=interval.confidence,
        p=p,
        n=interval.n,
        reason=lacking,
    )


def judge(test: ClaimTest, effects: Sequence[float], epochs: int = 0) -> tuple[Judgement, Interval, float | None]:
    """Judgement, interval and p-value from two or more seeds' effects.

    Args:
        test: the claim's test.
        effects: a number per seed.
        epochs: of the shortest curve; read by ``correlation`` alone.
    """
    if isinstance(test, Correlation):
        return _judge_correlation(test, effects, epochs)
    wide = t_interval(effects)
    assert wide is not None, "two effects or more have an interval"
    if isinstance(test, Equivalence):
        p = equivalence(effects, test.margin)
        narrow = t_interval(effects, confidence=0.90)
        assert narrow is not None
        if p is not None and p < 0.05:
            return "shown", narrow, p
        outside = wide.low > test.margin or wide.high < -test.margin
        return ("contradicted" if outside else "not shown"), narrow, p
    if isinstance(test, PairedDifference) and test.one_realisation:
        return _judge_one_realisation(effects)
    p = paired_t(effects)
    if wide.low == wide.high:
        # accuracies come in steps of one test item: that seeds agree exactly does not make them certain
        p = wilcoxon_exact(effects)
        if p is None or p >= 0.05:
            return "not shown", wide, p
    if wide.low > 0:
        return "shown", wide, p
    return ("contradicted" if wide.high < 0 else "not shown"), wide, p


def _judge_one_realisation(effects: Sequence[float]) -> tuple[Judgement, Interval, float | None]:
    """By the prediction interval: the first side is one draw, however many seeds repeat it."""
    interval = prediction_interval(effects)
    assert interval is not None, "two effects or more have an interval"
    p = prediction_p(effects)
    if p is None or interval.low <= 0 <= interval.high:
        return "not shown", interval, p
    return ("shown" if interval.low > 0 else "contradicted"), interval, p


def _judge_correlation(
    test: Correlation, effects: Sequence[float], epochs: int
) -> tuple[Judgement, Interval, float | None]:
    found = correlation_interval([effect + test.above for effect in effects], epochs, test.above)
    over_seeds = t_interval(effects)
    assert found is not None and over_seeds is not None, "a seed with an effect has four epochs or more"
    within, p = found
    low = min(within.low - test.above, over_seeds.low)
    high = max(within.high - test.above, over_seeds.high)
    interval = replace(over_seeds, low=max(low, -1 - test.above), high=min(high, 1 - test.above))
    if low > 0:
        return "shown", interval, p
    return ("contradicted" if high < 0 else "not shown"), interval, p


# --- effects ----------------------------------------------------------------------------------


def effects_by_seed(test: ClaimTest, spec: TableSpec, outcomes: Sequence[Outcome]) -> dict[int, float | None]:
    """Seed -> its effect, None where a cell that the test needs has no value."""
    results = {
        (outcome.cell.seed, outcome.row, outcome.column): outcome.result
        for outcome in outcomes
        if outcome.status == DONE and outcome.result is not None
    }
    effects: dict[int, float | None] = {}
    for seed in sorted({outcome.cell.seed for outcome in outcomes}):
        found = [results.get((seed, *place)) for place in test.places()]
        complete = [result for result in found if result is not None]
        effect = _effect(test, spec, complete) if len(complete) == len(found) else None
        # what rounding leaves of equal numbers (1e-17) must not become an effect with a sign
        effects[seed] = None if effect is None else round(effect, 12)
    return effects


def _effect(test: ClaimTest, spec: TableSpec, results: Sequence[Result]) -> float | None:
    """Effect of one seed from the results of ``test.places()``, in that order."""
    if isinstance(test, Correlation):
        return _mean_of_all([_curve_correlation(test, result) for result in results], minus=test.above)
    values = [result.metrics.get(test.metric) for result in results]
    if len(present(values)) < len(values):
        return None
    numbers = present(values)
    if isinstance(test, Trend):
        change = slope(numbers)
        return None if change is None else (change if test.direction == "rising" else -change)
    if isinstance(test, PairedDifference | Equivalence):
        half = len(numbers) // 2
        difference = fmean(numbers[:half]) - fmean(numbers[half:])
        return difference if _direction(test.metric, spec) == "max" else -difference
    return _mean_of_all(values, minus=test.above)


def _epochs(test: ClaimTest, outcomes: Sequence[Outcome]) -> int:
    """Epochs in which both curves have a value, in the shortest run."""
    if not isinstance(test, Correlation):
        return 0
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    lengths = [
        sum(
            len(present(pair)) == 2
            for pair in zip(*(result.curves.get(name, []) for name in test.curves), strict=False)
        )
        for result in results
    ]
    return min((length for length in lengths if length >= 4), default=0)


def _curve_correlation(test: Correlation, result: Result) -> float | None:
    first, second = (result.curves.get(name, []) for name in test.curves)
    length = min(len(first), len(second))
    interval = spearman(first[:length], second[:length])
    return None if interval is None else interval.estimate


def _mean_of_all(values: Sequence[float | None], minus: float) -> float | None:
    """Mean of ``values`` less ``minus``; None if one of them is missing."""
    summary = spread(values)
    return summary.mean - minus if summary.mean is not None and summary.n == len(values) else None


def _direction(metric: str, spec: TableSpec) -> str:
    return next(known.direction for known in spec.metrics if known.name == metric)


# --- words ------------------------------------------------------------------------------------


def _lacking(test: ClaimTest, outcomes: Sequence[Outcome], effects: dict[int, float | None]) -> str:
    """Which of the needed cells have no value and why; empty if none lacks."""
    parts: list[str] = []
    planned = {(outcome.row, outcome.column) for outcome in outcomes}
    absent = [place for place in dict.fromkeys(test.places()) if place not in planned]
    if absent:
        parts.append(f"not run: {', '.join(f'{row} in {column}' for row, column in absent)}")
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        if outcome.status != DONE:
            why = f": {outcome.reason}" if outcome.reason else ""
            counts[f"{outcome.status}{why if outcome.status == NOT_APPLICABLE else ''}"] += 1
    parts += [f"{count} of {len(outcomes)} cells {status}" for status, count in counts.items()]
    if not parts and any(effect is None for effect in effects.values()):
        what = "a curve is constant or has fewer than four epochs" if isinstance(test, Correlation) else "no value"
        parts.append(f"{what} in {sum(effect is None for effect in effects.values())} of {len(effects)} seeds")
    return "; ".join(parts)


def describe(test: ClaimTest, spec: TableSpec) -> str:
    """The comparison in one line."""
    rows = {row.name: row.label for row in spec.rows}
    columns = {column.name: column.label for column in spec.columns}

    def place(row: str, names: Sequence[str]) -> str:
        return f"{rows[row]} ({', '.join(columns[name] for name in names)})"

    if isinstance(test, Correlation):
        return (
            f"correlation over epochs of {' and '.join(test.curves)}, {place(test.row, test.columns)} > {test.above:g}"
        )
    metric = {known.name: known.label for known in spec.metrics}[test.metric]
    if isinstance(test, Trend):
        return f"{metric} {test.direction} over columns, {place(test.row, test.columns)}"
    if isinstance(test, PairedDifference | Equivalence):
        sides = " against ".join(place(side.row, side.columns) for side in (test.first, test.second))
        margin = f", within ±{test.margin:g}" if isinstance(test, Equivalence) else ""
        return f"{metric}: {sides}{margin}"
    return f"{metric}, {place(test.row, test.columns)} > {test.above:g}"
