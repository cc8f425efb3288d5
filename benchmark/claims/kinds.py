"""The kinds of comparison that a claim may name in its YAML, validated against its table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from benchmark.spec import SpecError, TableSpec
from benchmark.table_parts import ClaimSpec
from datamodules.names import unknown_name


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Columns = Annotated[tuple[str, ...], Field(min_length=1)]
Place = tuple[str, str]


class Side(_Frozen):
    """One side of a comparison: a row in one or more columns."""

    row: str
    columns: Columns

    def places(self) -> list[Place]:
        """``(row, column)`` of each column."""
        return [(self.row, column) for column in self.columns]


def _same_length(first: Side, second: Side) -> None:
    if len(first.columns) != len(second.columns):
        raise ValueError("first and second must name equally many columns: they are compared pair by pair")


class _TwoSides(_Frozen):
    metric: str
    first: Side
    second: Side

    @model_validator(mode="after")
    def _check_pairs(self) -> _TwoSides:
        _same_length(self.first, self.second)
        return self

    def places(self) -> list[Place]:
        """All places that the test reads."""
        return [*self.first.places(), *self.second.places()]


class PairedDifference(_TwoSides):
    """The first side is better than the second, seed by seed and column by column."""

    kind: Literal["paired_difference"]
    one_realisation: bool = False
    """The first side's data are the same in every seed (as published), and only the second side's are drawn anew."""
    exact: bool = False
    """There is no chance in the metric (a count of parameters): that all seeds agree decides, however few they are."""


class Equivalence(_TwoSides):
    """Both sides differ by less than ``margin`` (two one-sided tests)."""

    kind: Literal["equivalence"]
    margin: float = Field(gt=0)
    """In the metric's units."""


class NonInferiority(_TwoSides):
    """The first side is at least as good as the second, or worse by less than ``margin`` (one one-sided test)."""

    kind: Literal["non_inferiority"]
    margin: float = Field(gt=0)
    """In the metric's units, or as a share of the second side's mean."""
    relative: bool = False
    """The margin is a share of the second side's mean, e.g. of its seconds."""


class GainDifference(_Frozen):
    """A row gains more over another in some columns than in others."""

    kind: Literal["gain_difference"]
    metric: str
    row: str
    over: str
    """The row that it gains over."""
    columns: Columns
    than_columns: Columns

    def places(self) -> list[Place]:
        """All places that the test reads: of both rows in the first columns, then in the others."""
        rows = (self.row, self.over)
        return [(row, column) for columns in (self.columns, self.than_columns) for row in rows for column in columns]


class GainCorrelation(_Frozen):
    """Items on which the first side's array is lower than the second's by more are those with more of ``against``."""

    kind: Literal["gain_correlation"]
    first: Side
    second: Side
    array: str
    """Name in ``Result.arrays``, in full (no prefix goes before), lower is better, e.g. ``example_soft_nll``."""
    against: str
    """Name in ``Result.arrays``, e.g. ``example_distance``; the same in both sides, or they were not paired."""

    @model_validator(mode="after")
    def _check_pairs(self) -> GainCorrelation:
        _same_length(self.first, self.second)
        return self

    def places(self) -> list[Place]:
        """All places that the test reads."""
        return [*self.first.places(), *self.second.places()]


class _OneRow(_Frozen):
    row: str
    columns: Columns

    def places(self) -> list[Place]:
        """All places that the test reads."""
        return [(self.row, column) for column in self.columns]


class Trend(_OneRow):
    """The metric falls (or rises) over the columns, in the order given."""

    kind: Literal["trend"]
    metric: str
    columns: tuple[str, ...] = Field(min_length=2)
    direction: Literal["falling", "rising"]


class Correlation(_OneRow):
    """Two curves over epochs correlate (Spearman) by more than ``above``."""

    kind: Literal["correlation"]
    curves: tuple[str, str]
    above: float = Field(default=0.0, ge=-1, lt=1)


class Value(_OneRow):
    """A metric is above a reference."""

    kind: Literal["value"]
    metric: str
    above: float


class AbovePairs(_OneRow):
    """A metric is above what a probe says of pairs of trained models, e.g. of two seeds of one method.

    A seed's pairs are those that it is part of, so that two seeds share one: their effects are not independent.
    """

    kind: Literal["above_pairs"]
    metric: str
    probe: str
    """One of the figure's ``y``."""
    pair: str
    """Label of one of the figure's ``pairs``."""


class Equals(_OneRow):
    """A metric differs from ``value`` by less than ``margin`` (two one-sided tests), e.g. "at chance"."""

    kind: Literal["equals"]
    metric: str
    value: float
    margin: float = Field(gt=0)
    """In the metric's units."""


ClaimTest = (
    PairedDifference
    | Equivalence
    | NonInferiority
    | GainDifference
    | GainCorrelation
    | Trend
    | Correlation
    | Value
    | AbovePairs
    | Equals
)
KINDS: dict[str, type[ClaimTest]] = {
    "paired_difference": PairedDifference,
    "equivalence": Equivalence,
    "non_inferiority": NonInferiority,
    "trend": Trend,
    "correlation": Correlation,
    "gain_difference": GainDifference,
    "gain_correlation": GainCorrelation,
    "value": Value,
    "above_pairs": AbovePairs,
    "equals": Equals,
}


def parse_test(claim: ClaimSpec, spec: TableSpec) -> ClaimTest:
    """The test of ``claim``, with all its names checked against the table.

    Raises:
        SpecError: unknown kind, row, column or metric (near names are listed), or a wrong parameter.
    """
    owner = f"claim {claim.id!r} of {spec.table!r}"
    kind = str(claim.test.get("kind", ""))
    if kind not in KINDS:
        raise SpecError(unknown_name("kind of test", kind, KINDS, where=owner))
    try:
        test = KINDS[kind].model_validate(claim.test)
    except ValidationError as error:
        raise SpecError(f"{owner}: {_first(error)}") from error
    _check("row", (row for row, _ in test.places()), (row.name for row in spec.rows), owner)
    _check("column", (column for _, column in test.places()), (column.name for column in spec.columns), owner)
    if not isinstance(test, Correlation | GainCorrelation):
        _check("metric", [test.metric], (metric.name for metric in spec.metrics), owner)
    if isinstance(test, AbovePairs):
        figure = spec.figure
        if figure is None or figure.form != "pairs":
            raise SpecError(f"{owner}: kind 'above_pairs' reads probes of pairs; give it a figure of form 'pairs'")
        _check("probe", [test.probe], figure.y, owner)
        _check("pair", [test.pair], (pair.label for pair in figure.pairs), owner)
        rows = {row for pair in figure.pairs if pair.label == test.pair for row in (pair.first, pair.second)}
        if rows != {test.row}:
            which = " and ".join(sorted(rows))
            raise SpecError(f"{owner}: the pair {test.pair!r} must be of two seeds of {test.row!r}, not of {which}")
    return test


def _check(kind: str, names: Iterable[str], known: Iterable[str], owner: str) -> None:
    allowed = set(known)
    for name in names:
        if name not in allowed:
            raise SpecError(unknown_name(kind, name, allowed, where=owner))


def _first(error: ValidationError) -> str:
    first: Any = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"]) or "test"
    return f"{place}: {first['msg']}"
