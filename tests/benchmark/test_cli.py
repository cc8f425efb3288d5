"""The command line as a user types it: what it prints, what it returns, and what it says when it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from benchmark import audits, cli, registry
from benchmark.spec import canonical_json
from tests.benchmark.conftest import tiny_spec

HERE = str(Path(__file__).parents[2])


@pytest.fixture
def tiny_table(plugin: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The name of a table with a row that works and a row that fails, found as a plugin's."""
    package = plugin / "bench_tables" / "tiny"
    package.mkdir(parents=True)
    (plugin / "bench_tables" / "__init__.py").write_text("")
    for name, methods in (("table1", ("linear",)), ("broken", ("linear", "broken"))):
        document = {**tiny_spec(*methods).model_dump(mode="json", exclude_none=True), "table": f"tiny/{name}"}
        (package / f"{name}.yaml").write_text(canonical_json(document))
    with (plugin / "bench_plugin-1.0.dist-info" / "entry_points.txt").open("a") as handle:
        handle.write("\n[annobench.tables]\ntiny = bench_tables\n")
    registry.tables.cache_clear()
    monkeypatch.chdir(tmp_path)
    yield "tiny/table1"
    sys.modules.pop("bench_tables", None)


def annobench(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmark", *words],
        capture_output=True,
        text=True,
        cwd=HERE,
        env={**os.environ, **environment},
        timeout=120,
    )


def test_run_prints_the_table_and_a_second_run_executes_nothing(
    tiny_table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", tiny_table, "--profile", "demo", "--jobs", "2"]) == 0
    first = capsys.readouterr()
    assert "A tiny table" in first.out and "2 cell(s) to run" in first.err
    assert cli.main(["run", tiny_table, "--profile", "demo"]) == 0
    second = capsys.readouterr()
    assert second.out == first.out and "to run" not in second.err
    assert Path("results/tables/demo/tiny/table1.md").read_text() in first.out


def test_data_that_one_table_lacks_does_not_keep_the_others_from_being_made(
    tiny_table: str, plugin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = {**tiny_spec("linear").model_dump(mode="json", exclude_none=True), "table": "tiny/absent"}
    document["profiles"]["demo"]["dataset"] = "absent"
    (plugin / "bench_tables" / "tiny" / "absent.yaml").write_text(canonical_json(document))
    registry.tables.cache_clear()
    words = ["run", "tiny/absent", tiny_table, "--profile", "demo", "--executor", "inline"]
    assert cli.main(words) == 1, "a table that was not made is no success"
    said = capsys.readouterr()
    assert "tiny/absent: left out; absent: no images found" in said.err
    assert "A tiny table" in said.out
    assert cli.main([*words, "--fail-fast"]) == 2
    assert "A tiny table" not in capsys.readouterr().out


def test_a_failing_cell_makes_the_status_1_and_the_last_line_tries_it_again(
    tiny_table: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # benchopt#875: the exit code was wrong; here the other row is finished all the same
    words = ["run", "tiny/broken", "--profile", "demo", "--jobs", "1"]
    monkeypatch.setattr(sys, "argv", ["annobench", *words])
    assert cli.main(words) == 1
    said = capsys.readouterr()
    assert "the oven is cold" in said.err
    assert said.err.splitlines()[-1] == "to try these 2 cell(s) again: annobench " + " ".join(words)
    assert cli.main(["status", "tiny/broken", "--profile", "demo", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["done"], status["failed"], status["missing"]) == (2, 2, 0)
    assert {cell["reason"] for cell in status["cells"]} == {"", "RuntimeError: the oven is cold"}


def test_a_plugins_method_becomes_a_row_of_any_table(tiny_table: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [tiny_table, "--profile", "demo", "--methods", "linear,linear_next"]
    assert cli.main(["run", *words, "--jobs", "2"]) == 0
    assert "added by --methods, from bench-plugin" in capsys.readouterr().out
    assert cli.main(["table", *words, "--format", "json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert {(cell["row"], cell["status"], cell["n"]) for cell in cells} == {
        ("linear", "done", 2), ("linear_next", "done", 2),
    }  # fmt: skip
    assert cli.main(["run", "lmnl/table2", "--profile", "demo", "--methods", "liner"]) == 2
    assert "unknown method" in capsys.readouterr().err


def test_table_prints_from_the_store_and_runs_nothing(tiny_table: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["table", tiny_table, "--profile", "demo", "--format", "json"]) == 0
    empty = json.loads(capsys.readouterr().out)
    assert [cell["status"] for cell in empty["cells"]] == ["missing"]
    assert not Path("results").exists(), "asking writes nothing"
    for style in ("md", "csv", "tex", "html"):
        assert cli.main(["table", tiny_table, "--profile", "demo", "--format", style]) == 0
        assert "linear" in capsys.readouterr().out


def test_the_gate_holds_says_what_moved_and_fails(
    tiny_table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["check", tiny_table, "--leaderboards", str(tmp_path / "boards"), "--jobs", "2"]
    assert cli.main([*words, "--update"]) == 0
    assert cli.main(words) == 0
    assert "every committed number holds" in capsys.readouterr().out
    committed = next((tmp_path / "boards").rglob("table1.json"))
    text = committed.read_text()
    was = json.loads(text)["numbers"][0]["mean"]
    committed.write_text(text.replace(repr(was), repr(was - 0.5)))
    assert cli.main(words) == 1
    moved = capsys.readouterr().out
    assert "tiny/table1" in moved and "was" in moved and "allowed" in moved


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "lmnl/tabel2"], "unknown table: 'lmnl/tabel2'; did you mean lmnl/table2"),
        (["run", "lmnl/table2", "--profile", "demo", "--methods", "cross_entrpy"], "did you mean cross_entropy"),
        (["run", "lmnl/table2", "--profile", "demo", "--columns", "agre"], "did you mean aggre"),
        (["run", "lmnl/table2", "--executor", "lokal"], "unknown executor: 'lokal'; did you mean local"),
        (["table", "lmnl/table9"], "did you mean"),
        (["run", "lmnl"], "unknown table: 'lmnl'; did you mean lmnl/fig1, lmnl/fig2, lmnl/table1, lmnl/table2?"),
        (["data", "audit", "digit"], "unknown data set: 'digit'; did you mean digits"),
        (["data", "prepare", "cifar10m"], "did you mean cifar10n"),
        (["data", "audit", "digits", "--regime", "agre"], "did you mean aggre"),
        (["claims", "lmln"], "unknown paper: 'lmln'; did you mean lmnl"),
        (["check", "lmnl/table2", "--leaderboards", "/nowhere"], "/nowhere"),
    ],
)
def test_a_wrong_name_is_one_sentence_with_near_names_and_status_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert message in said and "Traceback" not in said
    assert not list(tmp_path.iterdir()), "nothing half written"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "COMMAND"),
        (["run"], "TABLE"),
        (["run", "lmnl/table2", "--seeds", "0"], "--seeds: it must be at least 1"),
        (["run", "lmnl/table2", "--jobs", "many"], "--jobs: 'many' is not a whole number"),
        (["run", "lmnl/table2", "--profile", "gpu"], "--profile: invalid choice: 'gpu'"),
        (["run", "lmnl/table2", "--sed", "1"], "--sed"),
        (["list", "method"], "invalid choice: 'method'"),
        (["data"], "{list,prepare,verify,audit}"),
    ],
)
def test_wrong_usage_names_the_argument(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_absent_data_is_one_sentence_that_names_files_folder_and_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # dragen1860/MAML-Pytorch#58: a dead link and no word on which file to put where
    monkeypatch.setenv("ANNOBENCH_DATA", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", "lmnl/table2", "--profile", "cpu"]) == 2
    said = capsys.readouterr().err
    assert "cifar10/train.parquet" in said or "CIFAR-10_human.pt" in said
    assert str(tmp_path / "none") in said and "Traceback" not in said


def test_a_fault_of_ours_is_told_from_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fault(options: object) -> int:
        return {}["nothing"]  # type: ignore[no-any-return]

    monkeypatch.setattr(cli, "_dispatch", fault)
    assert cli.main(["list", "methods"]) == 1
    said = capsys.readouterr().err
    assert "Traceback" in said and "please report the text above" in said


@pytest.mark.parametrize("kind", ["methods", "datasets", "regimes", "tables"])
def test_list_json_is_one_document_with_name_and_source(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", kind, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert entries and all(entry["name"] and entry["source"] for entry in entries)


def test_audit_json_has_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "audit", "digits", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) >= {
        "n_items", "n_annotators", "n_annotations", "raw_agreement", "krippendorff_alpha",
        "annotator_variance_ratio", "annotator_variance_p",
    }  # fmt: skip
    assert found["annotator_variance_ratio"] > 3, "the simulated annotators of digits differ"


def test_audit_of_real_data_finds_what_the_facts_say(
    real_data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANNOBENCH_DATA", str(real_data))
    ratios, p_values = {}, {}
    for name in ("cifar10n", "cifar100n", "labelme"):
        assert cli.main(["data", "audit", name, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        ratios[name], p_values[name] = found["annotator_variance_ratio"], found["annotator_variance_p"]
    assert ratios["cifar10n"] == pytest.approx(1, abs=0.15) and p_values["cifar10n"] > 0.05
    assert ratios["cifar100n"] > 10 and p_values["cifar100n"] < 0.01
    assert ratios["labelme"] > 1.5 and p_values["labelme"] < 0.01


def test_help_and_list_import_nothing_heavy() -> None:
    for words in (["--help"], ["list", "methods"], ["list", "regimes"], ["list", "tables"]):
        code = (
            f"import sys; sys.argv[1:] = {words!r}\nfrom benchmark.cli import main\n"
            "try: main()\nexcept SystemExit: pass\n"
            "heavy = {'torch', 'lightning', 'sklearn', 'pandas', 'timm', 'scipy'} & set(sys.modules)\n"
            "assert not heavy, heavy"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=HERE, timeout=60)
        assert done.returncode == 0, done.stderr


def test_it_works_from_a_folder_with_packages_of_the_same_names(tmp_path: Path) -> None:
    for name in ("models", "datamodules"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('not yours')")
    done = subprocess.run(
        [sys.executable, "-m", "benchmark", "data", "audit", "digits", "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": HERE},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["n_annotators"] == 60


def test_a_reader_that_leaves_early_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m benchmark list regimes | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        cwd=HERE,
        timeout=60,
    )
    assert done.stderr == "" and done.stdout.startswith("digits/")


def test_a_part_of_a_table_is_run_and_the_rest_is_shown_as_the_store_has_it(
    tiny_table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # running one row again wrote the other rows' numbers out of the table, published ones included
    words = ["run", "tiny/broken", "--profile", "demo", "--seeds", "1", "--executor", "inline"]
    assert cli.main([*words, "--methods", "linear"]) == 0, "only what was asked for counts"
    capsys.readouterr()
    assert cli.main([*words, "--methods", "broken"]) == 1
    page = capsys.readouterr().out
    assert "| linear | 0." in page
    assert cli.main(["table", "tiny/broken", "--profile", "demo", "--seeds", "1"]) == 0
    assert capsys.readouterr().out.strip() == page.strip()


def test_a_failed_row_without_committed_numbers_fails_the_gate(
    tiny_table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # a row added after the numbers were committed could fail, and "every committed number holds" with status 0
    boards = tmp_path / "boards"
    words = ["check", "--leaderboards", str(boards), "--executor", "inline"]
    assert cli.main([*words, tiny_table, "--update"]) == 0
    committed = boards / "gate" / "demo" / "tiny"
    text = (committed / "table1.json").read_text()
    (committed / "broken.json").write_text(text.replace("tiny/table1", "tiny/broken"))
    capsys.readouterr()
    assert cli.main([*words, "tiny/broken"]) == 1
    assert "tiny/broken: broken / noisy: broken on blobs/noisy, seed 0 failed: RuntimeError" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["no_class", "wrong_class"])
def test_an_entry_point_that_names_no_method_says_so(plugin: Path, name: str) -> None:
    # it came as a traceback out of jsonargparse
    with pytest.raises(registry.RegistryError, match=f"{name}' from bench-plugin: .* is not a subclass of models.base"):
        registry.method_class(name)


def test_tables_of_something_else_than_a_package_are_named(plugin: Path) -> None:
    with (plugin / "bench_plugin-1.0.dist-info" / "entry_points.txt").open("a") as handle:
        handle.write("\n[annobench.tables]\ntiny = bench_plugin\n")
    registry.tables.cache_clear()
    with pytest.raises(registry.RegistryError, match="bench_plugin is not a package"):
        registry.tables()


def test_a_reader_that_leaves_early_does_not_make_a_failed_run_a_success(tiny_table: str, plugin: Path) -> None:
    # `annobench run ... | head` under pipefail: the broken pipe gave status 0 and hid what had failed
    line = (
        f"set -o pipefail; {sys.executable} -m benchmark run tiny/broken --profile demo --seeds 1 --executor inline "
        f"--results {plugin}/results | true"
    )
    environment = {**os.environ, "PYTHONPATH": str(plugin)}
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=HERE, env=environment, timeout=120)
    assert done.returncode == 1 and "to try these 1 cell(s) again" in done.stderr, done.stderr


def test_a_terminal_that_knows_no_plus_minus_is_no_fault() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmark", "data", "audit", "digits"],
        capture_output=True,
        text=True,
        cwd=HERE,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        timeout=120,
    )
    assert done.returncode == 0 and "Annotators differ" in done.stdout, done.stderr


def test_an_empty_variable_means_the_default_results_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cli.RESULTS_VARIABLE, "")
    assert cli.build_parser().parse_args(["status", "a/b"]).results == Path("results")


def test_claims_of_a_profile_that_a_table_lacks_leave_that_table_out(
    tiny_table: str, capsys: pytest.CaptureFixture[str], plugin: Path
) -> None:
    # one plugin's table with a demo profile alone broke `annobench claims --profile cpu` for all papers
    path = plugin / "bench_tables" / "tiny" / "table1.yaml"
    path.write_text(json.dumps(_tiny_claim(json.loads(path.read_text()))))
    assert cli.main(["claims", "tiny", "--profile", "cpu"]) == 0
    assert "No table here lists a claim" in capsys.readouterr().out


def _tiny_claim(document: dict[str, Any]) -> dict[str, Any]:
    test = {"kind": "value", "metric": "test_accuracy", "row": "linear", "columns": ["noisy"], "above": 0.1}
    return {**document, "claims": [{"id": "it", "says": "it", "source": "x", "test": test}]}


def test_a_cell_that_two_profiles_share_makes_no_verdict_of_the_other(
    tiny_table: str, capsys: pytest.CaptureFixture[str], plugin: Path
) -> None:
    # cells of the cpu profile whose settings are the paper's were published as verdicts of the published protocol
    path = plugin / "bench_tables" / "tiny" / "table1.yaml"
    document = _tiny_claim(json.loads(path.read_text()))
    document["profiles"]["cpu"] = {**document["profiles"]["demo"], "takes": "not measured yet"}
    path.write_text(json.dumps(document))
    assert cli.main(["run", tiny_table, "--profile", "demo", "--executor", "inline"]) == 0
    capsys.readouterr()
    assert cli.main(["claims", "tiny", "--json", "--publish", "published"]) == 0
    for text in (capsys.readouterr().out, Path("published/claims.json").read_text()):
        assert [verdict["profile"] for verdict in json.loads(text)] == ["demo"]


def test_claims_leave_out_a_table_whose_data_is_absent(
    tiny_table: str, capsys: pytest.CaptureFixture[str], plugin: Path
) -> None:
    # `annobench claims --profile paper` always ended at STREET, and no other paper's verdict was printed
    tables = plugin / "bench_tables" / "tiny"
    document = _tiny_claim(json.loads((tables / "table1.yaml").read_text()))
    (tables / "table1.yaml").write_text(json.dumps(document))
    absent = {**document, "table": "tiny/absent"}
    absent["profiles"] = {"demo": {**document["profiles"]["demo"], "dataset": "absent"}}
    (tables / "absent.yaml").write_text(json.dumps(absent))
    registry.tables.cache_clear()
    assert cli.main(["claims", "tiny", "--profile", "demo", "--json"]) == 0
    said = capsys.readouterr()
    assert [verdict["table"] for verdict in json.loads(said.out)] == ["tiny/table1"]
    assert "tiny/absent, profile demo: left out; absent: no images found" in said.err


def test_the_gate_finds_the_committed_numbers_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["check", "--profile", "paper"]) == 2
    assert f"{HERE}/leaderboards holds no numbers for profile 'paper'" in capsys.readouterr().err


def test_a_gate_that_does_not_hold_keeps_what_it_measured(
    plugin: Path, tiny_table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # the folder with the tracebacks had gone by the time that the failure was printed
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    boards = str(tmp_path / "boards")
    words = ["check", tiny_table, "--leaderboards", boards, "--executor", "inline", "--update"]
    assert cli.main(words) == 0 and list(tmp_path.glob("annobench-check-*")) == []
    broken = ["check", "tiny/broken", "--leaderboards", boards, "--executor", "inline", "--update"]
    assert cli.main(broken) == 1
    (kept,) = tmp_path.glob("annobench-check-*")
    assert f"tracebacks are kept in {kept}" in capsys.readouterr().err
    assert list((kept / "failures").iterdir()) != []
    assert cli.main(["check", "lmnl/table2", "--leaderboards", "/nowhere"]) == 2
    assert list(tmp_path.glob("annobench-check-*")) == [kept], "nothing was measured, so nothing is kept"


def test_absent_weights_of_an_encoder_are_no_fault_in_annobench(
    tiny_table: str, plugin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = plugin / "bench_tables" / "tiny" / "table1.yaml"
    document = json.loads(path.read_text())
    document["profiles"]["demo"]["encoder"] = {"name": "resnet18", "pretrained": "/nowhere/weights.pt"}
    path.write_text(json.dumps(document))
    assert cli.main(["run", tiny_table, "--profile", "demo"]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("annobench: error: ") and "/nowhere/weights.pt" in said


def test_a_data_set_that_cannot_be_audited_costs_a_note_and_not_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise TypeError("missing argument 'folder'")

    monkeypatch.setattr(audits, "audit_dataset", broken)
    assert audits.audit_notes(["mine"]) == ["Audit of mine: could not be made (TypeError: missing argument 'folder')"]
