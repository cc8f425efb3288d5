"""Verdicts from outcomes, by the rules in the package's docstring."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from benchmark.claims.describe import describe, lacking
from benchmark.claims.effects import Pairs, curve_lengths, effects_by_seed
from benchmark.claims.judge import Judgement, judge
from benchmark.claims.kinds import AbovePairs, parse_test
from benchmark.report.notes import data_line
from benchmark.report.statistics import holm, present
from benchmark.report.values import with_averages
from benchmark.result import Outcome
from benchmark.spec import TableSpec
from benchmark.table_parts import ClaimSpec


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


def evaluate_claims(spec: TableSpec, profile: str, outcomes: Sequence[Outcome], pairs: Pairs = ()) -> list[Verdict]:
    """A verdict for each claim of ``spec``, in its order.

    Args:
        spec: the table.
        profile: name of one of its profiles.
        outcomes: what became of its cells.
        pairs: what probes say of pairs of its trained models; only a figure of form ``pairs`` has any.

    Raises:
        SpecError: if a claim's test is not valid for the table, or the profile does not exist.
    """
    places = with_averages(spec, outcomes)
    return adjusted([_verdict(claim, spec, profile, places, pairs) for claim in spec.claims])


def described(specs: Iterable[TableSpec]) -> dict[tuple[str, str], tuple[str, str]]:
    """(table, claim) -> (what it says, its test in words) of every claim, in order."""
    return {
        (spec.table, claim.id): (claim.says, describe(parse_test(claim, spec), spec))
        for spec in specs
        for claim in spec.claims
    }


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


def _verdict(claim: ClaimSpec, spec: TableSpec, profile: str, outcomes: Sequence[Outcome], pairs: Pairs) -> Verdict:
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
    effects = effects_by_seed(test, spec, needed, pairs)
    lacks = lacking(test, needed, effects)
    kept = present(list(effects.values()))
    # two seeds have one pair in common: of its spread nothing is known
    least = 3 if isinstance(test, AbovePairs) else 2
    if len(kept) < least:
        few = {0: "", 1: "one seed has no spread"}.get(len(kept), "two seeds have only one pair")
        why = lacks or ("" if few else "no seed was run")
        return replace(blank, n=len(kept), reason="; ".join(part for part in (few, why) if part))
    judgement, interval, p = judge(test, kept, curve_lengths(test, needed))
    return replace(
        blank,
        verdict=judgement,
        effect=interval.estimate,
        low=interval.low,
        high=interval.high,
        confidence=interval.confidence,
        p=p,
        n=interval.n,
        reason=lacks,
    )
