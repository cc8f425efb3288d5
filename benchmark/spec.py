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
from pydantic import Field, ValidationError, model_validator

from benchmark.table_parts import (
    ClaimSpec,
    ColumnOverride,
    ColumnSpec,
    CompareSpec,
    FigureSpec,
    Frozen,
    MetricSpec,
    PaperSpec,
    ProfileSpec,
    ReferenceRow,
    RowOverride,
    RowSpec,
)
from datamodules.names import unknown_name

ProfileName = Literal["paper", "cpu", "demo"]
PROFILES: tuple[str, ...] = ("paper", "cpu", "demo")
#: what is measured in every cell unless a table asks for more; see ``benchmark.evaluate``
DEFAULT_PROTOCOLS = ("consensus", "tendency", "skill")


class SpecError(ValueError):
    """A table's YAML says something that cannot be: names the table, the place and the remedy."""


class TrainArgs(Frozen):
    """How a cell is trained: everything of the ``Trainer`` that can change its number."""

    max_epochs: int = Field(gt=0)
    """Epochs over the training items."""
    selection: Literal["last", "best_noisy_validation", "best_validation_tasks", "last_and_best_votes"] = "last"
    """Which epoch is tested: the last, the best by accuracy on held-out noisy labels, the best by query accuracy on
    few-shot tasks of validation classes, or both the last and the best
    by soft negative log-likelihood on held-out votes, whose metrics are named ``best_...``."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    """Lightning's name of the number format."""
    gradient_clip_val: float | None = None
    """Largest norm of the gradient; None: not clipped."""
    threads: int = Field(default=1, gt=0)
    """CPU threads of one cell. Fixed, because sums over more threads round differently."""


class Cell(Frozen):
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
    encoder: dict[str, Any] = {}
    """``name``, ``form`` (``flat`` unless given, ``mean`` or ``tokens``) and arguments of a frozen encoder
    (``models.encoders``) whose features the method gets instead of the items; empty: the items themselves."""

    def describe(self) -> str:
        """One short line for people, e.g. ``cross_entropy on digits/aggre, seed 0``."""
        return f"{self.method} on {self.dataset}/{self.regime}, seed {self.seed}"


def canonical_json(value: Any) -> str:
    """The one JSON text of ``value``: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest_of(value: Any) -> str:
    """The first 24 hex digits of the SHA-256 of ``value``'s canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:24]


class PlannedCell(Frozen):
    """A cell and its place in the table."""

    row: str
    column: str
    cell: Cell


class TableSpec(Frozen):
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
    compare: CompareSpec | None = None
    """Paired tests between rows; None: there are none."""
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
        if self.compare is not None:
            if self.compare.reference not in rows:
                raise ValueError(unknown_name("row", self.compare.reference, rows, where="'compare'"))
            for metric in self.compare.metrics:
                if metric not in metrics:
                    raise ValueError(unknown_name("metric", metric, metrics, where="'compare'"))
        self._check_averages()
        self._check_figure_rows(set(rows))
        for name, profile in self.profiles.items():
            for row in profile.rows:
                if row not in rows:
                    raise ValueError(unknown_name("row", row, rows, where=f"profile {name!r}"))
            for column in (*profile.columns, *profile.omit_columns):
                if column not in columns:
                    raise ValueError(unknown_name("column", column, columns, where=f"profile {name!r}"))
        return self

    def _check_averages(self) -> None:
        run = {column.name for column in self.columns if not column.average_of}
        for column in self.columns:
            if bool(column.average_of) == bool(column.regime):
                raise ValueError(f"column {column.name!r} needs either a regime or columns that it is the average of")
            for part in column.average_of:
                if part not in run:
                    raise ValueError(unknown_name("column", part, run, where=f"the average {column.name!r}"))

    def _check_figure_rows(self, rows: set[str]) -> None:
        if self.figure is None:
            return
        named = [*([self.figure.reference] if self.figure.form == "gain" else [])]
        named += [row for pair in self.figure.pairs for row in (pair.first, pair.second)]
        for row in named:
            if row not in rows:
                raise ValueError(unknown_name("row", row, rows, where="'figure'"))
        if (self.figure.form == "map") != bool(self.figure.colour):
            raise ValueError("'colour' of a figure is given exactly where its form is 'map'")
        if self.figure.form == "attention" and "attention_examples" not in self.protocols:
            raise ValueError("a figure of form 'attention' needs 'attention_examples' among the protocols")
        if (self.figure.form == "pairs") != bool(self.figure.pairs):
            raise ValueError("'pairs' of a figure are given exactly where its form is 'pairs'")

    def profile(self, name: str) -> ProfileSpec:
        """The profile ``name``; SpecError lists the ones there are."""
        for known, profile in self.profiles.items():
            if known == name:
                return profile
        raise SpecError(unknown_name("profile", name, self.profiles, where=f"table {self.table!r}"))

    def under(self, profile: str) -> TableSpec:
        """This table as it is shown under ``profile``: without the columns that the profile omits."""
        omitted = self.profile(profile).omit_columns
        return self.model_copy(update={"columns": tuple(at for at in self.columns if at.name not in omitted)})

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
            SpecError: for a name that the table does not have, or columns of which the profile runs none.
        """
        chosen = self.profile(profile)
        rows = self._chosen_rows(methods)
        picked = [
            column
            for column in self._chosen_columns(columns)
            if column.name not in chosen.omit_columns and not column.average_of
        ]
        omitted = [name for name in columns or () if name in chosen.omit_columns]
        if omitted or (columns is not None and not picked):
            which = ", ".join(omitted or columns or ())
            raise SpecError(
                f"table {self.table!r} runs nothing in {which} under profile {profile!r}: it omits them, or they are "
                "averages of others; name other columns, or another --profile"
            )
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
            train = TrainArgs(**{**profile.train, **in_column.train, **in_row.train})
        except ValidationError as error:
            raise SpecError(f"{self.table}, profile {name!r}, 'train' of row {row.name!r}: {_first(error)}") from error
        return Cell(
            method=row.method,
            method_args={
                **row.args,
                **column.args,
                **profile.args.get(row.method, {}),
                **in_row.args,
                **in_column.args,
            },
            dataset=in_column.dataset or column.dataset or profile.dataset,
            regime=in_column.regime or column.regime,
            data_args={**profile.data, **column.data, **in_column.data},
            seed=seed,
            train=train,
            protocols=self.protocols,
            profile=name,  # type: ignore[arg-type]
            encoder=profile.encoder if in_column.encoder is None else in_column.encoder,
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
