"""Tables as data: YAML -> :class:`TableSpec` -> :class:`Cell`. Frozen, validated, hashed canonically.

A table's YAML names rows (methods with arguments), columns (regimes), metrics, profiles and the paper's
values with where each was printed. :meth:`TableSpec.plan` is the one place that enumerates a grid.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from datamodules.names import unknown_name

ProfileName = Literal["paper", "cpu", "demo"]
PROFILES: tuple[str, ...] = ("paper", "cpu", "demo")
#: what is measured in every cell unless a table asks for more; see ``benchmark.evaluate``
DEFAULT_PROTOCOLS = ("consensus", "tendency", "skill")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SpecError(ValueError):
    """A table's YAML says something that cannot be: names the table, the place and the remedy."""


class TrainArgs(_Frozen):
    """How a cell is trained: everything of the ``Trainer`` that can change its number."""

    max_epochs: int = Field(gt=0)
    """Epochs over the training items."""
    selection: Literal["last", "best_noisy_validation"] = "last"
    """Which epoch is tested: the last, or the best by accuracy on held-out noisy labels."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    """Lightning's name of the number format."""
    gradient_clip_val: float | None = None
    """Largest norm of the gradient; None: not clipped."""
    threads: int = Field(default=1, gt=0)
    """CPU threads of one cell. Fixed, because sums over more threads round differently."""


class Cell(_Frozen):
    """The unit of work: one method on one data set under one regime with one seed."""

    method: str
    method_args: dict[str, Any] = {}
    dataset: str
    regime: str
    data_args: dict[str, Any] = {}
    seed: int = Field(ge=0)
    train: TrainArgs
    protocols: tuple[str, ...] = DEFAULT_PROTOCOLS
    profile: ProfileName

    def describe(self) -> str:
        """One short line for people, e.g. ``cross_entropy on digits/aggre, seed 0``."""
        return f"{self.method} on {self.dataset}/{self.regime}, seed {self.seed}"


def canonical_json(value: Any) -> str:
    """The one JSON text of ``value``: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest_of(value: Any) -> str:
    """The first 24 hex digits of the SHA-256 of ``value``'s canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:24]


class MetricSpec(_Frozen):
    """One number of a cell as a column of the table."""

    name: str
    """Key in ``Result.metrics``."""
    label: str
    direction: Literal["max", "min"] = "max"
    """Which way is better."""
    digits: int = Field(default=3, ge=0)
    """Decimals shown."""


class RowSpec(_Frozen):
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


class ColumnSpec(_Frozen):
    """One regime (with its data set, where it differs from the profile's)."""

    name: str
    label: str
    regime: str
    dataset: str | None = None
    data: dict[str, Any] = {}


class ReferenceRow(_Frozen):
    """Published numbers that are shown and never run."""

    label: str
    source: str
    values: dict[str, dict[str, FiniteFloat]]


class RowOverride(_Frozen):
    """What a profile changes in one row."""

    args: dict[str, Any] = {}
    train: dict[str, Any] = {}


class ColumnOverride(_Frozen):
    """What a profile changes in one column."""

    dataset: str | None = None
    regime: str | None = None
    data: dict[str, Any] = {}
    args: dict[str, Any] = {}
    """Arguments of every row's method in this column, e.g. augmentations that suit other data."""
    seeds: int | None = Field(default=None, gt=0)
    """Number of seeds in this column, where it is cheap enough for more; None: the profile's."""


class ProfileSpec(_Frozen):
    """How much compute: data, seeds, epochs, arguments."""

    dataset: str
    seeds: int = Field(gt=0)
    train: dict[str, Any]
    data: dict[str, Any] = {}
    args: dict[str, dict[str, Any]] = {}
    """method -> arguments that this profile sets for it."""
    rows: dict[str, RowOverride] = {}
    columns: dict[str, ColumnOverride] = {}
    takes: str = ""
    """What it takes, in words: ``about an hour on two cores``."""
    is_papers_data: bool = False
    """True where the data is the paper's own; only then a difference to the paper is computed."""
    notes: tuple[str, ...] = ()


class ClaimSpec(_Frozen):
    """What a paper asserts and the comparison that would show it (evaluated in ``benchmark.claims``)."""

    id: str
    says: str
    source: str
    test: dict[str, Any]
    """``kind`` and its parameters; validated by the test of that kind."""


class PaperSpec(_Frozen):
    """Where the table comes from."""

    key: str
    title: str
    authors: str
    year: int
    where: str


class FigureSpec(_Frozen):
    """How a figure is drawn from results (``benchmark.report.figures``)."""

    form: Literal["curves", "scatter"]
    """``curves``: ``Result.curves`` over epochs; ``scatter``: one ``Result.arrays`` against another."""
    x: str = ""
    """Scatter only: name of the array on the horizontal axis."""
    y: tuple[str, ...] = Field(min_length=1)
    """Names of the curves, or the one array on the vertical axis."""
    paper: dict[str, dict[str, FiniteFloat]] = {}
    """What is known of the paper's curves: curve -> point in words -> value."""


class PlannedCell(_Frozen):
    """A cell and its place in the table."""

    row: str
    column: str
    cell: Cell


class TableSpec(_Frozen):
    """A table or figure of a paper: rows x columns x seeds under each profile."""

    table: str = Field(pattern=r"^[a-z0-9-]+/[a-z0-9-]+$")
    kind: Literal["table", "figure"] = "table"
    title: str
    paper: PaperSpec
    metrics: tuple[MetricSpec, ...] = Field(min_length=1)
    rows: tuple[RowSpec, ...] = Field(min_length=1)
    columns: tuple[ColumnSpec, ...] = Field(min_length=1)
    references: tuple[ReferenceRow, ...] = ()
    figure: FigureSpec | None = None
    """There exactly where ``kind`` is ``figure``."""
    profiles: dict[ProfileName, ProfileSpec] = Field(min_length=1)
    protocols: tuple[str, ...] = DEFAULT_PROTOCOLS
    notes: tuple[str, ...] = ()
    """Doubts about the sources, contradictions: shown under the table in every profile."""
    claims: tuple[ClaimSpec, ...] = ()

    @model_validator(mode="after")
    def _check_names(self) -> TableSpec:
        if (self.figure is not None) != (self.kind == "figure"):
            raise ValueError("'figure' says how a figure is drawn: give it exactly where kind is 'figure'")
        columns = {column.name for column in self.columns}
        metrics = {metric.name for metric in self.metrics}
        rows = [row.name for row in self.rows]
        for kind, names in (("row", rows), ("column", [column.name for column in self.columns])):
            doubled = sorted({name for name in names if names.count(name) > 1})
            if doubled:
                raise ValueError(f"two {kind}s are named {doubled[0]!r}")
        owners: tuple[RowSpec | ReferenceRow, ...] = (*self.rows, *self.references)
        for owner in owners:
            for column, values in owner.values.items():
                if column not in columns:
                    raise ValueError(unknown_name("column", column, columns, where=f"the values of {owner.label!r}"))
                for metric in values:
                    if metric not in metrics:
                        raise ValueError(
                            unknown_name("metric", metric, metrics, where=f"the values of {owner.label!r}")
                        )
        for name, profile in self.profiles.items():
            for row in profile.rows:
                if row not in rows:
                    raise ValueError(unknown_name("row", row, rows, where=f"profile {name!r}"))
            for column in profile.columns:
                if column not in columns:
                    raise ValueError(unknown_name("column", column, columns, where=f"profile {name!r}"))
        return self

    def profile(self, name: str) -> ProfileSpec:
        """The profile ``name``; SpecError lists the ones there are."""
        for known, profile in self.profiles.items():
            if known == name:
                return profile
        raise SpecError(unknown_name("profile", name, self.profiles, where=f"table {self.table!r}"))

    def with_row(self, row: RowSpec) -> TableSpec:
        """This table with one more row, at the end; validated as from YAML."""
        return TableSpec.model_validate({**self.model_dump(), "rows": [*self.model_dump()["rows"], row.model_dump()]})

    def plan(
        self,
        profile: str,
        *,
        seeds: int | None = None,
        methods: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> list[PlannedCell]:
        """All cells under ``profile``, seed by seed, so that an early stop leaves whole seeds.

        Args:
            profile: ``paper``, ``cpu`` or ``demo``.
            seeds: number of seeds in every column; None: the profile's, or the column's own.
            methods: only rows with these names or of these methods.
            columns: only these columns.

        Raises:
            SpecError: for a name that the table does not have.
        """
        chosen = self.profile(profile)
        rows = self._chosen_rows(methods)
        picked = self._chosen_columns(columns)
        if seeds is not None and seeds < 1:
            raise SpecError(f"seeds is {seeds}; at least 1 is needed")
        overrides = {column.name: chosen.columns.get(column.name, ColumnOverride()) for column in picked}
        counts = {name: seeds or override.seeds or chosen.seeds for name, override in overrides.items()}
        return [
            PlannedCell(row=row.name, column=column.name, cell=self._cell(profile, chosen, row, column, seed))
            for seed in range(max(counts.values(), default=0))
            for row in rows
            for column in picked
            if seed < counts[column.name]
        ]

    def _chosen_rows(self, names: Sequence[str] | None) -> list[RowSpec]:
        if names is None:
            return list(self.rows)
        known = {row.name for row in self.rows} | {row.method for row in self.rows}
        for name in names:
            if name not in known:
                raise SpecError(unknown_name("method", name, known, where=f"table {self.table!r}"))
        return [row for row in self.rows if row.name in names or row.method in names]

    def _chosen_columns(self, names: Sequence[str] | None) -> list[ColumnSpec]:
        if names is None:
            return list(self.columns)
        known = {column.name for column in self.columns}
        for name in names:
            if name not in known:
                raise SpecError(unknown_name("column", name, known, where=f"table {self.table!r}"))
        return [column for column in self.columns if column.name in names]

    def _cell(self, name: str, profile: ProfileSpec, row: RowSpec, column: ColumnSpec, seed: int) -> Cell:
        in_row = profile.rows.get(row.name, RowOverride())
        in_column = profile.columns.get(column.name, ColumnOverride())
        try:
            train = TrainArgs(**{**profile.train, **in_row.train})
        except ValidationError as error:
            raise SpecError(f"{self.table}, profile {name!r}, 'train' of row {row.name!r}: {_first(error)}") from error
        return Cell(
            method=row.method,
            method_args={**row.args, **profile.args.get(row.method, {}), **in_row.args, **in_column.args},
            dataset=in_column.dataset or column.dataset or profile.dataset,
            regime=in_column.regime or column.regime,
            data_args={**profile.data, **column.data, **in_column.data},
            seed=seed,
            train=train,
            protocols=self.protocols,
            profile=name,  # type: ignore[arg-type]
        )


def load_table(path: Path) -> TableSpec:
    """Reads one table's YAML.

    Raises:
        SpecError: naming the file, the field and what is wrong with it.
    """
    try:
        document: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        return TableSpec.model_validate(document)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: not valid YAML in UTF-8: {error}") from error
    except ValidationError as error:
        raise SpecError(f"{path}: {_first(error)}") from error


def _first(error: ValidationError) -> str:
    """The first complaint of ``error``: place and what is wrong there; a name that is not known goes before."""
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    place = ".".join(str(part) for part in first["loc"]) or "the table"
    return f"{place}: {first['msg']}"
