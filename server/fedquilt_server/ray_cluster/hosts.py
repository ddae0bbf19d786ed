"""Prepare a simulation whose agents run on a Ray cluster: check the cluster, and secure the broker of the run."""

from __future__ import annotations

import base64
import hashlib
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Final

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import AgentSpec, agent_specs
from fedquilt_common.files.durable import write_atomically
from fedquilt_common.wire.client_id import instance_of, keep_suffix
from fedquilt_server.provisioning.authority import issue_certificate, make_authority
from fedquilt_server.ray_cluster.address import resolve_address
from fedquilt_server.ray_cluster.check import look_at
from fedquilt_server.ray_cluster.fitness import check_nodes, check_room, choose_nodes, modules_of, resources_of
from fedquilt_server.ray_cluster.library import Node, check_installed
from fedquilt_server.ray_cluster.memory import refuse_private_memory
from fedquilt_server.ray_cluster.requests import REQUEST, AgentRequest, HostRequest
from fedquilt_server.simulate.child_process import ChildSpec
from fedquilt_server.simulate.mosquitto import free_port
from fedquilt_server.simulate.plan import SimulationPlan
from fedquilt_server.simulate.process_specs import agent_options, fixed_key
from fedquilt_server.simulate.secure_listener import USER, SecureListener
from fedquilt_server.status.placement import PlacementReader
from fedquilt_server.status.run_file_names import LOGS

_PLACER: Final = "fedquilt_server.ray_cluster.placer"
_RUN_DAYS: Final = 366
_HASH_ROUNDS: Final = 1000
IDLE_SECONDS: Final = 5.0
"""How long a training process may have no task: a node may host many agents, and another fork starts at once."""
_NO_MEMORY: Final = "They keep no private memory: what they were training starts again, and the result is the same"


@dataclass
class RayHosts:
    """Hosts the agents of a simulation on a Ray cluster.

    Args:
        cluster: address of the cluster.
        nodes: the nodes that can host agents.
        shared: a folder that all nodes share, for the agents' state; empty: each node's own.
        ca: of the broker, in PEM; empty: those of the nodes' systems.
    """

    cluster: str
    nodes: Sequence[Node]
    shared: str
    ca: str
    _reader: PlacementReader | None = field(default=None, init=False)

    def spec(self, plan: SimulationPlan) -> ChildSpec:
        """Describe the process that hosts the agents, and write its request."""
        folder = plan.folder.resolve()
        agents = agent_specs(plan.experiment.fleet, plan.experiment.speedup)
        each = -(-len(agents) // len(self.nodes))
        request = HostRequest(
            cluster=self.cluster,
            home=f"fedquilt-{instance_of(keep_suffix(folder))}",
            shared=self.shared,
            kept=f"Their private memory is in {self.shared}, which all nodes share" if self.shared else _NO_MEMORY,
            modules=modules_of(plan.experiment),
            nodes=[node.id for node in self.nodes],
            broker=(plan.address.host, plan.address.port),
            connection=["--broker", plan.address.without_password(), "--federation", plan.federation],
            ca=self.ca,
            agents=[_request_agent(plan, spec, each) for spec in agents],
        )
        write_atomically(folder / REQUEST, request.model_dump_json(indent=2) + "\n")
        empty = folder / "ray"  # Ray gives the nodes the working directory to import from
        empty.mkdir(exist_ok=True)
        argv = (sys.executable, "-m", _PLACER, str(folder))
        return ChildSpec("ray", "ray", argv, plan.folder / LOGS / "ray.log", plan.environment, folder=empty)

    def news(self, plan: SimulationPlan) -> list[str]:
        """Return what has happened to the agents' places."""
        if self._reader is None:
            self._reader = PlacementReader(plan.folder)
        self._reader.refresh()
        return [news.text for news in self._reader.take_news() if news.agent is None]


def _request_agent(plan: SimulationPlan, spec: AgentSpec, machine_agents: int) -> AgentRequest:
    needs = resources_of(spec)
    return AgentRequest(
        name=spec.name,
        clients=list(spec.clients),
        options=[*agent_options(spec, machine_agents), "--idle", f"{IDLE_SECONDS:g}"],
        noise_key=fixed_key(plan, spec.name),
        cpus=needs.cpus,
        memory=needs.memory,
        gpus=needs.gpus,
    )


def host_on_ray(plan: SimulationPlan, address: str, shared: Path | None) -> SimulationPlan:
    """Return the plan with its agents on a Ray cluster, after all has been checked that can be checked before.

    Args:
        plan: a simulation on this machine.
        address: as ``--ray`` gives it.
        shared: a folder that all nodes share; None: there is none.

    Raises:
        PackageMissingError: Ray is not installed.
        ExperimentError: the address is not valid, or the clients keep private memory and there is no shared folder.
        RayClusterError: there is no cluster, or it has no room.
        RayNodeError: a node has no fedquilt, or another version.
    """
    check_installed()
    cluster = resolve_address(address)
    if shared is None:
        refuse_private_memory(plan.experiment)
    elif not shared.is_dir():
        raise ExperimentError(f"--ray-state {shared}: there is no such folder; create it where all nodes have it")
    folder = str(shared.resolve()) if shared is not None else ""
    report = look_at(cluster, folder, modules_of(plan.experiment))
    nodes = choose_nodes(report.read_nodes())
    check_nodes(nodes, report.facts, folder)
    check_room(agent_specs(plan.experiment.fleet), nodes)
    if plan.broker is not None:
        return replace(plan, hosts=RayHosts(cluster, nodes, folder, ""))
    listener = make_listener(report.address)
    port = free_port(report.address)
    return replace(plan, hosts=RayHosts(cluster, nodes, folder, listener.ca), listener=listener, broker_port=port)


def make_listener(host: str) -> SecureListener:
    """Return a listener with a password and a certificate that are made now, for one start of a run."""
    now = datetime.now(timezone.utc)
    authority = make_authority("run", now)
    broker = issue_certificate(authority, "broker", now + timedelta(days=_RUN_DAYS), [host])
    password = secrets.token_urlsafe(32)
    return SecureListener(
        host=host,
        ca=authority.certificate_pem,
        certificate=broker.certificate_pem,
        password=password,
        key=broker.key_pem,
        password_line=hash_password(password),
    )


def hash_password(password: str) -> str:
    """Return the line of ``USER`` in Mosquitto's password file: PBKDF2 with SHA-512, for Mosquitto 2.0 and 2.1."""
    salt = secrets.token_bytes(12)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _HASH_ROUNDS)
    parts = (base64.b64encode(part).decode() for part in (salt, digest))
    return f"{USER}:$7${_HASH_ROUNDS}${'$'.join(parts)}\n"
