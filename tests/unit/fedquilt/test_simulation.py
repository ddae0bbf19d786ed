"""What ``simulate`` reads and starts; the run itself is in tests/e2e/test_examples.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import fedquilt as fq
from fedquilt import simulation
from fedquilt_server.simulate.plan import SimulationPlan, new_run_folder

ROOT = Path(__file__).parents[3]
DIGITS: dict[str, Any] = {
    "name": "a", "data": {"set": "digits", "clients": 2}, "model": {"name": "mlp"}, "algorithm": {"name": "fedavg"},
}  # fmt: skip


@pytest.mark.parametrize("kind", [str, Path, dict, fq.Experiment])
def test_an_experiment_comes_in_four_forms(kind: type, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("{name: a, data: {set: digits, clients: 2}, model: {name: mlp}, algorithm: {name: fedavg}}")
    forms: dict[type, Any] = {str: str(file), Path: file, dict: DIGITS, fq.Experiment: fq.load_experiment(file)}
    loaded = fq.load_experiment(forms[kind], rounds=3, set={"training.lr": 1e-5})
    assert (loaded.name, loaded.rounds, loaded.training.lr) == ("a", 3, 1e-5)


def test_numbers_of_numpy_are_numbers() -> None:
    """As of a loop over ``np.arange``."""
    changes = {"training.lr": np.float32(0.5), "model.hidden": [np.int64(3)], "training.drop_last": np.bool_(True)}
    loaded = fq.load_experiment(DIGITS, rounds=np.int64(3), set=changes)
    assert (loaded.rounds, loaded.training.lr, loaded.training.drop_last) == (3, 0.5, True)
    assert loaded.model.params == {"hidden": [3]}


def test_later_overrides_reach_into_earlier_ones() -> None:
    loaded = fq.load_experiment(DIGITS, model={"name": "mlp", "hidden": [3, 4]}, set={"model.hidden.1": 5})
    assert loaded.model.params == {"hidden": [3, 5]}
    assert DIGITS["model"] == {"name": "mlp"}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"rounds": 0}, "rounds=0: rounds = 0: must be"),
        ({"ronds": 3}, "ronds=3: ronds = 3: unknown key; did you mean 'rounds'?"),
        ({"set": {"training.lr": -1}}, "set={'training.lr': -1}: training.lr = -1: must be"),
        ({"set": {"": 1}}, "write it as dotted.path=value"),
        ({"set": {"training.lr": {1, 2}}}, "Object of type set is not JSON serializable; use plain numbers"),
        ({"set": {"fleet.3.clients": 1}}, "'3' is not an item of a list of 1"),
    ],
)
def test_what_is_wrong_is_said_with_the_argument(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(fq.ExperimentError) as caught:
        fq.load_experiment({**DIGITS, "fleet": [{"clients": 2}]}, **keys)
    assert words in str(caught.value)


@pytest.mark.parametrize("given", [[1], 3])
def test_what_is_no_experiment_is_refused(given: Any, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(str(given))
    with pytest.raises(fq.ExperimentError, match="not keys; write keys such as name"):
        fq.load_experiment(file)


def test_a_new_folder_is_new_also_within_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen = set[Path]()
    for _ in range(3):
        folder = new_run_folder("a")
        folder.mkdir(parents=True)
        seen.add(folder)
    assert len(seen) == 3
    assert {folder.parent for folder in seen} == {Path("runs")}


def test_children_import_what_the_caller_can(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plans = list[SimulationPlan]()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(simulation, "run_simulation", lambda plan, show: plans.append(plan))
    monkeypatch.setattr(simulation, "load_run", lambda folder: None)
    fq.simulate(DIGITS, tmp_path / "run", progress=False)
    assert plans[0].folder == tmp_path / "run"
    paths = plans[0].environment["PYTHONPATH"].split(os.pathsep)
    assert paths[0] == str(tmp_path)
    assert "" not in paths


UNTRAINED = {**DIGITS, "model": {"name": "ballast", "megabytes": 0.1}, "algorithm": {"name": "echo"}}
"""No process needs torch for it."""
INTERRUPTED = """
import signal, sys
import fedquilt as fq
before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
try:
    fq.simulate({experiment!r}, "run", rounds=10_000)
except KeyboardInterrupt:
    print("interrupted", before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)])
"""


@pytest.mark.long
def test_ctrl_c_ends_the_children_and_reaches_the_caller(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", INTERRUPTED.format(experiment=UNTRAINED)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        seen = list[str]()
        watchdog = threading.Timer(100, process.kill)
        watchdog.start()
        for line in process.stderr:
            seen.append(line)
            if line.startswith("round 1/"):
                break
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        watchdog.cancel()
    assert out == "interrupted True\n", "".join(seen) + err
    assert len(family) >= 4
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []


def test_progress_goes_to_standard_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedquilt_server.simulate import simulate as module

    monkeypatch.setattr(module, "run_simulation", lambda plan, show, stop, report, stage: None)
    monkeypatch.setattr(simulation, "load_run", lambda folder: None)
    fq.simulate(DIGITS, tmp_path / "run")
    printed = capsys.readouterr()
    assert "Status page: http://127.0.0.1:" in printed.err
    assert printed.out == ""
