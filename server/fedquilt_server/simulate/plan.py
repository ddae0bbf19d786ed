"""What to simulate, and where: the folder, the ports and the broker."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from fedquilt_common.errors import ExperimentError, RunFolderError
from fedquilt_common.experiment.experiment import Experiment, dump_experiment
from fedquilt_common.process.python_path import python_path_variable
from fedquilt_common.wire.broker_url import BROKER_PASSWORD, BrokerAddress, parse_broker_url
from fedquilt_server.runs.final_result import is_finished
from fedquilt_server.runs.other_experiment import CHOOSE, name_other_experiment
from fedquilt_server.runs.run_folder import check_foreign_files, inspect_folder
from fedquilt_server.simulate.child_process import ChildSpec
from fedquilt_server.simulate.mosquitto import free_port
from fedquilt_server.simulate.secure_listener import SecureListener
from fedquilt_server.status.page_listener import await_port

PAGE_HOST: Final = "127.0.0.1"
PORT_SECONDS: Final = 5.0
"""How long the coordinator of a simulation that was killed may take to free the port of its page."""


@dataclass(frozen=True)
class SimulationPlan:
    """The folder, ports and broker of a simulation.

    Args:
        experiment: the experiment to run.
        folder: the run folder.
        page_port: port of the status page.
        broker: URL of the broker to use; None starts a Mosquitto.
        broker_port: port of the Mosquitto that is started.
        linger: seconds for which the page stays after the run.
        python_path: folders with a user's packages, for the coordinator and the agents; searched before PYTHONPATH.
        keep_replies: keep the replies of closed rounds in the run folder.
        limits: enforce the fleet's memory and processors, where the user may create control groups.
        forks: start agents and training processes as forks, where the system can.
        listener: where the Mosquitto that is started listens for other machines; None: on loopback only.
        hosts: what hosts the agents elsewhere; None: they are processes of this machine.
    """

    experiment: Experiment
    folder: Path
    page_port: int
    broker: str | None
    broker_port: int
    linger: float = 0.0
    python_path: tuple[str, ...] = ()
    keep_replies: bool = False
    limits: bool = True
    forks: bool = True
    listener: SecureListener | None = None
    hosts: AgentHosts | None = None

    @property
    def broker_folder(self) -> Path:
        """Folder of the files of the Mosquitto that is started."""
        return self.folder / "broker"

    @property
    def address(self) -> BrokerAddress:
        """The broker's address."""
        if self.broker is None and self.listener is not None:
            return self.listener.address(self.broker_port, self.broker_folder)
        return parse_broker_url(self.broker or f"mqtt://127.0.0.1:{self.broker_port}")

    @property
    def federation(self) -> str:
        """A federation name that is unique to the folder, because two simulations may share a broker."""
        return f"simulation-{hashlib.sha256(os.fsencode(self.folder.resolve())).hexdigest()[:8]}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment of all child processes. It holds the password, because every user can read a command line."""
        password = {BROKER_PASSWORD: self.address.password} if self.address.password else {}
        return {**os.environ, "PYTHONUNBUFFERED": "1", **python_path_variable(self.python_path), **password}

    @property
    def connection(self) -> tuple[str, ...]:
        """Command-line options that the coordinator and the agents share."""
        ca = ("--ca", self.address.ca) if self.address.ca else ()
        return ("--broker", self.address.without_password(), "--federation", self.federation, *ca)

    @property
    def page_url(self) -> str:
        """Address of the status page."""
        return f"http://{PAGE_HOST}:{self.page_port}/"


class AgentHosts(Protocol):
    """Hosts the agents of a simulation elsewhere."""

    def spec(self, plan: SimulationPlan) -> ChildSpec:
        """Describe the process on this machine that starts and watches the agents, and write what it needs."""

    def news(self, plan: SimulationPlan) -> Sequence[str]:
        """Return sentences on what has happened since the last call."""


def new_run_folder(name: str) -> Path:
    """Return a folder below ``runs/`` that does not exist yet, named ``name`` and the time."""
    first = Path("runs") / time.strftime(f"{name}-%Y%m%d-%H%M%S")
    folder, number = first, 2
    while folder.exists():
        folder, number = first.with_name(f"{first.name}-{number}"), number + 1
    return folder


def make_plan(
    experiment: Experiment,
    folder: Path,
    broker: str | None = None,
    port: int = 0,
    linger: float = 0.0,
    python_path: tuple[str, ...] = (),
) -> SimulationPlan:
    """Check the folder and choose the ports.

    Args:
        experiment: the experiment to run.
        folder: the run folder; an interrupted run of the same experiment is resumed.
        broker: URL of a broker; None starts a Mosquitto.
        port: port of the status page; 0 chooses a free one.
        linger: seconds for which the page stays after the run.
        python_path: folders with a user's packages, as in ``SimulationPlan``.

    Raises:
        RunFolderError: the folder holds a finished run, a run of another experiment, or other files.
        ExperimentError: the agents need samples of their own, or the URL is not valid.
        PortInUseError: another program uses the port.
        PageAddressError: this machine cannot listen on the port.
    """
    if experiment.data.delivery == "own":
        raise ExperimentError(
            "data.delivery = own: the agents that `simulate` starts have no samples of their own; run `fedquilt "
            "coordinator`, and `fedquilt agent --data CLIENT=FILE` on each board"
        )
    if broker is not None:
        parse_broker_url(broker)  # refuses one that is not valid before the folder is made
    check_foreign_files(folder)
    if other := name_other_experiment(folder, inspect_folder(folder).experiment, dump_experiment(experiment)):
        raise RunFolderError(f"{other}: {CHOOSE}")
    if is_finished(folder):
        raise RunFolderError(f"{folder} holds a finished run: read its result.json, or choose another --out")
    if port:
        await_port(PAGE_HOST, port, PORT_SECONDS)
    return SimulationPlan(experiment, folder, port or free_port(), broker, free_port(), linger, python_path)
