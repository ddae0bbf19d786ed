"""The sockets of a simulation's fork servers."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.packages import needs

from fedquilt_common.experiment_file import make_experiment
from fedquilt_common.process.forked import FORK_SERVER
from fedquilt_common.training_jobs import PRIVATE_MODULE, worker_environment
from fedquilt_server.simulate.fork_servers import ForkServers, open_fork_servers
from fedquilt_server.simulate.plan import SimulationPlan, make_plan
from fedquilt_server.tools.bench import bench_experiment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: processes are forked there only")


@pytest.fixture
def plan(tmp_path: Path) -> SimulationPlan:
    return make_plan(bench_experiment(1, 1, 0.01, 1), tmp_path / "run")


def test_only_this_user_reaches_the_sockets_and_they_go_with_the_simulation(plan: SimulationPlan) -> None:
    with open_fork_servers(plan, pytest.fail) as servers:
        assert servers.agent_socket is not None
        folder = servers.agent_socket.parent
        assert folder.stat().st_mode & 0o777 == 0o700
        assert servers.agent_environment == {FORK_SERVER: str(folder / "workers")}
        workers, agents = servers.specs
        assert (workers.env, agents.env) == (worker_environment(1, plan.environment), plan.environment)
    assert not folder.exists()


def test_without_sockets_processes_are_started_one_by_one(
    plan: SimulationPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's folder for temporary files may have a longer name than a socket can have."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    said = list[str]()
    with open_fork_servers(plan, said.append) as servers:
        assert servers == ForkServers()
    (text,) = said
    assert text.startswith(f"Agents and training processes are started one by one: {long}: AF_UNIX path too long")
    assert list(long.iterdir()) == []


def test_a_plan_can_do_without(plan: SimulationPlan) -> None:
    with open_fork_servers(replace(plan, forks=False), pytest.fail) as servers:
        assert servers == ForkServers()


@pytest.mark.parametrize("private", [False, True])
def test_private_boards_share_opacus(private: bool, plan: SimulationPlan) -> None:
    needs("opacus", "needs the extra dp")
    raw = {
        "name": "private",
        "rounds": 1,
        "data": {"set": "digits", "clients": 2, "partition": {"scheme": "uniform"}},
        "model": {"name": "mlp"},
        "algorithm": {"name": "fedavg"},
        **({"privacy": {"epsilon": 8, "delta": 0.001}} if private else {}),
        "fleet": [{"kind": "board", "clients": 2}],
    }
    experiment = make_experiment(raw, "test")
    with open_fork_servers(replace(plan, experiment=experiment), pytest.fail) as servers:
        assert (PRIVATE_MODULE in servers.specs[0].argv) == private
