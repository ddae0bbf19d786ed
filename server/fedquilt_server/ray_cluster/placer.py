"""The process that hosts the agents of a simulation on a Ray cluster: it starts, watches and moves them.

    python -m fedquilt_server.ray_cluster.placer FOLDER

It reads the request of a run folder and writes ``placement.json`` there. It runs until it gets a signal; then all
actors and agents end.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fedquilt_common.errors import FedquiltError
from fedquilt_common.process.signals import StopSignal
from fedquilt_common.wire.broker_url import BROKER_PASSWORD
from fedquilt_server.ray_cluster.agent_life import AgentLife
from fedquilt_server.ray_cluster.library import ActorLostError, Cluster, Node
from fedquilt_server.ray_cluster.nodes import ReadyNodes
from fedquilt_server.ray_cluster.relocations import Relocations
from fedquilt_server.ray_cluster.requests import HostRequest
from fedquilt_server.runs.run_folder import inspect_folder

log = logging.getLogger(__name__)

STEP_SECONDS: Final = 0.5
NODES_SECONDS: Final = 2.0
"""Time between two looks at the nodes of the cluster."""
WAIT_SECONDS: Final = 20.0
"""An agent without a node is reported after this time: Ray needs some seconds to start an actor."""


class Placer:
    """Places agents on nodes.

    Args:
        cluster: the connection.
        request: what to host.
        folder: the run folder.
        password: of the broker.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        request: HostRequest,
        folder: Path,
        password: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._folder, self._clock = cluster, folder, clock
        self._relocations = Relocations(request.cluster, folder, request.kept)
        self._nodes = ReadyNodes(cluster, request, self._relocations)
        self._agents = [AgentLife(cluster, request, one, password, self._nodes, clock) for one in request.agents]
        self._look_at = 0.0
        self._reported = set[str]()

    def execute(self, should_stop: Callable[[], bool]) -> None:
        """Host the agents until ``should_stop`` returns True.

        Raises:
            RayNodeError: no node can be prepared, or one cannot reach the broker.
            RunFailedError: an agent fails again after each restart.
        """
        try:
            self._nodes.open_first()
            for agent in self._agents:
                agent.place()
            while not should_stop():
                self._step()
        finally:
            self.close()

    def _step(self) -> None:
        by_ref = {agent.ref: agent for agent in self._agents if agent.ref is not None}
        if not by_ref:
            time.sleep(STEP_SECONDS)
        for ref in self._cluster.wait(list(by_ref), STEP_SECONDS):
            agent = by_ref[ref]
            try:
                agent.advance()
            except ActorLostError as error:
                self._lose(agent, str(error))
        now = self._clock()
        if now >= self._look_at:
            self._look_at = now + NODES_SECONDS
            self._watch_nodes()
            self._watch_waiting(now)
        self._relocations.save([agent.placement for agent in self._agents])

    def _lose(self, agent: AgentLife, reason: str) -> None:
        """Start an agent again whose actor has died; if its node has died, too, all agents of the node."""
        node = self._nodes.find(agent.placement.node)
        self._relocations.add(agent.lose(reason), agent.name)
        if node is not None and self._nodes.find(node.id) is None:
            self._bury(node)

    def _bury(self, node: Node) -> None:
        for agent in self._agents:
            if agent.placement.node == node.id:
                self._relocations.add(agent.lose(""), agent.name)
        self._relocations.add_death(node, [agent.name for agent in self._agents if agent.left == node.id])

    def _watch_nodes(self) -> None:
        died, joined = self._nodes.refresh()
        for node in died:
            self._bury(node)
        for agent in self._agents if died or joined else ():
            if agent.is_waiting:  # it may wait for a node that has died, or for nodes that have less room
                agent.close()
                agent.place()

    def _watch_waiting(self, now: float) -> None:
        waiting = [agent for agent in self._agents if agent.is_waiting_since(now - WAIT_SECONDS)]
        fresh = [agent for agent in waiting if agent.name not in self._reported]
        if fresh:
            self._relocations.add_waiting([agent.placement for agent in fresh])
        for agent in fresh:  # others may have reserved what its node had
            agent.close()
            agent.place(anywhere=True)
        self._reported |= {agent.name for agent in fresh}
        self._reported &= {agent.name for agent in self._agents if agent.is_waiting}

    def close(self) -> None:
        """End all agents and actors."""
        for agent in self._agents:
            agent.close()
        self._nodes.close(remove=inspect_folder(self._folder).finished)


def main() -> None:
    """Host the agents of a run folder; the broker's password is in the environment."""
    folder = Path(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    password = os.environ.pop(BROKER_PASSWORD, "")
    try:
        request = HostRequest.read(folder)
        cluster = Cluster.connect(request.cluster)
        stop = StopSignal()  # Ray has installed handlers of its own
        Placer(cluster, request, folder, password).execute(stop)
        cluster.close()
    except FedquiltError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
