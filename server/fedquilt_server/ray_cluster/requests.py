"""What the process that hosts the agents reads, and what the check of a cluster prints."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from fedquilt_server.ray_cluster.library import Node, Resources

REQUEST: Final = "ray.json"
"""The file in the run folder."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class AgentRequest(_Frozen):
    """An agent to host: its clients, the options of its command, its key of noise, and what it needs."""

    name: str
    clients: list[int]
    options: list[str]
    noise_key: str
    cpus: float
    memory: int
    gpus: float

    @property
    def resources(self) -> Resources:
        """What Ray reserves for it."""
        return Resources(self.cpus, self.memory, self.gpus)


class HostRequest(_Frozen):
    """All that the process that hosts the agents needs; the broker's password is in its environment.

    Attributes:
        cluster: address of the cluster.
        home: name of the folder on each node that has the agents' state.
        shared: a folder that all nodes share, which has it instead; empty: none.
        kept: what a dead node's agents keep or lose, as a sentence.
        modules: what agents import, for nodes that join later.
        nodes: ids of the nodes that can host agents.
        broker: host and port of the broker.
        connection: the options of all agents that lead to the broker.
        ca: of the broker, in PEM; empty: those of the system.
    """

    cluster: str
    home: str
    shared: str
    kept: str
    modules: list[str]
    nodes: list[str]
    broker: tuple[str, int]
    connection: list[str]
    ca: str
    agents: list[AgentRequest]

    @staticmethod
    def read(folder: Path) -> HostRequest:
        """Read the file of a run folder."""
        return HostRequest.model_validate_json((folder / REQUEST).read_bytes())


class ClusterReport(_Frozen):
    """What the check of a cluster has found: this machine's address, the nodes, and what each reports."""

    address: str
    nodes: list[dict[str, Any]] = Field(default_factory=list)
    facts: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @staticmethod
    def of(address: str, nodes: list[Node], facts: dict[str, dict[str, Any]]) -> ClusterReport:
        """Return the report on these nodes."""
        return ClusterReport(address=address, nodes=[asdict(node) for node in nodes], facts=facts)

    def read_nodes(self) -> list[Node]:
        """Return the nodes."""
        return [Node(**{**raw, "resources": Resources(**raw["resources"])}) for raw in self.nodes]
