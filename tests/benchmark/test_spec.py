"""A cell's address depends on what can change its number, and on nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.spec import SpecError, TableSpec, canonical_json, digest_of, load_table
from tests.benchmark.conftest import tiny_spec

NAMES = st.dictionaries(st.text(min_size=1, max_size=5), st.integers() | st.text() | st.booleans(), max_size=5)


@given(NAMES)
def test_order_of_keys_never_changes_a_digest(values: dict[str, object]) -> None:
    assert digest_of(values) == digest_of(dict(reversed(list(values.items()))))


def test_canonical_json_refuses_nan() -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"lr": float("nan")})


def test_a_profile_overrides_a_row_and_its_own_row_override_comes_last() -> None:
    spec = tiny_spec("linear")
    document = spec.model_dump()
    document["rows"][0]["args"] = {"learning_rate": 1.0, "a": 1}
    document["profiles"]["demo"]["args"] = {"linear": {"learning_rate": 2.0, "b": 2}}
    document["profiles"]["demo"]["rows"] = {"linear": {"args": {"b": 3}, "train": {"max_epochs": 7}}}
    cell = TableSpec.model_validate(document).plan("demo")[0].cell
    assert cell.method_args == {"learning_rate": 2.0, "a": 1, "b": 3}
    assert cell.train.max_epochs == 7


def test_a_columns_own_arguments_training_and_encoder() -> None:
    document = tiny_spec("linear", columns=("noisy", "other")).model_dump()
    document["columns"][1]["args"] = {"learning_rate": 4.0, "a": 4}
    profile = document["profiles"]["demo"]
    profile["encoder"] = {"name": "patches"}
    profile["columns"] = {"noisy": {"encoder": {}, "train": {"max_epochs": 5}, "args": {"b": 5}}}
    noisy, other = (at.cell for at in TableSpec.model_validate(document).plan("demo", seeds=1))
    assert (noisy.method_args, noisy.train.max_epochs, noisy.encoder) == ({"b": 5}, 5, {})
    assert (other.method_args, other.train.max_epochs) == ({"learning_rate": 4.0, "a": 4}, 2)
    assert other.encoder == {"name": "patches"}


def test_a_profile_omits_columns_that_its_data_cannot_have() -> None:
    document = tiny_spec("linear", columns=("noisy", "other")).model_dump()
    document["profiles"]["demo"]["omit_columns"] = ["other"]
    spec = TableSpec.model_validate(document)
    assert {at.column for at in spec.plan("demo")} == {"noisy"} == {at.name for at in spec.under("demo").columns}
    with pytest.raises(SpecError, match="runs nothing in other under profile 'demo'"):
        # it ran nothing, wrote an empty table and said that all was done
        spec.plan("demo", columns=["other"])
    document["profiles"]["demo"]["omit_columns"] = ["othr"]
    with pytest.raises(ValueError, match="did you mean other"):
        TableSpec.model_validate(document)


def test_a_plan_goes_seed_by_seed_so_that_an_early_stop_leaves_whole_seeds() -> None:
    plan = tiny_spec("linear", "slow", columns=("noisy", "other")).plan("demo", seeds=3)
    assert [at.cell.seed for at in plan] == [0] * 4 + [1] * 4 + [2] * 4


def test_narrowing_a_plan_takes_rows_by_name_or_method() -> None:
    spec = tiny_spec("linear", "slow", columns=("noisy", "other"))
    assert {(at.row, at.column) for at in spec.plan("demo", methods=["slow"], columns=["other"])} == {("slow", "other")}


@pytest.mark.parametrize(
    ("narrowed", "message"),
    [
        ({"methods": ["liner"]}, "unknown method of table 'tiny/table1': 'liner'; did you mean linear"),
        ({"columns": ["noise"]}, "unknown column of table 'tiny/table1': 'noise'; did you mean noisy"),
        ({"seeds": 0}, "seeds is 0; at least 1"),
    ],
)
def test_wrong_names_in_a_plan_list_near_ones(narrowed: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        tiny_spec("linear").plan("demo", **narrowed)  # type: ignore[arg-type]


def test_an_unknown_profile_lists_those_there_are() -> None:
    with pytest.raises(SpecError, match=r"unknown profile .* 'cpu'; there are: demo"):
        tiny_spec("linear").plan("cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": []}, "rows"),
        ({"tabel": 1}, "tabel"),
        ({"profiles": {"demo": {"dataset": "blobs", "seeds": 0, "train": {"max_epochs": 1}}}}, "profiles.demo.seeds"),
    ],
)
def test_a_wrong_yaml_is_refused_with_file_and_field(tmp_path: Path, change: dict[str, object], message: str) -> None:
    document = {**tiny_spec("linear").model_dump(mode="json"), **change}
    path = tmp_path / "table1.yaml"
    path.write_text(canonical_json(document))  # JSON is YAML
    with pytest.raises(SpecError, match=message) as caught:
        load_table(path)
    assert str(path) in str(caught.value)


def test_values_for_a_column_that_does_not_exist_are_refused() -> None:
    document = tiny_spec("linear").model_dump()
    document["rows"][0]["values"] = {"nosy": {"test_accuracy": 0.5}}
    with pytest.raises(ValueError, match="unknown column .*'nosy'; did you mean noisy"):
        TableSpec.model_validate(document)


def test_wrong_training_arguments_name_table_profile_row_and_field() -> None:
    # it was a traceback out of pydantic, "a fault in annobench"
    profiles = {"demo": {"dataset": "blobs", "seeds": 1, "train": {"max_epoch": 3}}}
    with pytest.raises(SpecError, match="tiny/table1, profile 'demo', 'train' of row 'linear': max_epoch: Extra"):
        tiny_spec("linear", profiles=profiles).plan("demo")


def test_a_papers_value_is_a_number() -> None:
    # a YAML .nan came as far as the JSON of the table, where strict JSON has no word for it
    rows = [{"name": "a", "label": "A", "method": "m", "values": {"noisy": {"test_accuracy": float("nan")}}}]
    with pytest.raises(ValueError, match="finite"):
        tiny_spec("a", rows=rows)


def test_a_table_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "table.yaml"
    path.write_bytes(b"title: \xff")
    with pytest.raises(SpecError, match="table.yaml: not valid YAML in UTF-8"):
        load_table(path)


def test_a_cheap_column_may_have_more_seeds() -> None:
    document = tiny_spec("linear", columns=("noisy", "other")).model_dump()
    document["profiles"]["demo"]["columns"] = {"other": {"seeds": 4}}
    spec = TableSpec.model_validate(document)
    assert [at.column for at in spec.plan("demo")].count("other") == 4
    assert [at.column for at in spec.plan("demo")].count("noisy") == 2
    assert len(spec.plan("demo", seeds=1)) == 2, "a number that was asked for holds for all"
