"""The commands and environments of the processes of a simulation."""

from __future__ import annotations

import hashlib
import sys
from typing import Final

from fedquilt_common.errors import BrokerUnreachableError
from fedquilt_common.experiment.experiment import AgentSpec, agent_specs
from fedquilt_common.privacy.noise_key import KEY_VARIABLE
from fedquilt_server.simulate.child_process import FINAL_CODES, ChildSpec
from fedquilt_server.simulate.fork_servers import ForkServers
from fedquilt_server.simulate.limited_boards import LimitedBoards
from fedquilt_server.simulate.mosquitto import broker_command
from fedquilt_server.simulate.plan import SimulationPlan
from fedquilt_server.status.run_file_names import EXPERIMENT, LOGS

FORK_IDLE_SECONDS: Final = 30.0
"""How long a forked training process may have no task: another fork takes a tenth of a second."""
COORDINATOR_FINAL_CODES: Final = FINAL_CODES | {BrokerUnreachableError.exit_code}
"""A coordinator waits for a broker that may come; it ends for one that does not, or that refuses it."""
STALL_SECONDS: Final = 10.0
"""A simulation whose failing clients prevent the quorum ends after this time; a restarted agent retries within it."""


def broker_spec(plan: SimulationPlan) -> ChildSpec:
    """Describe the Mosquitto of a simulation, and write its configuration."""
    folder, listener = plan.broker_folder, plan.listener
    folder.mkdir(parents=True, exist_ok=True)
    if listener is not None:
        listener.write(folder)
    argv = broker_command(
        folder, plan.broker_port, () if listener is None else listener.config(folder, plan.broker_port)
    )
    log = plan.folder / LOGS / "broker.log"
    return ChildSpec("broker", "broker", tuple(argv), log, final_codes=frozenset())  # Mosquitto has other exit codes


def _fedquilt_command(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "fedquilt_common.cli", *arguments)


def coordinator_spec(plan: SimulationPlan) -> ChildSpec:
    """Describe the coordinator; it resumes the run in the folder, if there is one."""
    argv = _fedquilt_command(
        "coordinator", str(plan.folder / EXPERIMENT), "--out", str(plan.folder), "--resume",
        "--port", str(plan.page_port), "--linger", str(plan.linger), "--patience", str(STALL_SECONDS),
        *plan.connection,
        *(["--keep-replies"] if plan.keep_replies else []),
    )  # fmt: skip
    log = plan.folder / LOGS / "coordinator.log"
    return ChildSpec("coordinator", "coordinator", argv, log, plan.environment, final_codes=COORDINATOR_FINAL_CODES)


def agent_child_specs(plan: SimulationPlan, servers: ForkServers, boards: LimitedBoards) -> list[ChildSpec]:
    """Describe the agents of the fleet; fork servers start them and their training processes, if there are any.

    A board whose limits are enforced is not forked: the kernel counts a page for the group that has first used it.
    """
    if plan.hosts is not None:
        return [plan.hosts.spec(plan)]
    agents = agent_specs(plan.experiment.fleet, plan.experiment.speedup)
    own = ForkServers()
    specs = [_agent_spec(plan, one, len(agents), own if boards.is_enforced(one.name) else servers) for one in agents]
    return [boards.limit(spec) for spec in specs]


def agent_options(spec: AgentSpec, machine_agents: int) -> list[str]:
    """Return the options of an agent's command that do not depend on where it runs.

    Args:
        spec: the agent.
        machine_agents: agents on its machine.
    """
    options = {
        "--id": spec.name,
        "--clients": f"{spec.clients[0]}-{spec.clients[-1]}",
        "--kind": spec.kind,
        **{f"--{name}": value for name, value in spec.options.items()},
        "--machine-agents": str(machine_agents),
        "--allow-import": "*",
    }
    return [*(text for pair in options.items() for text in pair), *(f"--{name}" for name in spec.flags)]


def _agent_spec(plan: SimulationPlan, spec: AgentSpec, agents: int, servers: ForkServers) -> ChildSpec:
    own = ["--state", str(plan.folder / "agents" / spec.name)]
    own += ["--idle", f"{FORK_IDLE_SECONDS:g}"] if servers.specs else []
    argv = _fedquilt_command("agent", *plan.connection, *agent_options(spec, agents), *own)
    environment = {KEY_VARIABLE: fixed_key(plan, spec.name), **plan.environment, **servers.agent_environment}
    log = plan.folder / LOGS / f"{spec.name}.log"
    return ChildSpec(spec.name, "agent", argv, log, environment, fork_server=servers.agent_socket)


def fixed_key(plan: SimulationPlan, process: str) -> str:
    """Return the key of a process's noise: simulated boards have no secrets, and own keys would give other bits."""
    return hashlib.sha256(f"{plan.experiment.seed} {process}".encode()).hexdigest()
