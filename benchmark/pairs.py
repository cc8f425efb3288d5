"""Pairs of trained methods: which there are in a figure, and what the probes say of each.

Methods come from the store (``weights.pt``), nothing is trained. Each value is written when it is known, so a run
that was stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError
from torch import Tensor

from benchmark.evaluate.pairs import OF_TWO_VIEWS, PROBE_VERSIONS, PROBES
from benchmark.evaluate.probed import Probed
from benchmark.resolve import build_data, resolve
from benchmark.result import DONE, Outcome
from benchmark.run import build
from benchmark.spec import SpecError, TableSpec, digest_of
from benchmark.store import Store
from benchmark.table_parts import PairSpec
from benchmark.worker import one_line
from datamodules.base import CrowdDataModule, hash_tensors
from datamodules.names import unknown_name
from models.base import CrowdModule
from models.encoders import features, fitted_encoder
from models.encoders.base import learns

OnProgress = Callable[[str], None]


class PairRecord(BaseModel):
    """What one probe found of two trained methods, as it lies in the store.

    ``first`` and ``second`` are the digests of their cells; ``value`` is None where the probe does not apply, and
    ``reason`` says why; ``details`` holds what else the probe returns.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    probe: str
    version: str
    first: str
    second: str
    value: FiniteFloat | None
    reason: str = ""
    details: dict[str, Any] = {}

    def same_question(self, other: PairRecord) -> bool:
        """Whether both answer the same question."""
        return self._question() == other._question()

    def address(self) -> str:
        """Its name in the store."""
        return digest_of(self._question())

    def _question(self) -> dict[str, str]:
        return {"probe": self.probe, "version": self.version, "first": self.first, "second": self.second}


@dataclass(frozen=True)
class Pair:
    """Two cells of one column that the pair ``label`` of a figure compares."""

    label: str
    column: str
    first: Outcome
    second: Outcome


def pairs_of(spec: TableSpec, outcomes: Sequence[Outcome]) -> list[Pair]:
    """All pairs that the figure ``spec`` asks for among the cells ``outcomes``, column by column.

    With ``across`` every two different seeds make a pair: each couple of seeds once where both rows are the same, in
    both orders where they differ, because then these are four different methods. Without, equal seeds do.

    Raises:
        SpecError: if ``spec`` is no figure of pairs.
    """
    if spec.figure is None or not spec.figure.pairs:
        raise SpecError(f"{spec.table} compares no pairs of trained methods; its 'figure' must have form 'pairs'")
    placed: dict[tuple[str, str], dict[int, Outcome]] = {}
    for outcome in outcomes:
        placed.setdefault((outcome.column, outcome.row), {})[outcome.cell.seed] = outcome
    return [
        Pair(wanted.label, column.name, first[one], second[other])
        for column in spec.columns
        for wanted in spec.figure.pairs
        for first in [placed.get((column.name, wanted.first), {})]
        for second in [placed.get((column.name, wanted.second), {})]
        for one in sorted(first)
        for other in sorted(second)
        if _belong_together(wanted, one, other)
    ]


def _belong_together(wanted: PairSpec, one: int, other: int) -> bool:
    if not wanted.across:
        return one == other
    return one < other if wanted.first == wanted.second else one != other


def probe_pairs(
    spec: TableSpec,
    outcomes: Sequence[Outcome],
    store: Store,
    root: Path | None = None,
    on_progress: OnProgress = lambda text: None,
    on_failure: OnProgress = lambda text: None,
    *,
    compute: bool = True,
) -> list[dict[str, Any]]:
    """Every probe of the figure ``spec`` (its ``y``) on every pair; what is in ``store`` is not computed again.

    A pair that cannot be probed has a reason in place of a value and never stops the others. What is lasting (a
    probe that does not apply) is kept like a value; what may pass (a cell not done, weights that are missing) is not.

    Args:
        spec: a figure of form ``pairs``.
        outcomes: its cells under one profile.
        store: where results and weights lie, and where values are kept.
        root: folder with the data; default as for the data module.
        on_progress: called with one line before each value that has to be computed.
        on_failure: called with one line for each that could not be, though both its cells are done.
        compute: False: only what is in the store, as for printing a table.

    Returns:
        One record a probe and pair: ``column``, ``pair`` (its label), ``probe``, ``first_seed``, ``second_seed``,
        ``value`` (None where there is none), ``reason``, ``details``.

    Raises:
        SpecError: if ``spec`` is no figure of pairs, or names a probe that does not exist.
        KeyboardInterrupt: what was done is in the store.
    """
    pairs = pairs_of(spec, outcomes)
    assert spec.figure is not None, "pairs_of has looked"
    for name in spec.figure.y:
        if name not in PROBES:
            raise SpecError(unknown_name("probe", name, PROBES, where=f"the figure {spec.table!r}"))
    shelf = _Shelf(store, root) if compute else None
    asked = [(pair, name) for pair in pairs for name in spec.figure.y]
    with _threads_kept():
        return [
            _as_row(
                pair,
                _answer(
                    name,
                    pair,
                    store,
                    shelf,
                    partial(_tell, on_progress, place, len(asked), pair, name),
                    partial(_tell_failure, on_failure, pair, name),
                ),
            )
            for place, (pair, name) in enumerate(asked, start=1)
        ]


def _tell(on_progress: OnProgress, place: int, total: int, pair: Pair, name: str) -> None:
    on_progress(f"probe {place} of {total}: {_described(pair, name)}")


def _tell_failure(on_failure: OnProgress, pair: Pair, name: str, reason: str) -> None:
    on_failure(f"failed: {_described(pair, name)}: {reason}")


def _described(pair: Pair, name: str) -> str:
    seeds = f"seeds {pair.first.cell.seed} and {pair.second.cell.seed}"
    return f"{name} of {pair.label!r} in column {pair.column!r}, {seeds}"


def _answer(
    name: str, pair: Pair, store: Store, shelf: _Shelf | None, tell: Callable[[], None], fail: OnProgress
) -> PairRecord:
    asked = PairRecord(
        probe=name,
        version=PROBE_VERSIONS.get(name, "1"),
        first=pair.first.digest,
        second=pair.second.digest,
        value=None,
    )
    undone = [outcome for outcome in (pair.first, pair.second) if outcome.status != DONE]
    if undone:
        why = f": {undone[0].reason}" if undone[0].reason else ""
        return asked.model_copy(update={"reason": f"{undone[0].cell.describe()} is {undone[0].status}{why}"})
    kept = _kept(asked, store)
    if kept is not None:
        return kept
    if shelf is None:
        return asked.model_copy(update={"reason": "not computed yet; 'annobench run' does"})
    tell()
    try:
        answer = _computed(asked, pair, shelf)
    except Exception as error:  # one pair's trouble must not cost the others; it is tried again by the next run
        store.log("pair", probe=name, first=asked.first, second=asked.second, error=one_line(error))
        fail(one_line(error))
        return asked.model_copy(update={"reason": one_line(error)})
    text = answer.model_dump_json(indent=1)
    store.save_pair(asked.address(), text)
    return PairRecord.model_validate_json(text)  # as the next run will read it


def _kept(asked: PairRecord, store: Store) -> PairRecord | None:
    """The answer in the store; None where there is none, or one that cannot be read or answers something else."""
    text = store.load_pair(asked.address())
    if text is None:
        return None
    try:
        record = PairRecord.model_validate_json(text)
    except ValidationError:
        return None
    answered = record.value is not None or record.reason
    return record if answered and record.same_question(asked) else None


def _computed(asked: PairRecord, pair: Pair, shelf: _Shelf) -> PairRecord:
    first, datamodule = shelf.first(pair.first)
    second = shelf.second(pair.second)
    second_x = shelf.seen_by_second(pair.second, datamodule)
    if second_x is None:
        found_now = PROBES[asked.probe](first, second, datamodule)
    elif asked.probe in OF_TWO_VIEWS:
        found_now = PROBES[asked.probe](first, second, datamodule, second_x)
    else:
        found_now = Probed(None, "the encoders of the two models learned from other items")
    details = asdict(found_now)
    found = {"value": details.pop("value"), "reason": details.pop("reason"), "details": details}
    return PairRecord.model_validate({**asked.model_dump(), **found})


def _as_row(pair: Pair, answer: PairRecord) -> dict[str, Any]:
    return {
        "column": pair.column,
        "pair": pair.label,
        "probe": answer.probe,
        "first_seed": pair.first.cell.seed,
        "second_seed": pair.second.cell.seed,
        "value": answer.value,
        "reason": answer.reason,
        "details": answer.details,
    }


class _Shelf:
    """Trained methods of one column, and the data of the first of the current pair.

    Methods are small and taken up again with every seed; data is large and the same items for all, so that only one
    is held.
    """

    def __init__(self, store: Store, root: Path | None) -> None:
        self.store = store
        self.root = root
        self.column = ""
        self.methods: dict[str, CrowdModule] = {}
        self.datamodule: CrowdDataModule | None = None
        self.of = ""

    def first(self, outcome: Outcome) -> tuple[CrowdModule, CrowdDataModule]:
        """The trained method of ``outcome`` and its data."""
        if self.column != outcome.column:
            self.column = outcome.column
            self.methods.clear()
        if self.of != outcome.digest or outcome.digest not in self.methods or self.datamodule is None:
            self.methods[outcome.digest], self.datamodule = load_trained(outcome, self.store, self.root)
            self.of = outcome.digest
        return self.methods[outcome.digest], self.datamodule

    def second(self, outcome: Outcome) -> CrowdModule:
        """The trained method of ``outcome``."""
        if outcome.digest not in self.methods:
            self.methods[outcome.digest], _ = load_trained(outcome, self.store, self.root)
        return self.methods[outcome.digest]

    def seen_by_second(self, outcome: Outcome, datamodule: CrowdDataModule) -> Tensor | None:
        """Test items of ``datamodule`` through the encoder that ``outcome`` learned with; None: they are the same.

        An encoder that learns is fitted to the training items of its seed, and tokens of two fits have nothing to do
        with each other.
        """
        encoder = outcome.cell.encoder
        if not encoder or not learns(encoder["name"]):
            return None
        resolved = resolve(outcome.cell, root=self.root)
        own = build_data(outcome.cell, resolved.dataset, resolved.data_args, root=self.root)
        own.setup()
        assert isinstance(own, CrowdDataModule), "few-shot tasks have no encoder"
        learned_from, seen = own.data.x, datamodule.as_loaded
        if torch.equal(learned_from, seen.x):
            return None
        digest = hash_tensors(own.data.x, own.data.test_x)
        fitted = fitted_encoder(encoder["name"], resolved.encoder_args, learned_from, f"{digest}/train")
        return features(fitted, seen.test_x, hash_tensors(seen.test_x), resolved.encoder_form)


def load_trained(outcome: Outcome, store: Store, root: Path | None = None) -> tuple[CrowdModule, CrowdDataModule]:
    """The method of a cell with the weights that it was measured with, on the GPU if there is one, and its data.

    Raises:
        FileNotFoundError: if the weights are not in the store.
        RuntimeError: if data or code are no longer what the cell was run with.
    """
    path = store.folder(outcome.cell, outcome.digest) / "weights.pt"
    described = outcome.cell.describe()
    if not path.is_file():
        raise FileNotFoundError(f"no weights of {described} at {path}; remove that folder and run the cell again")
    resolved = resolve(outcome.cell, root=root)
    if resolved.digest != outcome.digest:
        raise RuntimeError(f"the data or the code of {described} changed since it was run; run it again")
    method, datamodule = build(resolved, root=root)
    if not (isinstance(method, CrowdModule) and isinstance(datamodule, CrowdDataModule)):
        raise TypeError(f"{described}: few-shot methods are not compared in pairs")
    try:
        method.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:
        raise RuntimeError(
            f"the weights of {described} at {path} cannot be read ({one_line(error)}); "
            "remove that folder and run the cell again"
        ) from error
    method.to("cuda" if torch.cuda.is_available() else "cpu")
    return method.eval(), datamodule


@contextmanager
def _threads_kept() -> Iterator[None]:
    # building a cell sets the number of threads that the cell is measured with
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
