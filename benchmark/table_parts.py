"""What a table is made of: metrics, rows, columns, profiles, claims, the figure. Frozen and validated; see ``spec``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat


class Frozen(BaseModel):
    """A record that cannot change and takes no unknown key."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class MetricSpec(Frozen):
    """One number of a cell as a column of the table."""

    name: str
    """Key in ``Result.metrics``."""
    label: str
    direction: Literal["max", "min"] = "max"
    """Which way is better."""
    digits: int = Field(default=3, ge=0)
    """Decimals shown."""


class RowSpec(Frozen):
    """One method with its arguments."""

    name: str
    label: str
    method: str
    args: dict[str, Any] = {}
    values: dict[str, dict[str, FiniteFloat]] = {}
    """The paper's values: column -> metric -> value. Absent: not printed, shown as an en dash."""
    source: str = ""
    """Where the values were printed."""
    note: str = ""
    """Shown under the table."""
    prefix: str = ""
    """Shows the metrics named ``<column's prefix><prefix><metric>``, where several rows show what one cell measured."""


class ColumnSpec(Frozen):
    """One regime (with its data set, where it differs from the profile's)."""

    name: str
    label: str
    regime: str = ""
    """Not given exactly where the column is an average."""
    dataset: str | None = None
    data: dict[str, Any] = {}
    average_of: tuple[str, ...] = ()
    """Shows, seed by seed, the mean of these columns; no cell of its own is run."""
    args: dict[str, Any] = {}
    """Arguments of every row's method in this column."""
    prefix: str = ""
    """Shows the metrics named ``<prefix><metric>``, where several columns show what one cell measured."""
    x: FiniteFloat | None = None
    """Place on the horizontal axis of a figure of form ``lines``."""


class ReferenceRow(Frozen):
    """Published numbers that are shown and never run."""

    label: str
    source: str
    values: dict[str, dict[str, FiniteFloat]]


class RowOverride(Frozen):
    """What a profile changes in one row."""

    args: dict[str, Any] = {}
    train: dict[str, Any] = {}


class ColumnOverride(Frozen):
    """What a profile changes in one column."""

    dataset: str | None = None
    regime: str | None = None
    data: dict[str, Any] = {}
    args: dict[str, Any] = {}
    """Arguments of every row's method in this column, e.g. augmentations that suit other data."""
    train: dict[str, Any] = {}
    encoder: dict[str, Any] | None = None
    """As ``Cell.encoder``; None: the profile's."""
    seeds: int | None = Field(default=None, gt=0)
    """Number of seeds in this column, where it is cheap enough for more; None: the profile's."""


class ProfileSpec(Frozen):
    """How much compute: data, seeds, epochs, arguments."""

    dataset: str
    seeds: int = Field(gt=0)
    train: dict[str, Any]
    data: dict[str, Any] = {}
    args: dict[str, dict[str, Any]] = {}
    """method -> arguments that this profile sets for it."""
    rows: dict[str, RowOverride] = {}
    columns: dict[str, ColumnOverride] = {}
    encoder: dict[str, Any] = {}
    """As ``Cell.encoder``."""
    omit_columns: tuple[str, ...] = ()
    """Columns that this profile's data cannot have."""
    takes: str = ""
    """What it takes, in words: ``about an hour on two cores``."""
    is_papers_data: bool = False
    """True where the data is the paper's own; only then a difference to the paper is computed."""
    notes: tuple[str, ...] = ()


class ClaimSpec(Frozen):
    """What a paper asserts and the comparison that would show it (evaluated in ``benchmark.claims``)."""

    id: str
    says: str
    source: str
    test: dict[str, Any]
    """``kind`` and its parameters; validated by the test of that kind."""


class PaperSpec(Frozen):
    """Where the table comes from."""

    key: str
    title: str
    authors: str
    year: int
    where: str


class CompareSpec(Frozen):
    """Which rows of a table are tested against which, seed by seed."""

    reference: str
    """Name of the row that every other row is held against."""
    metrics: tuple[str, ...] = Field(min_length=1)


class PairSpec(Frozen):
    """Two rows whose trained models a probe compares."""

    label: str
    first: str
    second: str
    across: bool = False
    """False: models of the same seed; True: of every two different seeds (then both rows may be the same)."""


class FigureSpec(Frozen):
    """How a figure is drawn from results (``benchmark.report.figures``)."""

    form: Literal["curves", "scatter", "gain", "lines", "pairs", "map", "attention"]
    """``curves``: ``Result.curves`` over epochs; ``scatter``: one ``Result.arrays`` against another; ``gain``: how much
    lower the array y is than in the row ``reference``, item by item, against the array x; ``lines``: the metric y over
    the columns' ``x``, a line a row; ``pairs``: what the probes y (``benchmark.evaluate.pairs``) say of ``pairs``;
    ``map``: the array y against the array x in one seed, coloured by the whole numbers of the array ``colour``;
    ``attention``: what the protocol ``attention_examples`` keeps, one item a row and column in one seed."""
    x: str = ""
    """Scatter, gain and map: name of the array on the horizontal axis; lines: the axis in words."""
    y: tuple[str, ...] = Field(min_length=1)
    """Names of the curves, the one array or metric on the vertical axis, or the probes."""
    colour: str = ""
    """Map only: name of the array of classes."""
    reference: str = ""
    """Gain only: the row that the others are held against."""
    pairs: tuple[PairSpec, ...] = ()
    paper: dict[str, dict[str, FiniteFloat]] = {}
    """What is known of the paper's curves: curve -> point in words -> value."""
