"""The memory of a run that ends before anybody has looked at its processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.warm import forking

from fedquilt_server.simulate import supervisor
from fedquilt_server.simulate.plan import make_plan
from fedquilt_server.simulate.simulate import run_simulation
from fedquilt_server.tools.bench import bench_experiment


def test_all_processes_that_still_run_are_looked_at_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "SAMPLE_SECONDS", 1e12)
    with forking():
        done = run_simulation(make_plan(bench_experiment(2, 2, 0.01, 1), tmp_path), lambda _: None)
    assert done is not None
    peaks = {name: memory.peak for name, memory in done.memory.items() if name != "coordinator"}
    assert {"broker", "bench-0", "bench-1"} <= peaks.keys()
    assert min(peaks.values()) > 1e6
