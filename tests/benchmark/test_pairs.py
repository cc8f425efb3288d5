"""Pairs of trained methods of a figure: which there are, what is kept, what may be missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmark import pairs, resolve
from benchmark.evaluate.attention import attention_on
from benchmark.pairs import PairRecord, load_trained, pairs_of, probe_pairs
from benchmark.result import DONE, FAILED, MISSING, Outcome, Result
from benchmark.run import build
from benchmark.spec import SpecError, TableSpec
from benchmark.store import Store
from datamodules.annotations import Annotations
from datamodules.base import CrowdData, CrowdDataModule, DataInfo
from models.base import CrowdModule
from models.encoders import fitted_encoder

PROBES = ("loss_barrier", "cka", "gradcam_similarity")


class Voted(CrowdDataModule):
    """Vectors with a vote on every item of the test set."""

    name = "voted"
    regimes = {"noisy": "labels with noise"}
    provides = frozenset({"annotator_ids"})
    embedded = True
    standard_augmentation = "none"

    def load(self) -> CrowdData:
        generator = torch.Generator().manual_seed(self.annotation_seed)
        truth = torch.arange(60) % 3
        x = torch.randn(60, 4, generator=generator) + truth[:, None]
        noted = Annotations(torch.arange(60), torch.arange(60) % 5, truth, 60, 5, 3)
        return CrowdData(x, noted, truth, x + 0.01, truth, test_annotations=noted)


class Small(CrowdModule):
    def __init__(self, data_info: DataInfo, *, width: int = 6) -> None:
        super().__init__(data_info)
        self.hidden = nn.Linear(data_info.input_shape[0], width)
        self.norm = nn.BatchNorm1d(width)
        self.out = nn.Linear(width, data_info.n_classes)

    def embed(self, x: Tensor) -> Tensor:
        return self.norm(self.hidden(x)).relu()

    def class_logits(self, x: Tensor) -> Tensor:
        return self.out(self.embed(x))

    def predict_consensus(self, x: Tensor) -> Tensor:
        return self.class_logits(x).log_softmax(-1)


def figure(wanted: list[dict[str, Any]], probes: tuple[str, ...] = PROBES, seeds: int = 2) -> TableSpec:
    return TableSpec.model_validate(
        {
            "table": "tiny/fig1",
            "kind": "figure",
            "title": "Pairs",
            "paper": {"key": "tiny", "title": "Tiny", "authors": "Nobody", "year": 2026, "where": "nowhere"},
            "metrics": [{"name": "test_accuracy", "label": "Test"}],
            "rows": [
                {"name": "soft", "label": "Soft", "method": "small"},
                {"name": "hard", "label": "Hard", "method": "small", "args": {"width": 6}},
                {"name": "wide", "label": "Wide", "method": "small", "args": {"width": 7}},
            ],
            "columns": [{"name": "noisy", "label": "noisy", "regime": "noisy"}],
            "profiles": {"demo": {"dataset": "voted", "seeds": seeds, "train": {"max_epochs": 1}}},
            "figure": {"form": "pairs", "y": probes, "pairs": wanted},
        }
    )


SAME_SEED = {"label": "soft and wide", "first": "soft", "second": "wide"}
ACROSS = {"label": "soft", "first": "soft", "second": "soft", "across": True}


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "method_class", lambda name: Small)
    monkeypatch.setattr(resolve, "dataset_class", lambda name: Voted)


def stored(spec: TableSpec, store: Store) -> list[Outcome]:
    """Every cell of ``spec`` as if it had been trained: its initial weights, moved a little."""
    outcomes = []
    for plan in spec.plan("demo"):
        resolved = resolve.resolve(plan.cell)
        method, _ = build(resolved)
        state = {name: value + 0.1 * (value.dim() > 0) for name, value in method.state_dict().items()}
        result = Result(digest=resolved.digest, cell=plan.cell, metrics={})
        store.save(result, write_weights=saver(state))
        outcomes.append(Outcome(plan.row, plan.column, plan.cell, resolved.digest, DONE, result=result))
    return outcomes


def saver(state: dict[str, Tensor]) -> Callable[[Path], None]:
    return lambda path: torch.save(state, path)


def by_pair(spec: TableSpec, outcomes: list[Outcome]) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for pair in pairs_of(spec, outcomes):
        found.setdefault(pair.label, []).append((pair.first.cell.seed, pair.second.cell.seed))
    return found


def test_pairs_are_of_the_same_seed_or_of_every_two_different_seeds() -> None:
    two_rows = {"label": "soft and hard, across", "first": "soft", "second": "hard", "across": True}
    spec = figure([SAME_SEED, ACROSS, two_rows], seeds=3)
    outcomes = [Outcome(plan.row, plan.column, plan.cell, "x", DONE) for plan in spec.plan("demo")]
    assert by_pair(spec, outcomes) == {
        "soft and wide": [(0, 0), (1, 1), (2, 2)],
        "soft": [(0, 1), (0, 2), (1, 2)],
        "soft and hard, across": [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)],
    }


def test_every_probe_of_every_pair_has_a_value_or_a_reason(tmp_path: Path, names: None) -> None:
    spec, store, told = figure([SAME_SEED, ACROSS]), Store(tmp_path), []
    records = probe_pairs(spec, stored(spec, store), store, on_progress=told.append)
    assert len(told) == 9
    assert told[-1] == "probe 9 of 9: gradcam_similarity of 'soft' in column 'noisy', seeds 0 and 1"
    assert [(at["pair"], at["probe"], at["first_seed"], at["second_seed"]) for at in records] == [
        (pair, probe, *seeds)
        for pair, seeds in (("soft and wide", (0, 0)), ("soft and wide", (1, 1)), ("soft", (0, 1)))
        for probe in PROBES
    ]
    for record in records:
        assert record["column"] == "noisy"
        assert (record["value"] is None) == bool(record["reason"])
    assert records[0]["reason"].startswith("there is no line between two different networks")
    assert 0 < records[1]["value"] <= 1  # features of different width can be compared
    assert records[2]["reason"] == "Grad-CAM needs images; the method is given vectors"
    assert records[6]["value"] >= 0 and len(records[6]["details"]["losses"]) == 21


def test_the_weights_are_those_in_the_store_and_threads_stay(tmp_path: Path, names: None) -> None:
    spec, store = figure([ACROSS]), Store(tmp_path)
    outcomes = stored(spec, store)
    outcome = outcomes[0]
    threads = torch.get_num_threads()
    method, _ = load_trained(outcome, store)
    fresh, datamodule = build(resolve.resolve(outcome.cell))
    assert torch.allclose(method.state_dict()["out.weight"].cpu(), fresh.state_dict()["out.weight"] + 0.1)
    assert not method.training and len(datamodule.data.test_x) == 60
    torch.set_num_threads(threads + 1)
    try:
        probe_pairs(spec, outcomes, store)
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path, names: None, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, store = figure([ACROSS], ("cka", "loss_barrier"), seeds=3), Store(tmp_path)
    outcomes = stored(spec, store)

    def stop_at_the_fourth(text: str) -> None:
        if text.startswith("probe 4 of 6"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probe_pairs(spec, outcomes, store, on_progress=stop_at_the_fourth)
    assert len(list((tmp_path / "pairs").iterdir())) == 3
    computed: list[str] = []
    original = pairs._computed
    monkeypatch.setattr(pairs, "_computed", lambda asked, *rest: computed.append(asked.probe) or original(asked, *rest))
    records = probe_pairs(spec, outcomes, store)
    assert computed == ["loss_barrier", "cka", "loss_barrier"]
    assert probe_pairs(spec, outcomes, store, compute=False) == records
    assert len(computed) == 3
    assert probe_pairs(spec, outcomes, Store(tmp_path / "other"))[0]["value"] is None


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b"[]", b'{"probe": "cka"}', None])
def test_a_damaged_record_is_made_again(tmp_path: Path, names: None, damage: bytes | None) -> None:
    spec, store = figure([ACROSS], ("cka",)), Store(tmp_path)
    outcomes = stored(spec, store)
    records = probe_pairs(spec, outcomes, store)
    (path,) = (tmp_path / "pairs").iterdir()
    good = path.read_bytes()
    if damage is None:  # whole, but the answer to another question
        other = PairRecord.model_validate_json(good).model_copy(update={"first": "x", "value": 9.0})
        damage = other.model_dump_json().encode()
    path.write_bytes(damage)
    assert "not computed yet" in probe_pairs(spec, outcomes, store, compute=False)[0]["reason"]
    assert probe_pairs(spec, outcomes, store) == records
    assert path.read_bytes() == good
    assert list((tmp_path / "pairs").iterdir()) == [path]


def test_what_is_not_there_has_a_reason_that_is_not_kept(tmp_path: Path, names: None) -> None:
    spec, store = figure([ACROSS], ("cka",), seeds=4), Store(tmp_path)
    outcomes = [at for at in stored(spec, store) if at.row == "soft"]
    without = store.folder(outcomes[0].cell, outcomes[0].digest) / "weights.pt"
    without.unlink()
    outcomes[2] = replace(outcomes[2], status=FAILED, result=None, reason="RuntimeError: the oven is cold")
    outcomes[3] = replace(outcomes[3], status=MISSING, result=None)
    told: list[str] = []
    records = probe_pairs(spec, outcomes, store, on_failure=told.append)
    found = {(at["first_seed"], at["second_seed"]): at for at in records}
    # what is not done has been told by the run; a lost file has not
    assert len(told) == 1 and "column 'noisy', seeds 0 and 1: FileNotFoundError: no weights of small" in told[0]
    assert all(record["value"] is None for record in found.values())
    assert f"no weights of small on voted/noisy, seed 0 at {without}" in found[0, 1]["reason"]
    assert "remove that folder and run the cell again" in found[0, 1]["reason"]
    assert found[0, 2]["reason"] == "small on voted/noisy, seed 2 is failed: RuntimeError: the oven is cold"
    assert found[1, 3]["reason"] == "small on voted/noisy, seed 3 is missing"
    assert not (tmp_path / "pairs").exists()


def test_weights_that_cannot_be_read_and_data_that_changed_have_a_reason(tmp_path: Path, names: None) -> None:
    spec, store = figure([ACROSS], ("cka",)), Store(tmp_path)
    outcomes = [at for at in stored(spec, store) if at.row == "soft"]
    path = store.folder(outcomes[1].cell, outcomes[1].digest) / "weights.pt"
    for damage in (b"not weights", b""):
        path.write_bytes(damage)
        (record,) = probe_pairs(spec, outcomes, store)
        assert record["value"] is None and f"at {path} cannot be read" in record["reason"]
    moved = replace(outcomes[0], digest="0" * 24)
    store.folder(outcomes[0].cell, outcomes[0].digest).rename(store.folder(moved.cell, moved.digest))
    (record,) = probe_pairs(spec, [moved, outcomes[1]], store)
    assert "changed since it was run; run it again" in record["reason"]
    assert not (tmp_path / "pairs").exists()


def test_a_probe_or_figure_that_does_not_exist_is_named() -> None:
    with pytest.raises(SpecError, match="loss_barier.*loss_barrier"):
        probe_pairs(figure([ACROSS], ("loss_barier",)), [], Store(Path("nowhere")))
    plain = figure([ACROSS]).model_copy(update={"figure": None})
    with pytest.raises(SpecError, match="compares no pairs"):
        pairs_of(plain, [])


def test_each_model_of_a_pair_sees_the_items_through_the_encoder_it_learned_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # an encoder that learns is fitted in each seed anew: the second model once got the first one's tokens, of which
    # it can make nothing, and its attention on them was called the difference between two seeds
    monkeypatch.setenv("ANNOBENCH_CACHE", str(tmp_path / "cache"))
    document = figure([ACROSS], ("attention_difference", "cka")).model_dump()
    document["rows"] = [{"name": "soft", "label": "Soft", "method": "annotator_heads", "args": {"pooling": "flatten"}}]
    document["columns"] = [{"name": "noisy", "label": "noisy", "regime": "full"}]
    encoder = {"name": "patches", "form": "tokens", "grid": 3, "features": 6, "patches": 200}
    document["profiles"]["demo"].update(dataset="street_sim", encoder=encoder)
    spec, store = TableSpec.model_validate(document), Store(tmp_path / "results")
    outcomes = stored(spec, store)
    (record, cka) = probe_pairs(spec, outcomes, store)
    (first, data), (second, others) = (load_trained(outcome, store) for outcome in outcomes)
    assert not torch.equal(data.as_loaded.x, others.as_loaded.x)
    arguments = resolve.resolve(outcomes[1].cell).encoder_args
    own = fitted_encoder("patches", arguments, others.as_loaded.x, "by hand").tokens(data.as_loaded.test_x)
    seen = attention_on(first, data.data.test_x.float()), attention_on(second, own)
    distance = (seen[0] - seen[1]).abs().sum(-1).mean() / 2
    # features are kept in half precision
    assert record["value"] == pytest.approx(float(distance), abs=2e-3)
    through_the_first = attention_on(second, data.data.test_x.float())
    assert abs(float((seen[0] - through_the_first).abs().sum(-1).mean() / 2) - float(distance)) > 0.01
    assert cka["value"] is None and "learned from other items" in cka["reason"]
