"""From runs to reports in each format, as a user makes them."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support import warm
from tests.support.packages import needs

import fedquilt as fq
from fedquilt_common.cli import run as fedquilt

needs("matplotlib", "matplotlib is not installed: use make test")
SMALL: dict[str, Any] = {
    "name": "tiny", "rounds": 2, "data": {"set": "digits", "clients": 2}, "model": {"name": "mlp"},
    "algorithm": {"name": "heterofl", "widths": {"half": 0.5}},
    "training": {"epochs": 1}, "fleet": [{"kind": "half", "agents": 1, "clients": 2}],
}  # fmt: skip


def test_boards_of_a_kind_without_a_width_are_pointed_out(tmp_path: Path) -> None:
    fleet = [{"kind": "hlaf", "agents": 1, "clients": 2}]
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({**SMALL, "rounds": 1, "fleet": fleet}))
    assert warm.fedquilt("simulate", "tiny.yaml", "--out", "run", where=tmp_path).returncode == 0
    warnings = fq.load_run(tmp_path / "run").result.warnings
    assert [warning for warning in warnings if "hlaf" in warning] == [
        "boards of the kind 'hlaf' train the smallest sub-model, because algorithm.widths does not list them; did you "
        "mean 'half'?"
    ]


def test_runs_of_two_seeds_become_a_report_in_each_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(SMALL))
    for seed in (1, 2):
        words = ("simulate", "tiny.yaml", "--out", f"seed-{seed}", "--set", f"seed={seed}")
        assert warm.fedquilt(*words, where=tmp_path).returncode == 0
    runs = [fq.load_run(tmp_path / f"seed-{seed}") for seed in (1, 2)]
    made = fq.report(runs, out=tmp_path / "report")
    group = made.contents.groups[0]
    final = [run.result.final["accuracy"] for run in runs]
    mean = group.last("accuracy")
    assert (group.seeds, mean and mean.n) == ([1, 2], 2)
    assert mean is not None
    assert mean.mean == pytest.approx(statistics.mean(map(float, final)))
    assert mean.deviation == pytest.approx(statistics.stdev(map(float, final)))
    assert [note for note in made.contents.notes if "energy is estimated" not in note] == []
    assert {"scores", "costs", "curves", "boards", "coverage", "runs"} <= set(made.contents.tables)
    boards = made.contents.tables["boards"].rows
    assert [(row[2], row[3]) for row in boards] == [("half-0", 4)]
    names = {file.name for file in made.files}
    assert {"report.html", "report-curve-seconds.png", "report-timeline-1.png", "report-coverage-1.png"} <= names
    for kind in ("md", "latex", "csv"):
        assert fq.report(tmp_path, out=tmp_path / kind, format=kind).files
    capsys.readouterr()
    assert fedquilt(["runs", str(tmp_path), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(row["status"], row["rounds"], row["final"]) for row in listed] == [("finished", 2, one) for one in final]
    assert all(row["started"] > 1e9 for row in listed)
    assert fedquilt(["compare", *(str(run.folder) for run in runs), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == {"seed": ["1", "2"]}
