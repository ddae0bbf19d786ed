"""An agent of a cluster that ends is started again on its node, and given up by the rule for all processes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.server.ray_cluster.test_placer import NODE, FullCluster, request

from fedquilt_common.errors import RunFailedError
from fedquilt_server.ray_cluster import agent_life, node
from fedquilt_server.ray_cluster.agent_life import AgentLife
from fedquilt_server.ray_cluster.library import Cluster
from fedquilt_server.ray_cluster.node import AgentActor, AgentEnd, AgentOrder
from fedquilt_server.ray_cluster.nodes import ReadyNodes
from fedquilt_server.ray_cluster.relocations import Relocations
from fedquilt_server.simulate.failed_starts import FAILED_STARTS, SAME_ERROR_LIFE, SHORT_LIFE


class RoomyCluster(FullCluster):
    """A cluster whose node has room; each agent on it lives some seconds and ends with code 1 and an error."""

    def __init__(self, life: float, error: str) -> None:
        super().__init__()
        self.life, self.error, self.starts = life, error, 0

    def start_anywhere(self, *_: Any) -> Any:
        return SimpleNamespace(start=SimpleNamespace(remote=self._start), wait=SimpleNamespace(remote=self._wait))

    def locate(self, actor: object) -> object:
        return NODE.id

    def _start(self, order: AgentOrder) -> int:
        self.starts += 1
        return 77

    def _wait(self) -> AgentEnd:
        self.now += self.life
        return AgentEnd(1, ("up", f"fedquilt: {self.error.format(self.starts)}"))


@pytest.mark.parametrize(
    ("life", "error", "starts"),
    [
        (0.0, "error {}", FAILED_STARTS),
        (SHORT_LIFE, "error {}", None),
        (SHORT_LIFE, "same error", FAILED_STARTS + 1),
        (SAME_ERROR_LIFE, "same error", None),
    ],
)
def test_an_agent_is_given_up_after_failed_starts_only(
    life: float, error: str, starts: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_life, "_PAUSE_SECONDS", 0.0)
    cluster, asked = RoomyCluster(life, error), request(1)
    nodes = ReadyNodes(cast(Cluster, cluster), asked, Relocations("auto", tmp_path, ""))
    nodes.open_first()
    agent = AgentLife(cast(Cluster, cluster), asked, asked.agents[0], "", nodes, lambda: cluster.now)
    agent.place()
    if starts is None:
        advance_until(agent, lambda: agent.placement.restarts > FAILED_STARTS + 2)
        return
    with pytest.raises(RunFailedError, match=rf"a-0 on {NODE.host}.* ended with exit code 1. .*:\nup\nfedquilt: "):
        advance_until(agent, lambda: False)
    assert cluster.starts == starts


def advance_until(agent: AgentLife, done: Callable[[], bool]) -> None:
    for _ in range(100):
        if done():
            return
        agent.advance()
    raise AssertionError("it goes on and on")


def test_the_end_of_an_agent_tells_nothing_of_the_processes_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "end_with_node", lambda: None)
    monkeypatch.setattr(node, "_start", lambda _argv, _env, log: subprocess.Popen(["sh", "-c", "echo now"], stdout=log))
    log = tmp_path / "a-0.log"
    log.write_text("fedquilt: the error of an earlier process\n")
    actor = AgentActor()
    actor.start(AgentOrder("a-0", [], str(tmp_path / "state"), str(log), {}))
    assert actor.wait() == AgentEnd(0, ("now",))
