"""``fedquilt runs``, ``compare`` and ``report`` as people start them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.recorded_runs import make_rounds, write_run

from fedquilt_common.cli import run
from fedquilt_common.errors import ExperimentError, RunFolderError


def result_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert run([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four runs: finished, failed, damaged, and one of a long name; the working folder is theirs."""
    write_run(tmp_path / "runs" / "good")
    write_run(tmp_path / "runs" / "failed", [0.1], status="failed", reason="[red]the loss exploded", exit_code=7)
    (write_run(tmp_path / "runs" / "torn") / "result.json").write_text("{")
    write_run(tmp_path / "runs" / f"long-{'name-' * 20}", algorithm="fedprox")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "runs"


def test_runs_lists_every_run_within_80_columns(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = lines[: next(number for number, line in enumerate(lines) if line.startswith("failed: "))]
    assert max(map(len, table)) <= 80
    text = "\n".join(lines)
    assert all(word in text for word in ("good", "90.00 %", "finished", "damaged", "3/3", "9.0 kB"))
    assert "failed: [red]the loss exploded (exit code 7)" in text
    assert str(folder.relative_to(folder.parent) / "torn" / "result.json") in text


def test_streams_and_reports_replace_what_they_cannot_show(folder: Path) -> None:
    """A pipe in ASCII, and a folder whose name has a byte that is not UTF-8."""
    odd = write_run(folder / os.fsdecode(b"odd-\xff"), [None])
    for words in (["runs", "."], ["report", odd, "--out", folder.parent / "out", "--format", "md"]):
        command = [sys.executable, "-c", "from fedquilt_common.cli import main; main()", *words]
        done = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "ascii:strict"}, capture_output=True)
        assert done.returncode == 0, done.stderr
    assert b"odd-?" in (folder.parent / "out" / "report.md").read_bytes()


def test_runs_prints_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {Path(row["folder"]).name[:4]: row for row in result_of(["runs", str(folder)], capsys)}
    good, torn = found["good"], found["torn"]
    assert (good["status"], good["rounds"], good["score"], good["final"]) == ("finished", 3, "accuracy", 0.9)
    assert (good["seconds"], good["bytes"], good["joules"]) == (6.0, 9000.0, None)
    assert (torn["status"], torn["final"], torn["rounds"], torn["name"]) == ("damaged", None, 0, None)
    assert found["fail"]["reason"] == "[red]the loss exploded (exit code 7)"


def test_a_folder_without_runs_has_an_empty_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert result_of(["runs", str(tmp_path)], capsys) == []
    assert run(["runs", str(tmp_path)]) == 0
    assert "holds no run" in capsys.readouterr().out
    assert run(["runs", str(tmp_path / "nowhere")]) == RunFolderError.exit_code


def test_compare_puts_results_and_settings_side_by_side(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = next(folder.glob("long*"))
    found = result_of(["compare", str(folder / "good"), str(long), "--target", "0.75"], capsys)
    assert found["results"]["final_accuracy"] == [0.9, 0.9]
    assert (found["results"]["target_rounds"], found["results"]["target_seconds"]) == ([2, 2], [4.0, 4.0])
    assert found["results"]["target_joules"] == [None, None]
    assert found["differences"] == {"algorithm.name": ["fedavg", "fedprox"]}
    assert run(["compare", str(folder / "good"), str(long)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.split() == ["algorithm.name", "fedavg", "fedprox"] for line in lines)


def test_a_setting_that_is_null_is_one_that_another_run_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, line in (("new", "holdout: null\n"), ("old", "")):
        file = write_run(tmp_path / name) / "experiment.yaml"
        file.write_text(file.read_text() + line)
    assert result_of(["compare", str(tmp_path / "new"), str(tmp_path / "old")], capsys)["differences"] == {}


def test_compare_shows_also_what_is_not_finished(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = result_of(["compare", str(folder / "good"), str(folder / "failed")], capsys)
    assert found["results"]["status"] == ["finished", "failed"]
    assert found["results"]["final_accuracy"] == [0.9, 0.1]
    assert found["differences"] == {"rounds": ["3", "1"]}
    assert len(found["notes"]) == 1


def test_compare_of_a_damaged_run_names_file_and_line_and_exits_with_6(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "good" / "experiment.yaml").write_text("name: a\nseed: [")
    assert run(["compare", str(folder / "good"), str(folder / "failed"), str(folder / "torn"), "--json"]) == 6
    shown = capsys.readouterr()
    assert json.loads(shown.out)["results"]["final_accuracy"] == [0.9, 0.1, None]
    assert f"fedquilt: {folder / 'good' / 'experiment.yaml'}:2:" in shown.err
    assert f"{folder / 'torn' / 'result.json'}: is damaged (file: is not JSON: " in shown.err
    assert " at line 1 " in shown.err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["compare", "runs/good"], ExperimentError.exit_code),
        (["compare", "runs/good", "nowhere"], RunFolderError.exit_code),
        (["compare", "runs/good", "runs/good", "--target", "nan"], ExperimentError.exit_code),
        (["compare", "runs/good", "runs/good", "--target", "high"], 2),
        (["report", "nowhere"], RunFolderError.exit_code),
        (["report", "runs", "--format", "pdf"], ExperimentError.exit_code),
        (["report", "runs", "--published", "nowhere.yaml", "--format", "csv"], ExperimentError.exit_code),
        (["report"], 2),
    ],
)
@pytest.mark.usefixtures("folder")
def test_wrong_words_are_refused_with_a_message(
    words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == code
    assert "Traceback" not in capsys.readouterr().err


def test_compare_names_a_folder_that_is_missing_or_holds_no_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "empty").mkdir()
    for name, why in (("nowhere", "there is no such folder"), ("empty", "holds no run")):
        assert run(["compare", str(folder / "good"), str(folder / name)]) == RunFolderError.exit_code
        assert f"{folder / name}: {why}; name a run folder" in capsys.readouterr().err


def test_report_prints_where_it_is_and_what_is_not_averaged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(folder), "--format", "md"]) == 0
    out = capsys.readouterr().out
    assert "2 of 4 runs are averaged, in 2 groups." in out
    assert "failed (failed), torn (damaged)" in out
    assert "Wrote report/report.md" in out
    assert Path("report/report.md").is_file()


def test_report_prints_the_local_accuracy_of_runs_that_have_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(folder / "rolex", rounds=make_rounds([0.5, 0.9], scores={"local_accuracy": 0.715}), algorithm="fedrolex")
    assert run(["report", str(folder / "rolex"), "--format", "md"]) == 0
    out = capsys.readouterr().out
    assert "final local accuracy" in out
    assert "71.50" in out
    assert run(["report", str(folder / "good"), "--format", "md"]) == 0
    assert "local" not in capsys.readouterr().out


def test_report_prints_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = result_of(["report", str(folder), "--format", "csv", "--target", "0.8", "--out", "x"], capsys)
    assert [group["name"] for group in found["groups"]] == ["fedavg", "fedprox"]
    row = found["tables"]["target"][0]
    assert (row["reached"], row["time" if "time" in row else "seconds"]) == (
        1,
        {"mean": 4.0, "deviation": None, "n": 1},
    )
    assert all(Path(file).is_file() for file in found["files"])
