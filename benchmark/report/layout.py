"""From a report to blocks of text cells: the one layout that Markdown, LaTeX and HTML share.

With several columns a block is a metric and its groups are the columns, as the papers print them; with one
column there is a single block and its groups are the metrics. On the paper's own data a group holds the
paper's value, ours and the difference; on a stand-in the paper's values stand in blocks of their own. Paired
comparisons follow, a block a metric.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmark.report.compare import Comparison
from benchmark.report.model import Report, ReportCell
from benchmark.table_parts import ColumnSpec, MetricSpec, RowSpec

DASH = "–"
MINUS = "−"


@dataclass(frozen=True)
class TextCell:
    """Text of one cell and whether it is to be emphasised."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Block:
    """One rectangular piece of a report: a heading, column headings, and rows of cells."""

    heading: str
    header: tuple[str, ...]
    rows: tuple[tuple[TextCell, ...], ...]


@dataclass
class Footnotes:
    """Numbers of the reasons why cells lack, each reason once."""

    texts: dict[str, int] = field(default_factory=dict)

    def mark(self, reason: str) -> str:
        """The mark of ``reason``, e.g. ``[1]``."""
        return f"[{self.texts.setdefault(reason, len(self.texts) + 1)}]"

    def lines(self) -> list[str]:
        """All footnotes, in order."""
        return [f"[{number}] {reason}" for reason, number in self.texts.items()]


@dataclass(frozen=True)
class Layout:
    """All blocks of a report, in order, and the footnotes that their marks point to."""

    blocks: tuple[Block, ...]
    footnotes: tuple[str, ...]


Group = tuple[ColumnSpec, MetricSpec]


def lay_out(report: Report) -> Layout:
    """Blocks of ours, of the paper's where they stand apart, and of published reference rows."""
    footnotes = Footnotes()
    blocks = [_ours(report, heading, groups, footnotes) for heading, groups in _grouped(report)]
    if not report.is_papers_data:
        blocks += _values_apart(report)
    blocks += _references(report)
    blocks += [_comparisons(report, metric, footnotes) for metric in report.metrics if _compared(report, metric)]
    return Layout(tuple(blocks), tuple(footnotes.lines()))


def signed(value: float, digits: int) -> str:
    """``+0.012`` or, with a true minus sign, ``−0.012``."""
    return f"{value:+.{digits}f}".replace("-", MINUS)


def number(value: float | None, digits: int) -> str:
    """``value`` with ``digits`` decimals and a true minus sign; an en dash for None."""
    return DASH if value is None else f"{value:.{digits}f}".replace("-", MINUS)


def p_text(value: float | None) -> str:
    """A p-value with three decimals; an en dash for None."""
    if value is None:
        return DASH
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"


def _grouped(report: Report) -> list[tuple[str, list[Group]]]:
    if len(report.columns) == 1:
        column = report.columns[0]
        return [(column.label, [(column, metric) for metric in report.metrics])]
    return [(metric.label, [(column, metric) for column in report.columns]) for metric in report.metrics]


def _group_name(report: Report, group: Group) -> str:
    return group[1].label if len(report.columns) == 1 else group[0].label


def _compares(report: Report, group: Group) -> bool:
    return report.is_papers_data and report.has_paper_values(group[0].name, group[1].name)


def _ours(report: Report, heading: str, groups: list[Group], footnotes: Footnotes) -> Block:
    header = ["Method"]
    for group in groups:
        name = _group_name(report, group)
        header += [f"{name}: paper", f"{name}: ours", f"{name}: difference"] if _compares(report, group) else [name]
    rows = [
        (TextCell(row.label), *(cell for group in groups for cell in _group_cells(report, row, group, footnotes)))
        for row in report.rows
    ]
    if not report.is_papers_data:
        heading = f"{heading}, ours on {report.data}"
    return Block(heading, tuple(header), tuple(rows))


def _group_cells(report: Report, row: RowSpec, group: Group, footnotes: Footnotes) -> list[TextCell]:
    column, metric = group
    cell = report.cell(row.name, column.name, metric.name)
    ours = TextCell(_ours_text(cell, metric, footnotes), best=cell.best)
    if not _compares(report, group):
        return [ours]
    difference = DASH if cell.delta is None else signed(cell.delta, metric.digits) + (" ‡" if cell.flagged else "")
    return [TextCell(_paper_text(cell.paper)), ours, TextCell(difference)]


def _ours_text(cell: ReportCell, metric: MetricSpec, footnotes: Footnotes) -> str:
    mark = f" {footnotes.mark(cell.reason)}" if cell.reason else ""
    if cell.mean is None:
        return DASH + mark
    spread = "" if cell.std is None else f" ± {cell.std:.{metric.digits}f}"
    return f"{number(cell.mean, metric.digits)}{spread} ({cell.n}){mark}"


def _paper_text(value: float | None) -> str:
    """The paper's value with the decimals it was printed with, two at least where it is below ten."""
    return number(value, _decimals(value))


def _decimals(value: float | None) -> int:
    text = repr(float(value or 0.0))
    least = 2 if abs(value or 0.0) < 10 else 1
    return max(least, len(text.partition(".")[2]) if "e" not in text else 6)


def _values_apart(report: Report) -> list[Block]:
    named = {row.label: row.values for row in report.rows if row.values}
    return _values_blocks(report, f"{report.paper.title} ({report.paper.year}): values as printed", named)


def _references(report: Report) -> list[Block]:
    named = {row.label: row.values for row in report.references}
    return _values_blocks(report, "Published reference rows (never run here)", named)


def _values_blocks(report: Report, heading: str, named: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[Block]:
    """One block with every column that has a value, whether the profile runs it or not; none without any value."""
    groups = [
        (column, metric)
        for metric in report.metrics
        for column in report.printed_columns
        if any(metric.name in values.get(column.name, {}) for values in named.values())
    ]
    rows = []
    for label, values in named.items():
        numbers = [values.get(column.name, {}).get(metric.name) for column, metric in groups]
        decimals = max((_decimals(value) for value in numbers), default=0)
        rows.append((TextCell(label), *(TextCell(number(value, decimals)) for value in numbers)))
    names = ("Method", *(f"{column.label}: {metric.label}" for column, metric in groups))
    return [Block(heading, names, tuple(rows))] * bool(groups)


# --- comparisons ------------------------------------------------------------------------------

_COMPARED = ("better in", "p (t)", "Holm (t)", "p (Wilcoxon)", "Holm (Wilcoxon)")


def _compared(report: Report, metric: MetricSpec) -> list[Comparison]:
    return [each for each in report.comparisons if each.metric == metric.name]


def _comparisons(report: Report, metric: MetricSpec, footnotes: Footnotes) -> Block:
    """One line a comparison: difference with interval, seeds in which the row is better, p-values."""
    rows = {row.name: row.label for row in report.rows}
    columns = {column.name: column.label for column in report.columns}
    here = _compared(report, metric)
    better = "lower" if metric.direction == "min" else "higher"
    heading = f"Paired comparisons: {metric.label} minus that of {rows[here[0].reference]} ({better} is better)"
    if not report.is_papers_data:
        heading += f", on {report.data}"
    wide = len(columns) > 1
    lines = [
        (
            TextCell(rows[each.row]),
            *([TextCell(columns[each.column])] if wide else []),
            *(TextCell(text) for text in _comparison_texts(each, metric, footnotes)),
        )
        for each in here
    ]
    return Block(heading, ("Method", *(["Column"] if wide else []), "difference [95 %]", *_COMPARED), tuple(lines))


def _comparison_texts(each: Comparison, metric: MetricSpec, footnotes: Footnotes) -> list[str]:
    digits = metric.digits + 1  # differences of paired seeds are smaller than what they differ from
    mark = f" {footnotes.mark(each.reason)}" if each.reason else ""
    difference = DASH if each.difference is None else signed(each.difference, digits)
    if each.low is not None and each.high is not None:
        difference += f" [{signed(each.low, digits)}, {signed(each.high, digits)}]"
    p_values = (each.p_t, each.p_t_holm, each.p_wilcoxon, each.p_wilcoxon_holm)
    return [difference + mark, f"{each.better} of {each.n}" if each.n else DASH, *(p_text(p) for p in p_values)]
