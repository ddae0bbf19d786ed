"""The tools of benchmarks/: what they sample, keep and print; README's numbers are those of the results."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedquilt_common.errors import FolderInUseError
from fedquilt_common.experiment_file import load_experiment
from fedquilt_common.learning_tasks import Classification
from fedquilt_common.models import build_model
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.types import Examples

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from peer import comparison, figures
from peer.fedquilt_side import EXPERIMENT
from peer.flower import round_times
from process_watch import ProcessWatch, role_of
from provenance import commit
from resume import Progress, read_lines

ROOT = Path(__file__).parents[2]
DETACHED = """import subprocess, sys
code = "import time; x = bytearray(50_000_000); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
"""


def line(case: str, side: str, repeat: int, inner: float, **more: Any) -> dict[str, Any]:
    seconds = [9.0, inner, inner, 9.0]
    use = {
        "pss_bytes": 10**9,
        "processor_seconds": 12.34,
        "versions": {"flwr": "1.2"},
        "machine": {"load_before": repeat},
    }
    return {"case": case, "side": side, "repeat": repeat, "seconds": seconds, **use, **more}


def simulations(ours: float, theirs: float) -> list[dict[str, Any]]:
    return [
        line("simulation", "fedquilt", 1, 1.0, accuracy=ours),
        line("simulation", "Flower", 1, 2.0, accuracy=theirs),
    ]


LINES = [line("45 MB", "fedquilt", 1, 0.5), line("45 MB", "fedquilt", 2, 0.25), line("45 MB", "Flower", 1, 5.0),
         line("45 MB", "Flower", 2, 7.5)]  # fmt: skip


def test_the_readme_has_the_numbers_of_the_results() -> None:
    found = figures.TABLE.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert found
    assert found[0] == figures.table(read_lines(comparison.RESULTS)), "run python benchmarks/peer --plot"


def test_the_table_has_medians_spread_and_paired_ratios() -> None:
    row, last = figures.table(LINES).splitlines()[2:]
    cells = "0.375 s (0.250-0.500) | 6.25 s (5.00-7.50) | 20.0 (10.0-30.0) | 1 / 1 GB | 12.3 / 12.3 s"
    assert row == f"| round without training, 4 agents, 45 MB | {cells} |"
    assert last == "| load average before a run | 1.0-2.0 | 1.0-2.0 | | | |"


def test_a_case_that_flower_skips_has_no_row() -> None:
    skipped = {**LINES[2], "case": "simulation", "skipped": "no ray"}
    assert "simulated" not in figures.table([*LINES, line("simulation", "fedquilt", 1, 1.0), skipped])


def test_the_pages_table_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n\n| | fedquilt | old |\n|---|\n| x | 1 |\n\nafter\n")
    figures.update_table(LINES, page)
    assert page.read_text() == f"before\n\n{figures.table(LINES)}\n\nafter\n"
    page.write_text("no table")
    with pytest.raises(ValueError, match="has 0 tables"):
        figures.update_table(LINES, page)


def test_sides_that_learn_differently_are_an_error() -> None:
    comparison.check_accuracies(simulations(0.70, 0.75))
    with pytest.raises(SystemExit, match="not fair"):
        comparison.check_accuracies(simulations(0.70, 0.85))


def test_both_sides_train_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the same weights and one batch, whose order does not matter, both sides reach the same weights."""
    training = load_experiment(EXPERIMENT).training
    monkeypatch.syspath_prepend(EXPERIMENT.parent / "flower_app")
    convnet = importlib.import_module("peer_app.convnet")
    images = np.random.default_rng(0).random((training.batch, 1, 28, 28), dtype=np.float32)
    data = Examples(images, np.arange(training.batch) % 10)
    build = build_model("convnet", {}, (1, 28, 28), 10)
    torch.manual_seed(0)  # with some weights, the rounding of the two differs more
    start = build().state_dict()
    arrays = {name: tensor.numpy().copy() for name, tensor in start.items()}
    ours = TorchLearner(build, training, Classification(10)).train(arrays, data, seed=0).arrays
    weights = dict(zip(convnet.build().state_dict(), start.values(), strict=True))
    batch = torch.from_numpy(data.x), torch.from_numpy(data.y)
    theirs = convnet.train_epoch(weights, *batch, training.lr, training.batch)
    for mine, other, before in zip(ours.values(), theirs.values(), start.values(), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-6)
        assert not np.allclose(mine, before, atol=1e-5)


def test_both_sides_have_the_same_clients_and_batches() -> None:
    experiment = load_experiment(EXPERIMENT)
    settings = (EXPERIMENT.parent / "flower_app" / "pyproject.toml").read_text()
    assert f"\nbatch = {experiment.training.batch}\n" in settings
    assert (experiment.data.clients, experiment.participation.per_round, experiment.training.epochs) == (100, 10, 1)


def test_rounds_last_from_opening_to_opening() -> None:
    assert round_times({"openings": [1.0, 3.0], "end": 3.5, "accuracy": None})["seconds"] == [2.0, 0.5]


def test_a_detached_grandchild_counts_and_is_killed() -> None:
    with ProcessWatch() as watch:
        subprocess.run([sys.executable, "-c", DETACHED], env=watch.environment, check=True)
        end = time.monotonic() + 60
        while watch.pss_bytes < 50_000_000 and time.monotonic() < end:
            time.sleep(0.1)
    report = watch.report()
    assert report["pss_bytes"] > 50_000_000
    assert report["processor_seconds"] > 0
    mark = watch.environment["FEDQUILT_MEASUREMENT"].encode()
    assert not [pid for pid in Path("/proc").glob("[0-9]*") if mark in environment_of(pid)]


def environment_of(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("command", "role"),
    [
        (b"/v/bin/python\0-m\0fedquilt_common.cli\0coordinator\0x", "coordinator"),
        (b"/v/bin/python\0/v/bin/flower-superexec\0--insecure", "SuperExec"),
        (b"ray::ClientAppActor.run", "Ray actor"),
        (b"/v/site-packages/ray/core/src/ray/gcs/gcs_server\0", "Ray services"),
        (b"/bin/sleep\x001", "sleep"),
    ],
)
def test_roles_of_processes_by_their_command(command: bytes, role: str) -> None:
    assert role_of(command) == role


def test_roles_of_forks_by_their_name() -> None:
    agents, workers = (f"python -m fedquilt_common.process.fork_server 4 {what}".encode() for what in ("x", "torch"))
    assert (role_of(agents, "python3"), role_of(agents, "board-0"), role_of(workers, "board-0")) == (
        "fork server", "agent", "worker",
    )  # fmt: skip


def test_an_interrupted_measurement_continues_with_its_commit_only(tmp_path: Path) -> None:
    file, results = tmp_path / "work" / "progress.jsonl", tmp_path / "results.jsonl"
    file.parent.mkdir()
    file.write_text(json.dumps({"case": "a", "commit": "old", "value": 1}) + "\n")
    with Progress(file, "new") as first:
        assert first.part({"case": "a"}, lambda: {"value": 2})["value"] == 2
        with pytest.raises(FolderInUseError):
            Progress(file, "new")
    with Progress(file, "new") as again:
        assert again.part({"case": "a"}, lambda: {"value": 3})["value"] == 2
        again.finish(results)
    assert [found["value"] for found in read_lines(results)] == [2]
    assert not file.exists()


def test_a_measurement_is_marked_if_the_code_differs_from_its_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=tmp_path, check=True)

    code, results = tmp_path / "code.py", tmp_path / "benchmarks" / "results" / "round.jsonl"
    results.parent.mkdir(parents=True)
    code.write_text("x = 1")
    results.write_text("{}")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    clean = commit(tmp_path)
    results.write_text("{}{}")
    assert commit(tmp_path) == clean != "unknown"
    code.write_text("x = 2")
    assert commit(results.parent) == f"{clean}-dirty"
