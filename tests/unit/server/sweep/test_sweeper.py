"""A sweep whose runs are small programs: jobs at once, failures, signals, a second start."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from tests.support.finished_folder import finishing_text

from fedquilt_common.errors import ExperimentError, FolderInUseError
from fedquilt_common.experiment_file import parse_experiment
from fedquilt_common.files.locking import lock_folder
from fedquilt_common.wire.broker_url import parse_broker_url
from fedquilt_server.sweep import sweeper
from fedquilt_server.sweep.manifest import SweepManifest, read_manifest
from fedquilt_server.sweep.plan import SweepPlan, plan_sweep
from fedquilt_server.sweep.progress import SweepProgress
from fedquilt_server.sweep.run_process import BoardsBroker, RunHost
from fedquilt_server.sweep.sweep_file import source_of, vary
from fedquilt_server.sweep.sweeper import default_jobs, run_sweep

DIGITS = {
    "name": "digits", "data": {"set": "digits", "clients": 4}, "model": {"name": "mlp"},
    "algorithm": {"name": "fedavg"},
}  # fmt: skip
PATIENCE = 30.0
SLEEP = "import time; time.sleep(60)"


@dataclass(frozen=True)
class Program(RunHost):
    """Runs a Python program instead of an experiment; ``{folder}`` in it is the run folder.

    If the program reaches its end and ``finishes`` is set, its folder holds a finished run.
    """

    text: str = ""
    finishes: bool = True

    def command(self, folder: Path, port: int) -> tuple[str, ...]:
        text = self.text.replace("{folder}", str(folder))
        return (sys.executable, "-S", "-c", f"{text}\n{finishing_text(folder) if self.finishes else ''}")


def plan(folder: Path, *seeds: int) -> SweepPlan:
    return plan_sweep(vary(source_of(DIGITS, "digits.yaml", ""), {"seed": seeds}, ""), (), folder)


def quiet() -> SweepProgress:
    return SweepProgress(enabled=False)


def ends(manifest: SweepManifest) -> list[tuple[str, str, int | None]]:
    return [(run.status, run.reason, run.exit_code) for run in manifest.runs]


OTHERS: set[psutil.Process] = set()
"""Processes that earlier tests of this file's process have started and still use."""


@pytest.fixture(autouse=True)
def others() -> None:
    OTHERS.update(psutil.Process().children(recursive=True))


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if child not in OTHERS]


FAILING = """
import sys
if "seed=2" in "{folder}":
    print("a warning", file=sys.stderr)
    print("fedquilt: the loss became nan\\nand more", file=sys.stderr)
    sys.exit(7)
if "seed=3" in "{folder}":
    print("Traceback\\nValueError: oh", file=sys.stderr)
    sys.exit(1)
if "seed=4" in "{folder}":
    import os; os.kill(os.getpid(), 9)
"""


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    made = plan(tmp_path, 1, 2, 3, 4, 5)
    expected = [
        ("finished", "", 0),
        ("failed", "the loss became nan\nand more", 7),
        ("failed", "the command ended with exit code 1. ValueError: oh", 1),
        ("failed", "the command was killed by SIGKILL (out of memory?)", -9),
        ("finished", "", 0),
    ]
    assert ends(run_sweep(made, Program(text=FAILING), 2, quiet())) == expected
    assert ends(read_manifest(tmp_path)) == expected
    for run in made.runs:
        assert parse_experiment((run.folder / "experiment.yaml").read_text(), "x") == run.experiment


@pytest.mark.parametrize("jobs", [0, -1])
def test_at_least_one_run_at_a_time(jobs: int, tmp_path: Path) -> None:
    made = plan(tmp_path, 1)
    with pytest.raises(ExperimentError, match=f"jobs = {jobs}: a sweep runs 1 experiment or more at once"):
        run_sweep(made, Program(), jobs, quiet())
    assert not (made.folder / "sweep.json").exists()


def test_a_second_start_counts_only_what_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The runs that failed before are open again."""
    made = plan(tmp_path, 2, 3)
    run_sweep(made, Program(text=FAILING), 1, quiet())
    run_sweep(made, Program(text=FAILING), 1, SweepProgress())
    assert capsys.readouterr().err.splitlines() == [
        f"digits-sweep: 2 runs in {tmp_path}",
        "[1/2] seed=2: failed: the loss became nan",
        "[2/2] seed=3: failed: the command ended with exit code 1. ValueError: oh",
    ]


def test_a_run_that_was_stopped_on_its_page_is_not_finished_and_the_next_sweep_takes_it_up(tmp_path: Path) -> None:
    """Its coordinator ends with exit code 0."""
    made = plan(tmp_path, 1)
    reason = "the run was stopped before its end; run the same command again to resume"
    assert ends(run_sweep(made, Program(finishes=False), 1, quiet())) == [("stopped", reason, 0)]
    assert ends(run_sweep(made, Program(), 1, quiet())) == [("finished", "", 0)]


def test_a_second_error_is_not_taken_for_the_first(tmp_path: Path) -> None:
    made = plan(tmp_path, 2)
    run_sweep(made, Program(text=FAILING), 1, quiet())
    again = run_sweep(made, Program(text="import sys; sys.exit(3)"), 1, quiet())
    assert ends(again) == [("failed", "the command ended with exit code 3", 3)]


def test_a_folder_that_cannot_be_used_fails_alone(tmp_path: Path) -> None:
    made = plan(tmp_path, 1, 2, 3)
    made.runs[0].folder.write_text("a file")
    made.runs[1].folder.mkdir()
    (made.runs[1].folder / "experiment.yaml").write_text("# my own")
    first, second, third = ends(run_sweep(made, Program(), 1, quiet()))
    assert [(end[0], end[2]) for end in (first, second)] == [("failed", 6)] * 2
    assert third[0] == "finished"
    assert "seed=1 cannot be used" in first[1]
    assert "holds other files and no run, such as experiment.yaml" in second[1]
    assert (made.runs[1].folder / "experiment.yaml").read_text() == "# my own"


@pytest.mark.parametrize("jobs", [1, 3])
def test_so_many_run_at_once(tmp_path: Path, jobs: int) -> None:
    """Each program waits until so many have begun; a later one would have the time to begin too early."""
    text = """
import pathlib, time
folder = pathlib.Path("{folder}")
begun, ended = ((lambda kind=kind: len(list(folder.parent.glob("*/" + kind)))) for kind in ("begun", "ended"))
(folder / "begun").touch()
end = time.monotonic() + PATIENCE
while begun() < JOBS and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.1)
(folder / "seen").write_text(str(begun() - ended()))
(folder / "ended").touch()
""".replace("PATIENCE", str(PATIENCE)).replace("JOBS", str(jobs))
    made = plan(tmp_path, 1, 2, 3)
    run_sweep(made, Program(text=text), jobs, quiet())
    assert max(int((run.folder / "seen").read_text()) for run in made.runs) == jobs


def after(condition: Callable[[], object]) -> Callable[[], bool]:
    """Return a signal that arrives once the condition holds."""
    end = time.monotonic() + PATIENCE

    def arrived() -> bool:
        assert time.monotonic() < end
        return bool(condition())

    return arrived


def test_a_signal_stops_the_runs_in_order_and_leaves_the_rest(tmp_path: Path) -> None:
    text = """
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
pathlib.Path("{folder}/ready").touch()
time.sleep(60)
"""
    made = plan(tmp_path, 1, 2, 3)
    started = after(lambda: len(list(tmp_path.glob("*/ready"))) == 2)
    manifest = run_sweep(made, Program(text=text), 2, quiet(), started)
    assert [run.status for run in manifest.runs] == ["stopped", "stopped", "pending"]
    assert [run.exit_code for run in manifest.runs] == [130, 130, None]
    assert "run the same command again to resume" in manifest.runs[0].reason
    assert read_manifest(tmp_path) == manifest
    assert children() == []
    assert [run.status for run in run_sweep(made, Program(), 2, quiet()).runs] == ["finished"] * 3


def test_what_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeper, "STOP_SECONDS", 0.2)
    text = """
import pathlib, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
pathlib.Path("{folder}/ready").touch()
time.sleep(60)
"""
    ready = after(lambda: list(tmp_path.glob("*/ready")))
    manifest = run_sweep(plan(tmp_path, 1), Program(text=text), 1, quiet(), ready)
    assert [(run.status, run.exit_code) for run in manifest.runs] == [("stopped", -9)]
    assert children() == []


def test_ctrl_c_in_a_caller_without_handlers_stops_the_runs_too(tmp_path: Path) -> None:
    def interrupt() -> bool:
        if children():
            os.kill(os.getpid(), signal.SIGINT)
        return False

    with pytest.raises(KeyboardInterrupt):
        run_sweep(plan(tmp_path, 1, 2), Program(text=SLEEP), 1, quiet(), interrupt)
    assert [run.status for run in read_manifest(tmp_path).runs] == ["stopped", "pending"]
    assert children() == []


def test_two_sweeps_cannot_share_a_folder(tmp_path: Path) -> None:
    with (
        lock_folder(tmp_path, name=".sweep.lock"),
        pytest.raises(FolderInUseError, match=f"process {os.getpid()} on .* uses {tmp_path}"),
    ):
        run_sweep(plan(tmp_path, 1), Program(), 1, quiet())


def test_a_run_has_one_core_for_each_training_process() -> None:
    two = plan(Path("x"), 1).runs[0].experiment
    four = two.model_copy(update={"fleet": (two.fleet[0].model_copy(update={"agents": 2, "workers": 2}),)})
    assert default_jobs([two], cores=2) == 2
    assert [default_jobs([two, four], cores=cores) for cores in (1, 2, 4, 9)] == [1, 1, 1, 2]
    assert default_jobs([two]) >= 1


def test_boards_get_a_coordinator_and_no_simulated_agents(tmp_path: Path) -> None:
    address = parse_broker_url("mqtts://me:secret@broker.lan").with_files("ca.pem", "c.pem", "k.pem")
    host = RunHost(BoardsBroker(address, "lab", Path("inventory.yml")), 8080)
    words = host.command(tmp_path, 8080)[3:]
    assert words == (
        "coordinator", f"{tmp_path}/experiment.yaml", "--out", str(tmp_path), "--port", "8080",
        "--broker", "mqtts://me@broker.lan:8883", "--federation", "lab",
        "--ca", "ca.pem", "--cert", "c.pem", "--key", "k.pem", "--inventory", "inventory.yml", "--resume",
    )  # fmt: skip
    assert host.environment()["FEDQUILT_BROKER_PASSWORD"] == "secret"  # noqa: S105
    assert RunHost().command(tmp_path, 1)[3] == "simulate"


def test_the_callers_packages_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "inherited")
    assert RunHost(python_path=("mine",)).environment()["PYTHONPATH"] == os.pathsep.join(["mine", "inherited"])
