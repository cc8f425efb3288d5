"""Verdicts as ``leaderboards/claims.md`` and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmark.claims.evaluate import Verdict, adjusted
from benchmark.report.atomic import write_text
from benchmark.report.layout import DASH, p_text, signed
from benchmark.spec import PROFILES

#: (table, claim) -> (what it says, its test in words)
Known = Mapping[tuple[str, str], tuple[str, str]]

_HEADER = ("profile", "verdict", "effect [interval]", "n", "p", "p (Holm)", "data", "reason")

_INTRODUCTION = """# Claims

What each paper asserts, in our words, and whether the results here show it. Every verdict is computed by
`annobench claims` from the store, by these rules:

- The unit is the seed; columns are averaged within a seed first. An effect is positive in the claim's direction.
- *Shown*: the 95 % t interval of the mean effect lies above 0 (equivalence, and equality with a constant:
  both one-sided tests have p < 0.05, so the 90 % interval lies within the margin; non-inferiority, "at least as good":
  the lower end of the 90 % interval is above minus the margin).
- *Contradicted*: the interval lies on the wrong side. *Not shown*: neither.
  Where all seeds have the very same effect, no spread is known and the signs decide (six seeds are needed, five
  where the test is one-sided).
  Where one side is a single realisation (data as published) and the other a control drawn anew in each seed, the
  interval is the prediction interval for one more draw of the control, because seeds repeat the first side's luck.
- A verdict is about the data and the profile in its line. Under `cpu` and `demo`, networks and epochs are far from the
  paper's: a *contradicted* there says that the claim fails at that scale.
- *Not testable here*: fewer than two seeds have a value.
- A correlation over epochs is taken to be no more certain than a single run's. A correlation over items counts once a
  seed, because all items of a seed are scored by the same two trained networks.
- Against pairs of trained models a seed is held against the mean of the pairs that it is part of. Two seeds share a
  pair, so the effects are not independent and the interval is approximate; three seeds are needed.
- p is each claim's own and two-sided, except one-sided for non-inferiority;
  p (Holm) is adjusted over all claims of a paper under a profile."""


def to_markdown(verdicts: Iterable[Verdict]) -> str:
    """All verdicts, claim by claim, with a line per profile."""
    families = adjusted(list(verdicts))
    lines = [_INTRODUCTION]
    for table, claim in dict.fromkeys((verdict.table, verdict.claim) for verdict in families):
        of_claim = [verdict for verdict in families if (verdict.table, verdict.claim) == (table, claim)]
        first = of_claim[0]
        lines += ["", f"## {table}: {claim}", "", _flat(first.says), "", f"- Source: {_flat(first.source)}"]
        lines += [f"- Test: {_flat(first.test)}", "", *_table(of_claim)]
    if not families:
        lines += ["", "No table here lists a claim."]
    return "\n".join(lines) + "\n"


def claim_notes(verdicts: Iterable[Verdict]) -> list[str]:
    """A sentence per claim that was tested, for the notes under its own table: does it show here, and by how much?"""
    return [
        f"Claim {verdict.claim} ({_flat(verdict.says).rstrip('.')}): {verdict.verdict} here, effect in the claim's "
        f"direction {_effect(verdict)}, {verdict.n} seeds."
        for verdict in verdicts
        if verdict.effect is not None
    ]


def to_json(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """A record per verdict, ready for strict JSON: None where there is no number."""
    return [asdict(verdict) for verdict in adjusted(list(verdicts))]


def write_claims(verdicts: Sequence[Verdict], folder: Path, known: Known | None = None) -> list[Path]:
    """Writes ``claims.md`` and ``claims.json`` into ``folder``, each whole or not at all.

    Args:
        verdicts: what was evaluated now.
        folder: where to write. Verdicts that lie there already stay where now nothing was evaluated of their table
            under their profile, so that one paper or profile can be published without losing the others.
        known: every claim there is, in the order to write: (table, claim) -> (what it says, its test in words). A
            published one that is not among them, or whose words or test have changed, is dropped. None: nothing is
            kept.

    Raises:
        PublishError: if ``claims.json`` there cannot be read.
    """
    verdicts = list(verdicts)
    if known is not None:
        order = {claim: place for place, claim in enumerate(known)}
        verdicts += _kept(verdicts, folder / "claims.json", known)
        verdicts.sort(key=lambda each: (order.get((each.table, each.claim), len(order)), PROFILES.index(each.profile)))
    text = json.dumps(to_json(verdicts), indent=2, ensure_ascii=False, allow_nan=False)
    return [
        write_text(folder / "claims.md", to_markdown(verdicts)),
        write_text(folder / "claims.json", text + "\n"),
    ]


class PublishError(ValueError):
    """What was published before cannot be read; the message names the file and says what to do."""


def _kept(fresh: Sequence[Verdict], path: Path, known: Known) -> list[Verdict]:
    """The verdicts in ``path`` of claims that are ``known``, of a table and profile of which ``fresh`` has none."""
    if not path.is_file():
        return []
    try:
        published = [Verdict(**record) for record in json.loads(path.read_text())]
    except (ValueError, TypeError) as error:
        raise PublishError(f"{path} cannot be read as verdicts ({error}): remove it, or publish elsewhere") from error
    now = {(verdict.table, verdict.profile) for verdict in fresh}
    return [
        verdict
        for verdict in published
        if known.get((verdict.table, verdict.claim)) == (verdict.says, verdict.test)
        and (verdict.table, verdict.profile) not in now
        and verdict.profile in PROFILES
    ]


def _table(verdicts: Sequence[Verdict]) -> list[str]:
    rows = [_HEADER, tuple("---" for _ in _HEADER), *(_cells(verdict) for verdict in verdicts)]
    return [f"| {' | '.join(row)} |" for row in rows]


def _cells(verdict: Verdict) -> tuple[str, ...]:
    return (
        verdict.profile,
        f"**{verdict.verdict}**",
        _effect(verdict),
        str(verdict.n),
        p_text(verdict.p),
        p_text(verdict.p_holm),
        _flat(verdict.data),
        _flat(verdict.reason) or DASH,
    )


def _effect(verdict: Verdict) -> str:
    if verdict.effect is None or verdict.low is None or verdict.high is None:
        return DASH
    ends = f"[{signed(verdict.low, 3)}, {signed(verdict.high, 3)}]"
    level = "" if verdict.confidence == 0.95 else f" ({verdict.confidence:.0%})"
    return f"{signed(verdict.effect, 3)} {ends}{level}"


def _flat(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
