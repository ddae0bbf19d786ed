"""Which node gets an agent. Agents without one are reported once, and may then go to any node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from fedquilt_server.ray_cluster.library import Cluster, Node, Resources
from fedquilt_server.ray_cluster.node import NodeHome
from fedquilt_server.ray_cluster.nodes import ReadyNodes
from fedquilt_server.ray_cluster.placer import WAIT_SECONDS, Placer
from fedquilt_server.ray_cluster.relocations import Relocations
from fedquilt_server.ray_cluster.requests import AgentRequest, HostRequest
from fedquilt_server.status.placement import PlacementReader

NODE = Node("n1" * 8, "host", "127.0.0.1", 1, Resources(4, 8 << 30, 0))


@dataclass
class FullCluster:
    """A cluster that never starts an actor for an agent: another job holds its processors. A wait takes its seconds."""

    now: float = 0.0
    found: list[Node] = field(default_factory=lambda: [NODE])
    placed: list[tuple[float, int]] = field(default_factory=list)

    def nodes(self) -> list[Node]:
        return self.found

    def answers(self, node: Node) -> bool:
        return True

    def start_on(self, node: str, kind: type) -> Any:
        return SimpleNamespace(
            start=SimpleNamespace(remote=lambda home: NodeHome("state", "", "")),
            reach=SimpleNamespace(remote=lambda host, port, seconds: ""),
            close=SimpleNamespace(remote=lambda remove: None),
        )

    def result(self, ref: Any, seconds: float | None = None) -> Any:
        return ref

    def start_anywhere(self, kind: type, resources: Resources, nodes: Sequence[str]) -> object:
        self.placed.append((self.now, len(nodes)))
        return object()

    def locate(self, actor: object) -> object:
        return actor

    def wait(self, refs: Sequence[object], seconds: float) -> list[object]:
        self.now += seconds
        return []

    def kill(self, actor: object) -> None:
        pass


def request(count: int) -> HostRequest:
    agents = [
        AgentRequest(name=f"a-{n}", clients=[n], options=[], noise_key="", cpus=4, memory=0, gpus=0)
        for n in range(count)
    ]
    return HostRequest(
        cluster="auto", home="h", shared="", kept="", modules=[], nodes=[NODE.id], broker=("h", 1), connection=[],
        ca="", agents=agents,
    )  # fmt: skip


def test_a_node_gets_as_many_agents_as_its_processors_bear(tmp_path: Path) -> None:
    large, small = (Node(name * 8, name, "127.0.0.1", 1, Resources(cpus)) for name, cpus in (("n1", 64), ("n2", 4)))
    cluster, asked = FullCluster(found=[large, small]), request(1)
    asked = asked.model_copy(update={"nodes": [large.id, small.id]})
    nodes = ReadyNodes(cast(Cluster, cluster), asked, Relocations("auto", tmp_path, ""))
    nodes.open_first()
    hosts = []
    for _ in range(17):
        hosts += nodes.choose(Resources(), anywhere=False)
        nodes.arrive(hosts[-1], Resources())
    assert Counter(hosts) == {large.id: 16, small.id: 1}


def test_agents_without_a_node_are_reported_once_and_may_go_anywhere(tmp_path: Path) -> None:
    cluster = FullCluster()
    hosting = Placer(cast(Cluster, cluster), request(2), tmp_path, "", lambda: cluster.now)
    hosting.execute(lambda: cluster.now > 10 * WAIT_SECONDS)
    again = [moment for moment, _ in cluster.placed[2:]]
    assert len(again) == 2
    assert all(WAIT_SECONDS <= moment < WAIT_SECONDS + 3 for moment in again)
    record = PlacementReader(tmp_path).record
    texts = [one.text for one in record.relocations] if record else []
    assert [text.split(" for ")[0] for text in texts] == ["2 agents wait"]
