"""The summary at the end of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedquilt_server.status.results import Result, RoundResult
from fedquilt_server.status.summary import print_summary

ZEROS = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}


def result(*rows: dict[str, Any], note: str = "") -> Result:
    rounds = [RoundResult.model_validate({**ZEROS, "round": n, **row}) for n, row in enumerate(rows, 1)]
    return Result(
        name="n", run="r", algorithm="fedavg", dataset="digits", seed=1, status="finished", rounds=rounds, note=note
    )


def printed(given: Result, capsys: pytest.CaptureFixture[str], **restarts: int) -> list[str]:
    print_summary(given, Path("runs/a-long-name"), restarts)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", ["20", "80"])
def test_it_is_short_and_a_narrow_terminal_loses_nothing(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    times = {"seconds": 2.0, "train_seconds": 1.0}
    first = {**times, "accuracy": 0.75, "loss": 0.5, "bytes_down": 1_500_000, "replies": 4}
    second = {**times, "accuracy": 0.5, "loss": 0.75, "replies": 3, "late": 1}
    assert printed(result(first, second), capsys, broker=0, pi=2) == [
        "n: fedavg on digits, seed 1: finished",
        "  accuracy    0.5000 (best 0.7500 in round 1)",
        "  loss        0.7500 (lowest 0.5000 in round 1)",
        "  rounds      2 in 4.00 s, 50 % of it training (median round 2.00 s)",
        "  traffic     1.5 MB down, 0 B up",
        "  replies     7 accepted, 1 late",
        "  restarts    pi 2",
        "  run folder  runs/a-long-name",
        "  more        fedquilt report runs/a-long-name",
    ]


def test_the_hint_works_where_no_folder_of_path_has_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", [".venv/bin/fedquilt", "demo"])
    assert printed(result({}), capsys)[-1] == "  more        .venv/bin/fedquilt report runs/a-long-name"


def test_both_accuracies_stand_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(result({"accuracy": 0.5, "global_accuracy": 0.5, "personal_accuracy": 0.75}), capsys)
    assert [line.split()[:2] for line in lines[1:3]] == [["global", "0.5000"], ["personal", "0.7500"]]


def test_what_must_be_known_of_the_data_stands_last(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(result({"r2": 0.25}, note="the test persons are not the official ones"), capsys)
    assert lines[1] == "  R2          0.2500 (best 0.2500 in round 1)"
    assert lines[-1] == "Note: the test persons are not the official ones"


def test_divergence_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    given = result({"accuracy": 0.1, "loss": 1.8e9}).model_copy(update={"warnings": ["the training has diverged"]})
    lines = printed(given, capsys)
    assert "  loss        1.800e+09 (lowest 1.800e+09 in round 1)" in lines
    assert lines[-1] == "Warning: the training has diverged"


def test_bytes_of_all_clients_labels_are_no_part_of_the_coordinators(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"bytes_down": 9000, "bytes_up": 1000, "label_bytes_down": 6480, "label_bytes_up": 648}
    lines = printed(result(row), capsys)
    assert "  traffic     9.0 kB down, 1.0 kB up" in lines
    assert "  soft labels 6.5 kB down, 648 B up, summed over the clients" in lines


def test_scores_of_fewer_clients_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"accuracy": 0.5, "scores": {"tested_samples": samples, "tested_clients": clients}}
        for samples, clients in ((90, 12), (60, 9), (90, 12), (70, 6))
    ]
    lines = printed(result(*rows), capsys)
    assert "  tested by   6 to 12 clients; the scores of rounds 2, 4 do not compare with those of all of them" in lines
    assert not any("tested by" in line for line in printed(result(rows[0], rows[2]), capsys))


def test_the_levels_of_sub_models_have_an_average(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(result({"accuracy": 0.5, "trained": {"0": "S1"}, "scores": {"average_accuracy": 0.7533}}), capsys)
    assert lines[2] == "  sub-models  0.7533 on average over the levels"


def test_the_time_without_the_coordinator_stands_beside_the_other_time(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(result({"seconds": 60.0, "away_seconds": 50.0, "train_seconds": 5.0}), capsys)
    times = "1 in 10.0 s, 50 % of it training (median round 10.0 s), and 50.0 s without the coordinator"
    assert f"  rounds      {times}" in lines


def test_a_run_without_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(result(), capsys) == ["n: fedavg on digits, seed 1: finished", "  run folder  runs/a-long-name"]
