"""One agent on the cluster: its actor, where it is, and what follows when either ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any, Final, Literal

from fedquilt_common.error_messages import last_error
from fedquilt_common.errors import RunFailedError
from fedquilt_common.privacy.noise_key import KEY_VARIABLE
from fedquilt_common.process.exits import describe_exit
from fedquilt_common.wire.broker_url import BROKER_PASSWORD
from fedquilt_server.ray_cluster.library import ActorLostError, Cluster
from fedquilt_server.ray_cluster.node import AgentActor, AgentEnd, AgentOrder
from fedquilt_server.ray_cluster.nodes import ReadyNodes
from fedquilt_server.ray_cluster.requests import AgentRequest, HostRequest
from fedquilt_server.simulate.child_process import FINAL_CODES
from fedquilt_server.simulate.failed_starts import FAILED_STARTS, FailedStarts
from fedquilt_server.status.placement import Placement
from fedquilt_server.status.run_file_names import LOGS

log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 0.2


class AgentLife:
    """One agent.

    Args:
        cluster: the connection.
        request: the request of all agents.
        agent: the request of this one.
        password: of the broker.
        nodes: the nodes that are ready for agents.
        clock: monotonic seconds.

    Attributes:
        placement: where it is, for people.
        ref: what the next result of its actor is known by.
        left: id of the node that it left last; empty before.
    """

    def __init__(
        self,
        cluster: Cluster,
        request: HostRequest,
        agent: AgentRequest,
        password: str,
        nodes: ReadyNodes,
        clock: Callable[[], float],
    ) -> None:
        self._cluster, self._request, self._agent = cluster, request, agent
        self._password, self._nodes, self._clock = password, nodes, clock
        self._actor: Any = None
        self._stage: Literal["locate", "start", "wait"] = "locate"
        self._failed_starts, self._lost = FailedStarts(), 0
        self._started = self._waiting_since = 0.0
        self.ref: Any = None
        self.left = self._expected = ""
        self.placement = Placement(
            agent=agent.name, clients=agent.clients, cpus=agent.cpus, memory=agent.memory, gpus=agent.gpus
        )

    @property
    def name(self) -> str:
        """The agent's name."""
        return self._agent.name

    @property
    def is_waiting(self) -> bool:
        """Whether it has no node."""
        return self._stage == "locate"

    def is_waiting_since(self, moment: float) -> bool:
        """Whether it has had no node since a moment of the clock."""
        return self.is_waiting and self._waiting_since <= moment

    def place(self, *, anywhere: bool = False) -> None:
        """Ask Ray for a node with its resources. Without any node, the next one that joins is awaited.

        Args:
            anywhere: let Ray choose the node.
        """
        nodes = self._nodes.choose(self._agent.resources, anywhere=anywhere)
        self._stage, self._waiting_since = "locate", self._clock()
        self._expect(nodes[0] if len(nodes) == 1 else "")
        self._actor = self._cluster.start_anywhere(AgentActor, self._agent.resources, nodes) if nodes else None
        self.ref = self._cluster.locate(self._actor) if nodes else None
        self._show(state="waiting", node="", name="", address="")

    def _expect(self, node: str) -> None:
        """Note on which node it is or will be; empty: Ray has not chosen one yet."""
        self._nodes.leave(self._expected, self._agent.resources)
        self._nodes.arrive(node, self._agent.resources)
        self._expected = node

    def advance(self) -> None:
        """Fetch the finished result of the actor, and do what follows.

        Raises:
            ActorLostError: the actor has died.
            RunFailedError: the agent fails again after each restart.
        """
        try:
            result = self._cluster.result(self.ref)
        except OSError as error:
            raise RunFailedError(f"{self.name} cannot be started on {self.placement.name}: {error}") from None
        if self._stage == "locate":
            self._arrive(result)
        elif self._stage == "start":
            self._stage, self.ref = "wait", self._actor.wait.remote()
            self._show(state="running")
        else:
            self._restart(result)

    def _arrive(self, id: str) -> None:
        node = self._nodes.find(id)
        if node is None:
            raise ActorLostError(f"node {id} of the Ray cluster does not answer")
        moves = self.placement.moves + (self.left not in ("", id))
        self._expect(id)
        self._show(node=id, name=node.name, address=node.address, moves=moves)
        log.info("%s runs on %s", self.name, node.name)
        self._start()

    def _start(self) -> None:
        self._started = self._clock()
        self._stage, self.ref = "start", self._actor.start.remote(self._order())
        self._show(state="starting")

    def _order(self) -> AgentOrder:
        home, request = self._nodes.home(self.placement.node), self._request
        folder = PurePosixPath(request.shared, request.home) if request.shared else PurePosixPath(home.folder)
        return AgentOrder(
            name=self.name,
            arguments=[*request.connection, *self._agent.options],
            state=str(folder / "agents" / self.name),
            log=str(folder / LOGS / f"{self.name}.log"),
            environment={KEY_VARIABLE: self._agent.noise_key, BROKER_PASSWORD: self._password},
            ca=request.ca,
            agent_socket=home.agent_socket,
            worker_socket=home.worker_socket,
        )

    def _restart(self, end: AgentEnd) -> None:
        """Start it again on its node, as a supervisor does on one machine."""
        tail = "\n".join(end.tail)
        failed = self._failed_starts.add_end(end.code, self._clock() - self._started, last_error(tail))
        where = f"{self.name} on {self.placement.name} {describe_exit(end.code)}"
        if end.code in FINAL_CODES or self._failed_starts.are_too_many:
            error = RunFailedError(f"{where}. The end of its log:\n{tail}")
            error.exit_code = end.code if end.code in FINAL_CODES else error.exit_code
            raise error
        if failed:
            time.sleep(_PAUSE_SECONDS)
        log.warning("%s and was restarted", where)
        self._show(restarts=self.placement.restarts + 1)
        self._start()

    def lose(self, reason: str) -> str:
        """Give up the actor and ask for a node again; returns what happened, for people.

        Args:
            reason: what Ray reports of the actor; empty: its node is known to have died.

        Raises:
            RunFailedError: its actor fails at each start.
        """
        node, where = self._nodes.find(self.placement.node), self.placement.name
        log.info("the actor of %s on %s has ended: %s", self.name, where or "no node yet", reason)
        self.close()
        if where and (node is None or not self._nodes.check(node)):
            why = f"its node {where} died"
        else:
            why = f"its Ray actor {f'on {where} ' if where else ''}died: {reason}"
        self._lost = 0 if where else self._lost + 1
        if self._lost >= FAILED_STARTS:
            raise RunFailedError(f"the Ray actor of {self.name} cannot start: {reason}")
        self.left = self.placement.node or self.left
        self.place()
        return f"{why}; it starts again where there is room"

    def close(self) -> None:
        """End the actor, and the agent with it."""
        if self._actor is not None:
            self._cluster.kill(self._actor)

    def _show(self, **changes: object) -> None:
        self.placement = self.placement.model_copy(update={**changes, "since": time.time()})
