"""The nodes of the cluster that are ready for agents: each was checked, and has an actor that prepared it."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from fedquilt_common.errors import RayNodeError
from fedquilt_server.ray_cluster.fitness import judge_node
from fedquilt_server.ray_cluster.library import ActorLostError, Cluster, Node, Resources
from fedquilt_server.ray_cluster.node import NodeActor, NodeHome, describe_node
from fedquilt_server.ray_cluster.relocations import Relocations
from fedquilt_server.ray_cluster.requests import HostRequest

log = logging.getLogger(__name__)

OPEN_SECONDS: Final = 120.0
"""How long a node may take to start its fork servers."""
REACH_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 25.0


class NodeChanges(NamedTuple):
    """The nodes that have died, and those that have become ready."""

    died: list[Node]
    joined: list[Node]


class ReadyNodes:
    """The nodes that can host agents.

    Args:
        cluster: the connection.
        request: names the nodes that were checked, and the broker that they must reach.
        relocations: where nodes that join or cannot be used are reported.
    """

    def __init__(self, cluster: Cluster, request: HostRequest, relocations: Relocations) -> None:
        self._cluster, self._request, self._relocations = cluster, request, relocations
        self._known = set[str]()
        self._opened: dict[str, Node] = {}
        self._ready: dict[str, Node] = {}
        self._actors: dict[str, Any] = {}
        self._agents: Counter[str] = Counter()
        self._reserved: defaultdict[str, Resources] = defaultdict(Resources)
        self._homes: dict[str, NodeHome] = {}

    def choose(self, needs: Resources, *, anywhere: bool) -> list[str]:
        """Return the ids of the nodes on which an agent may start; empty if there is none now.

        Ray would put many small agents on one node. So this chooses the node with the fewest agents for its processors,
        of those with room beside the other agents of this run. A node that never has room is left out, because Ray
        then refuses the actor instead of asking the next one.

        Args:
            needs: what the agent reserves.
            anywhere: leave the choice to Ray, which knows what others have reserved.
        """
        fitting = [node for node in self._ready.values() if needs.fit(node.resources)]
        free = [node for node in fitting if (self._reserved[node.id] + needs).fit(node.resources)]
        if anywhere or not free:
            return [node.id for node in fitting]
        return [min(free, key=self._load).id]

    def _load(self, node: Node) -> tuple[float, str]:
        return (self._agents[node.id] + 1) / max(node.resources.cpus, 1.0), node.name

    def arrive(self, id: str, needs: Resources) -> None:
        """Count an agent that comes to a node."""
        self._agents[id] += 1
        self._reserved[id] += needs

    def leave(self, id: str, needs: Resources) -> None:
        """Count an agent that leaves a node."""
        self._agents[id] -= 1
        self._reserved[id] -= needs

    def find(self, id: str) -> Node | None:
        """Return a node that can host agents; None if it has died."""
        return self._ready.get(id)

    def home(self, id: str) -> NodeHome:
        """Return what a node has prepared."""
        return self._homes[id]

    def check(self, node: Node) -> bool:
        """Whether a node lives. One that does not gets no agents, long before Ray counts it as dead.

        ``refresh`` still reports its death.
        """
        if node.id in self._ready and not self._cluster.answers(node):
            del self._ready[node.id]
        return node.id in self._ready

    def open_first(self) -> None:
        """Prepare the nodes of the request.

        Raises:
            RayNodeError: one cannot be prepared, or does not reach the broker.
        """
        nodes = [node for node in self._cluster.nodes() if node.id in self._request.nodes]
        self._known = {node.id for node in self._cluster.nodes()}
        problems = self._open(nodes)
        if problems or not nodes:
            raise RayNodeError("\n".join(problems) or "all nodes that were checked have left the Ray cluster")

    def _open(self, nodes: Sequence[Node]) -> list[str]:
        """Prepare nodes; returns what is wrong with those that cannot be used."""
        host, port = self._request.broker
        asked = []
        for node in nodes:
            actor = self._actors[node.id] = self._cluster.start_on(node.id, NodeActor)
            home = actor.start.remote(f"{self._request.home}-{node.id[:8]}")
            asked.append((node, home, actor.reach.remote(host, port, REACH_SECONDS)))
        problems = []
        for node, home, reach in asked:
            try:
                self._homes[node.id] = self._cluster.result(home, OPEN_SECONDS)
                if problem := self._cluster.result(reach, OPEN_SECONDS):
                    raise ActorLostError(
                        f"it cannot reach the broker at {host}:{port} ({problem}); allow it in the firewall"
                    )
                self._ready[node.id] = self._opened[node.id] = node
            except ActorLostError as error:
                problems.append(f"node {node.name} of the Ray cluster cannot host agents: {error}")
        return problems

    def refresh(self) -> NodeChanges:
        """Look at the cluster again, prepare nodes that have joined, and forget those that have died."""
        now = {node.id: node for node in self._cluster.nodes()}
        died = [self._opened.pop(id) for id in list(self._opened) if id not in now]
        for node in died:
            self._ready.pop(node.id, None)
        before = set(self._ready)
        for id, node in self._opened.items():
            if id not in self._ready and self._cluster.answers(node):
                self._ready[id] = node
        fresh = [node for id, node in now.items() if id not in self._known and node.resources.cpus > 0]
        self._known |= set(now)
        if fresh:
            self._take_new(fresh)
        return NodeChanges(died, [node for id, node in self._ready.items() if id not in before])

    def _take_new(self, nodes: Sequence[Node]) -> None:
        """Check and prepare nodes that have joined; one that cannot be used ends no run."""
        facts = self._cluster.ask_nodes(nodes, describe_node, self._request.modules, "", "")
        problems = {node.id: judge_node(facts[node.id], "") for node in nodes}
        fit = [node for node in nodes if not problems[node.id]]
        unfit = [f"{node.name}: {problems[node.id]}" for node in nodes if problems[node.id]]
        for text in [*unfit, *self._open(fit)]:
            self._relocations.add(f"A node has joined the Ray cluster and gets no agents. {text}")

    def close(self, *, remove: bool) -> None:
        """End the agents that are left on the nodes, and remove the nodes' folders if ``remove`` is set."""
        ended = [actor.close.remote(remove=remove) for actor in self._actors.values()]
        for ref in ended:
            with contextlib.suppress(ActorLostError):
                self._cluster.result(ref, CLOSE_SECONDS)
