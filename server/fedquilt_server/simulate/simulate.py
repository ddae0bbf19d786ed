"""Simulate a federation on one machine: broker, coordinator and agents as separate, supervised processes."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedquilt_common.errors import BrokerUnreachableError, ExperimentError, RunFailedError, RunFolderError
from fedquilt_common.experiment.experiment import AgentSpec, Experiment, agent_specs, dump_experiment
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_common.files.durable import write_atomically
from fedquilt_common.files.locking import lock_folder
from fedquilt_common.privacy.noise_key import KEY_VARIABLE, store_key
from fedquilt_common.wire.broker_url import BROKER_PASSWORD, BrokerAddress, parse_broker_url
from fedquilt_common.wire.tls import tls_context
from fedquilt_server.runs.machine_setup import KEY_FOLDER
from fedquilt_server.runs.result_files import read_result, record_ending
from fedquilt_server.runs.run_folder import inspect_folder
from fedquilt_server.runs.stop_request import request_stop
from fedquilt_server.simulate.mosquitto import broker_command, free_port, wait_listening
from fedquilt_server.simulate.status_poll import StatusPoll
from fedquilt_server.simulate.supervisor import ChildSpec, Memory, Supervisor
from fedquilt_server.status.console import print_message
from fedquilt_server.status.results import RUNNING, Ending, Result
from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.status.terminal import ProgressDisplay

POLL_SECONDS: Final = 0.1
BROKER_SECONDS: Final = 5.0
"""How long a broker given by its URL may take to answer."""
OWN_BROKER_SECONDS: Final = 60.0
"""How long the broker that the simulation starts may take to listen; a busy board delays it for many seconds."""
STALL_SECONDS: Final = 10.0
"""A simulation whose failing clients prevent the quorum ends after this time; a restarted agent retries within it."""
LEAVE_SECONDS: Final = 10.0
"""How long the coordinator may take to record why the run ended."""


@dataclass(frozen=True)
class SimulationResult:
    """A finished simulation: its result, and of each process the peak resident memory in bytes and the restarts."""

    result: Result
    memory: dict[str, Memory]
    restarts: dict[str, int]


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
    """

    experiment: Experiment
    folder: Path
    page_port: int
    broker: str | None
    broker_port: int
    linger: float = 0.0
    python_path: tuple[str, ...] = ()
    keep_replies: bool = False

    @property
    def address(self) -> BrokerAddress:
        """The broker's address."""
        return parse_broker_url(self.broker or f"mqtt://127.0.0.1:{self.broker_port}")

    @property
    def federation(self) -> str:
        """A federation name that is unique to the folder, because two simulations may share a broker."""
        return f"simulation-{hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:8]}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment of all child processes. It holds the password, because every user can read a command line."""
        password = {BROKER_PASSWORD: self.address.password} if self.address.password else {}
        return {**os.environ, "PYTHONUNBUFFERED": "1", **self._python_path_variable(), **password}

    def _python_path_variable(self) -> dict[str, str]:
        inherited = os.environ.get("PYTHONPATH")
        paths = [*self.python_path, *([inherited] if inherited else [])]
        return {"PYTHONPATH": os.pathsep.join(paths)} if paths else {}

    @property
    def connection(self) -> tuple[str, ...]:
        """Command-line options that the coordinator and the agents share."""
        return ("--broker", self.address.without_password(), "--federation", self.federation)

    @property
    def page_url(self) -> str:
        """Address of the status page."""
        return f"http://127.0.0.1:{self.page_port}/"


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
        RunFolderError: the folder holds a finished run, or a run of another experiment.
        ExperimentError: the agents need samples of their own.
    """
    if experiment.data.delivery == "own":
        raise ExperimentError(
            "data.delivery = own: the agents that `simulate` starts have no samples of their own; run `fedquilt "
            "coordinator`, and `fedquilt agent --data CLIENT=FILE` on each board"
        )
    before = inspect_folder(folder)
    if before.experiment is not None and before.experiment != dump_experiment(experiment):
        raise RunFolderError(f"{folder} holds a run of another experiment: choose another --out")
    if before.finished:
        raise RunFolderError(f"{folder} holds a finished run: read its result.json, or choose another --out")
    return SimulationPlan(experiment, folder, port or free_port(), broker, free_port(), linger, python_path)


def run_with_progress(
    plan: SimulationPlan,
    should_stop: Callable[[], bool] = lambda: False,
    also: Callable[[Snapshot], None] = lambda _: None,
) -> SimulationResult | None:
    """Run a simulation as ``run_simulation`` does, with live progress on standard error.

    Args:
        plan: what to run, and where.
        should_stop: as in ``run_simulation``.
        also: called with each new snapshot of the run, too.
    """

    def show(snapshot: Snapshot) -> None:
        progress.show(snapshot)
        also(snapshot)

    with ProgressDisplay(plan.page_url, plan.experiment.rounds, plan.linger, should_stop) as progress:
        done = run_simulation(plan, show, should_stop, print_message, progress.stage)
        if done is not None:
            progress.finish(done.result.rounds)
    return done


def run_simulation(
    plan: SimulationPlan,
    show: Callable[[Snapshot], None],
    should_stop: Callable[[], bool] = lambda: False,
    report: Callable[[str], None] = lambda _: None,
    stage: Callable[[str], None] = lambda _: None,
) -> SimulationResult | None:
    """Run the simulation to its end, and restart each process that dies.

    Args:
        plan: what to run, and where.
        show: called with each new snapshot of the run.
        should_stop: called several times a second; the simulation stops early once it returns True.
        report: called with a sentence on each process that was restarted.
        stage: called with what happens before the run begins.

    Returns:
        The result, or None if ``should_stop`` stopped the simulation before its end.

    Raises:
        BrokerMissingError: there is no mosquitto program.
        BrokerUnreachableError: no broker answers at its address.
        FolderInUseError: another simulation runs in the folder.
        RunFolderError: the folder is damaged, or cannot be written.
        RunFailedError: a process fails again after each restart, or too many clients fail for a quorum.
    """
    with (
        report_disk_errors(plan.folder),
        lock_folder(plan.folder, wait=0, name=".simulate.lock"),
        Supervisor(plan.folder / "pids.json", report) as children,
    ):
        write_atomically(plan.folder / "experiment.yaml", dump_experiment(plan.experiment))
        if plan.experiment.central_privacy is not None:
            store_key(plan.folder / KEY_FOLDER, _fixed_key(plan, "coordinator"))
        if plan.broker is None:
            stage("Starting a broker")
            children.start(_broker_spec(plan))
        else:
            stage(f"Waiting for the broker at {plan.address.without_password()}")
        if not _await_broker(plan, children, should_stop):
            return None
        record_ending(plan.folder, plan.experiment, RUNNING)
        agents = agent_specs(plan.experiment.fleet, plan.experiment.speedup)
        stage(f"Starting the coordinator and {len(agents)} agent{'s' * (len(agents) != 1)}")
        children.start(_coordinator_spec(plan))
        for spec in agents:
            children.start(_agent_spec(plan, spec, len(agents)))
        stage(f"The coordinator loads {plan.experiment.data.set} and the model")
        try:
            ended = _watch(plan, children, show, should_stop)
        except RunFailedError as error:
            raise _end_failed_run(plan, children, error, should_stop, report) from None
        if not ended and not inspect_folder(plan.folder).finished:
            return None
        memory, restarts = children.memory(), children.restarts()
    return SimulationResult(read_result(plan.folder), memory, restarts)


def _await_broker(plan: SimulationPlan, children: Supervisor, should_stop: Callable[[], bool]) -> bool:
    """Wait until the broker accepts connections. It is supervised meanwhile: if it is killed, it is restarted.

    Returns False if ``should_stop`` ended the wait.
    """
    end = time.monotonic() + (OWN_BROKER_SECONDS if plan.broker is None else BROKER_SECONDS)
    tls = tls_context(plan.address) if plan.address.tls else None
    while not should_stop():
        children.watch()
        try:
            wait_listening(plan.address.host, plan.address.port, POLL_SECONDS, tls)
            return True
        except BrokerUnreachableError as error:
            if time.monotonic() >= end:
                advice = "Check that it is running, and check its address, its port and the firewall"
                raise BrokerUnreachableError(f"no MQTT broker answers at {plan.address}. {advice}") from error
    return False


def _watch(
    plan: SimulationPlan, children: Supervisor, show: Callable[[Snapshot], None], should_stop: Callable[[], bool]
) -> bool:
    """Supervise the processes until the run ends.

    Returns:
        False if ``should_stop`` ended it early.

    Raises:
        RunFailedError: a process fails again after each restart; or the run has failed, and ``should_stop`` ended the
            time for which its page stays.
    """
    with StatusPoll(plan.page_url) as page:
        last_poll = 0.0
        while not children.watch():
            stopped = should_stop()
            if stopped or time.monotonic() - last_poll > 3 * POLL_SECONDS:
                last_poll = time.monotonic()
                if (snapshot := page.fetch()) is not None:
                    show(snapshot)
                if stopped and snapshot is not None and snapshot.phase == "failed":
                    raise RunFailedError(snapshot.message)
            if stopped:
                return False
            time.sleep(POLL_SECONDS)
    return True


def _end_failed_run(
    plan: SimulationPlan,
    children: Supervisor,
    error: RunFailedError,
    should_stop: Callable[[], bool],
    report: Callable[[str], None],
) -> RunFailedError:
    """Return the error of a run that failed, after its coordinator has recorded and shown it.

    A coordinator that failed itself has done so, unless it failed before its run. If another process failed, the
    coordinator gets the reason.
    """
    ending = Ending(status="failed", reason=str(error), exit_code=error.exit_code)
    if children.is_running("coordinator"):
        request_stop(plan.folder, ending)
        if plan.linger:
            report(f"The run has failed. The page stays for {plan.linger:.0f} s; press Ctrl-C to leave now.")
        children.wait("coordinator", plan.linger + LEAVE_SECONDS, should_stop)
        return error
    result = read_result(plan.folder)
    if result.status != "failed":
        record_ending(plan.folder, plan.experiment, ending)
        return error
    recorded = RunFailedError(result.reason)
    recorded.exit_code = error.exit_code
    return recorded


def _broker_spec(plan: SimulationPlan) -> ChildSpec:
    argv = broker_command(plan.folder / "broker", plan.broker_port)
    return ChildSpec("broker", "broker", tuple(argv), plan.folder / "logs" / "broker.log")


def _fedquilt_command(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "fedquilt_common.cli", *arguments)


def _coordinator_spec(plan: SimulationPlan) -> ChildSpec:
    argv = _fedquilt_command(
        "coordinator", str(plan.folder / "experiment.yaml"), "--out", str(plan.folder), "--resume",
        "--port", str(plan.page_port), "--linger", str(plan.linger), "--patience", str(STALL_SECONDS),
        *plan.connection,
        *(["--keep-replies"] if plan.keep_replies else []),
    )  # fmt: skip
    return ChildSpec("coordinator", "coordinator", argv, plan.folder / "logs" / "coordinator.log", plan.environment)


def _agent_spec(plan: SimulationPlan, spec: AgentSpec, agents: int) -> ChildSpec:
    options = {
        "--id": spec.name,
        "--clients": f"{spec.clients[0]}-{spec.clients[-1]}",
        "--kind": spec.kind,
        **{f"--{name}": value for name, value in spec.options.items()},
        "--machine-agents": str(agents),
        "--state": str(plan.folder / "agents" / spec.name),
        "--allow-import": "*",
    }
    argv = _fedquilt_command("agent", *plan.connection, *(text for pair in options.items() for text in pair))
    environment = {KEY_VARIABLE: _fixed_key(plan, spec.name), **plan.environment}
    return ChildSpec(spec.name, "agent", argv, plan.folder / "logs" / f"{spec.name}.log", environment)


def _fixed_key(plan: SimulationPlan, process: str) -> str:
    """Return the key of a process's noise: simulated boards have no secrets, and own keys would give other bits."""
    return hashlib.sha256(f"{plan.experiment.seed} {process}".encode()).hexdigest()
