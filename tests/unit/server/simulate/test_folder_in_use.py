"""A person who starts a second simulation on a folder is told at once."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fedquilt_common.errors import ExperimentError, FolderInUseError
from fedquilt_common.files.locking import lock_folder
from fedquilt_server.simulate.plan import make_plan
from fedquilt_server.simulate.simulate import run_simulation
from fedquilt_server.tools.bench import bench_experiment


def test_a_second_simulation_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(bench_experiment(1, 1, 0.01, 1), tmp_path)

    def wait(_: float) -> None:
        raise AssertionError("it waits")

    monkeypatch.setattr(time, "sleep", wait)
    with (
        lock_folder(tmp_path, name=".simulate.lock"),
        pytest.raises(FolderInUseError, match=f"process {os.getpid()} on .* uses {tmp_path}"),
    ):
        run_simulation(plan, lambda _: None)


def test_agents_that_need_samples_of_their_own_are_not_started(tmp_path: Path) -> None:
    experiment = bench_experiment(1, 1, 0.01, 1)
    own = experiment.data.model_copy(update={"delivery": "own"})
    with pytest.raises(ExperimentError, match="have no samples of their own"):
        make_plan(experiment.model_copy(update={"data": own}), tmp_path)
