"""A simulation waits longer for the broker that it starts itself than for one that is given by its URL."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fedquilt_common.errors import BrokerUnreachableError
from fedquilt_server.simulate import process_specs, simulate
from fedquilt_server.simulate.mosquitto import free_port
from fedquilt_server.simulate.plan import SimulationPlan, make_plan
from fedquilt_server.simulate.simulate import run_simulation
from fedquilt_server.tools.bench import bench_experiment


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulationPlan:
    """A simulation whose broker runs, but never listens."""
    monkeypatch.setattr(simulate, "BROKER_SECONDS", 0.3)
    monkeypatch.setattr(
        process_specs, "broker_command", lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"]
    )
    return replace(make_plan(bench_experiment(1, 1, 0.01, 1), tmp_path), forks=False)


def after(calls: int) -> Callable[[], bool]:
    """Return False for the first ``calls`` calls, then True."""
    answers = iter([False] * calls)
    return lambda: next(answers, True)


def test_its_own_broker_may_take_longer_and_ctrl_c_ends_the_wait(plan: SimulationPlan) -> None:
    assert run_simulation(plan, lambda _: None, after(8)) is None


def test_a_broker_given_by_its_url_must_answer_soon(plan: SimulationPlan) -> None:
    there = replace(plan, broker=f"mqtt://127.0.0.1:{free_port()}")
    with pytest.raises(BrokerUnreachableError, match="no MQTT broker answers at"):
        run_simulation(there, lambda _: None, after(100))
