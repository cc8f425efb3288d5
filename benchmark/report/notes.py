"""The sentences around a table: what was measured, on what, how, and what a reader must not conclude."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmark.report.compare import Comparison, comparison_notes
from benchmark.report.model import DELTA_SPREADS, DELTA_TOLERANCE, ReportCell
from benchmark.report.statistics import smallest_wilcoxon_p
from benchmark.report.tasks import task_notes
from benchmark.result import FAILED, Outcome
from benchmark.spec import TableSpec
from benchmark.table_parts import ProfileSpec
from datamodules.catalogue import JPEG_NOTE

SELECTION_RULES = {
    "last": "the model after the last epoch is tested",
    "best_noisy_validation": "the epoch with the best accuracy on held-out noisy labels is tested",
    "best_validation_tasks": "the epoch with the best query accuracy on tasks of validation classes is tested",
    "last_and_best_votes": "the last epoch is tested and, where a heading says so, the epoch with the lowest soft "
    "negative log-likelihood on held-out votes",
}

#: methods without any training: number of epochs and rule of selection say nothing of them
NEVER_TRAINED = frozenset({"from_scratch"})


def data_line(spec: TableSpec, profile: ProfileSpec, outcomes: Sequence[Outcome]) -> str:
    """What the data is, e.g. ``cifar10n (the paper's data; a subset of 5000 training items)``."""
    names = _unique(outcome.cell.dataset for outcome in outcomes) or [profile.dataset]
    return ", ".join(_data_set(profile, name, [at for at in outcomes if at.cell.dataset == name]) for name in names)


def _data_set(profile: ProfileSpec, name: str, outcomes: Sequence[Outcome]) -> str:
    real = profile.is_papers_data and name == profile.dataset
    kind = "the paper's data" if real else "a stand-in, not the paper's data"
    copied = any(JPEG_NOTE in result.notes for result in _results(outcomes))
    copy = ", its images as a JPEG copy" if copied else ""
    sizes = _unique(size for at in outcomes if (size := at.cell.data_args.get("n_train")))
    subset = f"; a subset of {_listed(sizes)} training items" if sizes else ""
    return f"{name} ({kind}{copy}{subset})"


def hardware_line(outcomes: Sequence[Outcome]) -> str:
    """The machines that the done cells ran on; "nothing measured" without any."""
    seen = _unique(_hardware(result.provenance) for result in _results(outcomes))
    return "; ".join(seen) or "nothing measured"


def _hardware(provenance: dict[str, Any]) -> str:
    hardware = provenance.get("hardware", "unknown hardware")
    if isinstance(hardware, dict):
        return ", ".join(f"{key} {value}" for key, value in hardware.items() if value not in (None, "", [], {}))
    return str(hardware)


def fact_lines(spec: TableSpec, profile: str, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Data, profile, seeds, training, selection rule, hardware: one sentence each."""
    chosen = spec.profile(profile)
    takes = f" ({chosen.takes})" if chosen.takes else ""
    lines = [
        f"Data: {data_line(spec, chosen, outcomes)}.",
        f"Profile: {profile}{takes}.",
        f"Seeds: {_seeds(spec, outcomes) or chosen.seeds}; ours is mean ± sample standard deviation (number of seeds).",
        *_encoders(spec, outcomes),
        *_training(spec, outcomes),
        f"Hardware: {hardware_line(outcomes)}.",
    ]
    return tuple(lines)


def _seeds(spec: TableSpec, outcomes: Sequence[Outcome]) -> str:
    """Number of seeds; with the columns where these differ. Empty without outcomes."""
    counts = {
        column.name: len({at.cell.seed for at in outcomes if at.column == column.name}) for column in spec.columns
    }
    return _by_place(spec, outcomes, lambda outcome: counts[outcome.column]) if outcomes else ""


def _encoders(spec: TableSpec, outcomes: Sequence[Outcome]) -> list[str]:
    if not any(outcome.cell.encoder for outcome in outcomes):
        return []
    return [f"Items: {_by_place(spec, outcomes, lambda at: _items(at.cell.encoder))}."]


def _items(encoder: dict[str, Any]) -> str:
    if not encoder:
        return "the images or features of the data set as they are"
    args = ", ".join(f"{name} {value}" for name, value in encoder.items() if name != "name")
    return f"features of the frozen encoder {encoder.get('name')}" + (f" ({args})" if args else "")


def _training(spec: TableSpec, outcomes: Sequence[Outcome]) -> list[str]:
    outcomes = [at for at in outcomes if at.cell.method not in NEVER_TRAINED]
    if not outcomes:
        return []
    selections = _unique(outcome.cell.train.selection for outcome in outcomes)
    # two states of one run are tested there, neither before training has ended
    read = "read only" if "last_and_best_votes" in selections else "read once,"
    return [
        f"Epochs: {_by_place(spec, outcomes, lambda at: at.cell.train.max_epochs)}; precision: "
        f"{_by_place(spec, outcomes, lambda at: at.cell.train.precision)}; CPU threads a cell: "
        f"{_by_place(spec, outcomes, lambda at: at.cell.train.threads)}.",
        f"Selection: {f'; in other {_differing(spec, outcomes)} '.join(SELECTION_RULES[each] for each in selections)}. "
        f"The test set is {read} after training.",
    ]


def _differing(spec: TableSpec, outcomes: Sequence[Outcome]) -> str:
    """``columns`` if the rule of selection is each column's own, else ``rows``."""
    rules = {column.name: set[str]() for column in spec.columns}
    for outcome in outcomes:
        rules[outcome.column].add(outcome.cell.train.selection)
    return "columns" if all(len(names) <= 1 for names in rules.values()) else "rows"


def _by_place(spec: TableSpec, outcomes: Sequence[Outcome], value: Callable[[Outcome], Any]) -> str:
    """``value`` of the outcomes: alone where they agree, else with the columns, or the rows, in which it holds."""
    values = _unique(value(outcome) for outcome in outcomes)
    if len(values) == 1:
        return str(values[0])
    columns = {column.label: [at for at in outcomes if at.column == column.name] for column in spec.columns}
    rows = {row.label: [at for at in outcomes if at.row == row.name] for row in spec.rows}
    for places in (columns, rows):
        found = {label: _unique(value(outcome) for outcome in here) for label, here in places.items()}
        if all(len(here) <= 1 for here in found.values()):
            return " and ".join(
                f"{each} in {', '.join(label for label, here in found.items() if here == [each])}" for each in values
            )
    return _listed(values)


def note_lines(
    spec: TableSpec,
    profile: str,
    outcomes: Sequence[Outcome],
    cells: Sequence[ReportCell],
    comparisons: Sequence[Comparison] = (),
    data_notes: Sequence[str] = (),
) -> tuple[str, ...]:
    """All notes, each once, from the general to the particular."""
    chosen = spec.profile(profile)
    lines: list[str] = []
    if not chosen.is_papers_data:
        printed = any(row.values for row in spec.rows) or bool(spec.references)
        apart = ": the paper's values are shown apart and no difference is taken" if printed else ", not the paper's"
        lines.append(f"The data ({chosen.dataset}) is a stand-in{apart}.")
    lines += chosen.notes
    lines += [_sentence(note) for result in _results(outcomes) for note in result.notes]
    lines += data_notes
    lines += spec.notes
    lines += _together((row.label, row.note) for row in spec.rows)
    lines += _together(
        (row.label, f"the paper's values are from {row.source}." * bool(row.source)) for row in spec.rows
    )
    lines += _together((row.label, f"published values from {row.source}.") for row in spec.references)
    lines += task_notes(spec, outcomes)
    lines += _statistics(cells, comparisons)
    lines += _flags(cells)
    lines += _failures(outcomes)
    return tuple(_unique(lines))


def _statistics(cells: Sequence[ReportCell], comparisons: Sequence[Comparison]) -> list[str]:
    n = max((cell.n for cell in cells), default=0)
    fewest = min((cell.n for cell in cells if cell.n > 1), default=n)
    if n == 0:
        return ["No cell is done: nothing was measured yet."]
    if n == 1:
        return ["One seed only: no spread is known, and no difference between rows can be told from chance."]
    if comparisons:
        return comparison_notes(comparisons)
    if smallest_wilcoxon_p(fewest) < 0.05:
        return []
    return [
        f"With {fewest} seeds no exact Wilcoxon test of two rows can give p < 0.05 (the smallest is "
        f"{smallest_wilcoxon_p(fewest):.3g}): read differences between rows against their spread."
    ]


def _flags(cells: Sequence[ReportCell]) -> list[str]:
    """One note for all marks: the differences themselves stand in the table."""
    compared = [cell for cell in cells if cell.delta is not None]
    flagged = sum(cell.flagged for cell in compared)
    if not flagged:
        return []
    return [
        f"‡ ours differs from the paper by more than {DELTA_TOLERANCE} and more than {DELTA_SPREADS:g} standard "
        f"deviations ({flagged} of {len(compared)} values)."
    ]


def _failures(outcomes: Sequence[Outcome]) -> list[str]:
    return [f"Failed: {outcome.cell.describe()}: {outcome.reason}" for outcome in outcomes if outcome.status == FAILED]


def _results(outcomes: Sequence[Outcome]) -> list[Any]:
    return [outcome.result for outcome in outcomes if outcome.result is not None]


def _together(notes: Iterable[tuple[str, str]]) -> list[str]:
    """``label: note`` with the labels of equal notes joined; empty notes are left out."""
    labels: dict[str, list[str]] = {}
    for label, note in notes:
        if note:
            labels.setdefault(note, []).append(label)
    return [f"{'; '.join(of_note)}: {note}" for note, of_note in labels.items()]


def _sentence(text: str) -> str:
    """``text`` with a capital and a full stop: data notes come from many places."""
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?", ")")) else f"{text}."


def _unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(str(value) for value in sorted(_unique(values)))
