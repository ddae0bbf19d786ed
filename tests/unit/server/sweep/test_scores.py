"""The table of a sweep: mean and deviation over the seeds of each case."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from fedquilt_server.status.results import Result
from fedquilt_server.sweep.manifest import SweepManifest, SweptRun
from fedquilt_server.sweep.scores import describe_values, group_cases, main_scores, make_table, manifest_with_scores


def sweep(folder: Path) -> SweepManifest:
    """Two methods with two seeds; one run failed, and one has lost its result."""
    runs = []
    for method, seed, accuracy in (("a", 1, 0.5), ("b", 1, 0.75), ("a", 2, 0.7), ("b", 2, None)):
        run = SweptRun(
            folder=f"{method}{seed}", settings={"seed": seed, "method": method}, label=f"{method}{seed}",
            status="finished" if accuracy else "failed",
        )  # fmt: skip
        if accuracy:
            final: dict[str, float | int | str] = {"accuracy": accuracy, "rounds": 3, "global_sha256": "ab"}
            result = Result(name="x", run="x", algorithm="x", dataset="x", seed=1, rounds=[], final=final)
            (folder / run.folder).mkdir()
            (folder / run.folder / "result.json").write_text(result.model_dump_json())
        runs.append(run)
    return SweepManifest(name="two", vary={"seed": [1, 2], "method": ["a", "b"]}, runs=runs)


def test_runs_that_differ_in_their_seed_are_one_case(tmp_path: Path) -> None:
    text = io.StringIO()
    made = sweep(tmp_path)
    Console(file=text, width=80).print(make_table(made, group_cases(tmp_path, made)))
    lines = [line.split() for line in text.getvalue().splitlines()]
    assert lines[1] == ["method", "runs", "accuracy"]
    assert lines[3:5] == [["a", "2", "0.6000", "±", "0.1414"], ["b", "1", "of", "2", "0.7500"]]
    assert "± sample standard deviation" in " ".join(word for line in lines[5:] for word in line)


def test_the_name_above_a_narrow_table_is_one_line(tmp_path: Path) -> None:
    text = io.StringIO()
    made = sweep(tmp_path).model_copy(update={"name": "a-sweep-whose-name-is-longer-than-its-table"})
    Console(file=text, width=80).print(make_table(made, []))
    assert text.getvalue().splitlines()[0].strip() == made.name


def test_a_run_without_its_result_has_no_scores(tmp_path: Path) -> None:
    made = sweep(tmp_path)
    (tmp_path / "b1" / "result.json").write_text("{")
    cases = group_cases(tmp_path, made)
    assert [case.values("accuracy") for case in cases] == [[0.5, 0.7], []]
    assert describe_values([]) == "\N{EN DASH}"


def test_json_has_the_final_scores_of_finished_runs(tmp_path: Path) -> None:
    shown = manifest_with_scores(tmp_path, sweep(tmp_path))
    assert shown["schema"] == 1
    assert [run["final"].get("accuracy") for run in shown["runs"]] == [0.5, 0.75, 0.7, None]


def test_the_terminal_shows_scores_only() -> None:
    assert main_scores({"rounds": 3, "global_accuracy": 0.5, "personal_accuracy": 1, "loss": 0.1}) == {
        "global_accuracy": 0.5,
        "personal_accuracy": 1.0,
    }
