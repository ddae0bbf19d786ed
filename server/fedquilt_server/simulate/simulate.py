"""Simulate a federation on one machine: broker, coordinator and agents as separate, supervised processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedquilt_common.errors import BrokerUnreachableError, RunFailedError, RunFolderError
from fedquilt_common.experiment.experiment import dump_experiment
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_common.files.durable import write_atomically
from fedquilt_common.files.locking import lock_folder
from fedquilt_common.plurals import counted
from fedquilt_common.privacy.noise_key import store_key
from fedquilt_common.wire.tls import tls_context
from fedquilt_server.runs.result_files import read_result, record_ending
from fedquilt_server.runs.run_folder import SIMULATION_LOCK, inspect_folder
from fedquilt_server.runs.stop_request import request_stop
from fedquilt_server.simulate.fork_servers import ForkServers, open_fork_servers
from fedquilt_server.simulate.limited_boards import LimitedBoards, limit_boards
from fedquilt_server.simulate.memory_samples import Memory
from fedquilt_server.simulate.mosquitto import wait_listening
from fedquilt_server.simulate.plan import SimulationPlan
from fedquilt_server.simulate.process_specs import agent_child_specs, broker_spec, coordinator_spec, fixed_key
from fedquilt_server.simulate.supervisor import Supervisor
from fedquilt_server.status.console import print_message
from fedquilt_server.status.results import RUNNING, Ending, Result, RoundResult
from fedquilt_server.status.run_file_names import EXPERIMENT
from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.status.terminal import ProgressDisplay

POLL_SECONDS: Final = 0.1
BROKER_SECONDS: Final = 5.0
"""How long a broker given by its URL may take to answer."""
OWN_BROKER_SECONDS: Final = 60.0
"""How long the broker that the simulation starts may take to listen; a busy board delays it for many seconds."""
LEAVE_SECONDS: Final = 10.0
"""How long the coordinator may take to record why the run ended."""


@dataclass(frozen=True)
class SimulationResult:
    """A finished simulation: its result, and of each process the peak resident memory in bytes and the restarts."""

    result: Result
    memory: dict[str, Memory]
    restarts: dict[str, int]


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
        if rounds := len(read_finished_rounds(plan.folder)):
            progress.stage(f"Resuming after round {rounds}")
        progress.skip_rounds(rounds)
        try:
            done = run_simulation(plan, show, should_stop, print_message, progress.stage)
        except RunFailedError:
            progress.print_missing(read_finished_rounds(plan.folder))
            raise
        if done is not None:
            progress.finish(done.result.rounds)
    return done


def read_finished_rounds(folder: Path) -> Sequence[RoundResult]:
    """Return the rounds in the result file of a run folder; none if it has no file that can be read."""
    try:
        return read_result(folder).rounds
    except RunFolderError:
        return ()


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
        lock_folder(plan.folder, wait=0, name=SIMULATION_LOCK),
        limit_boards(plan, report) as boards,
        open_fork_servers(plan, report) as servers,
        Supervisor(plan.folder / "pids.json", report) as children,
    ):
        if not _start_all(plan, children, servers, boards, should_stop, stage):
            return None
        try:
            ended = _watch(plan, children, show, should_stop, report)
        except RunFailedError as error:
            raise _end_failed_run(plan, children, error, should_stop, report) from None
        if not ended and not inspect_folder(plan.folder).finished:
            return None
        children.sample_memory()  # they may all have done their work since the last look
        memory, restarts = children.memory(), children.restarts()
    return SimulationResult(read_ended(plan), memory, restarts)


def read_ended(plan: SimulationPlan) -> Result:
    """Return the result of a run that is finished or was stopped; its coordinator ended with exit code 0.

    Raises:
        RunFailedError: it ended before its run, as when a user's code ends the process.
    """
    result = read_result(plan.folder)
    if result.status in ("finished", "stopped"):  # somebody may stop it on its page
        return result
    error = RunFailedError(
        f"the coordinator ended after round {len(result.rounds)} of {plan.experiment.rounds}, before its run was "
        f"finished; read its log, {coordinator_spec(plan).log}, and run the same command again to resume"
    )
    record_ending(plan.folder, plan.experiment, Ending(status="failed", reason=str(error), exit_code=error.exit_code))
    raise error


def _start_all(
    plan: SimulationPlan,
    children: Supervisor,
    servers: ForkServers,
    boards: LimitedBoards,
    should_stop: Callable[[], bool],
    stage: Callable[[str], None],
) -> bool:
    """Start the processes; returns False if ``should_stop`` ended the wait for the broker."""
    write_atomically(plan.folder / EXPERIMENT, dump_experiment(plan.experiment))
    if plan.experiment.central_privacy is not None:
        from fedquilt_server.runs.machine_setup import KEY_FOLDER

        store_key(plan.folder / KEY_FOLDER, fixed_key(plan, "coordinator"))
    children.start(*servers.specs)  # they load their modules while the broker starts
    if plan.broker is None:
        stage("Starting a broker")
        children.start(broker_spec(plan))
    else:
        stage(f"Waiting for the broker at {plan.address.without_password()}")
    if not _await_broker(plan, children, should_stop):
        return False
    record_ending(plan.folder, plan.experiment, RUNNING)
    agents = agent_child_specs(plan, servers, boards)
    count = sum(line.agents for line in plan.experiment.fleet)
    stage(f"Starting the coordinator and {counted(count, 'agent')}")
    children.start(coordinator_spec(plan))
    children.start(*agents)
    stage(f"The coordinator loads {plan.experiment.data.set} and the model")
    return True


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
    plan: SimulationPlan,
    children: Supervisor,
    show: Callable[[Snapshot], None],
    should_stop: Callable[[], bool],
    report: Callable[[str], None],
) -> bool:
    """Supervise the processes until the run ends.

    Returns:
        False if ``should_stop`` ended it early.

    Raises:
        RunFailedError: a process fails again after each restart; or the run has failed, and ``should_stop`` ended the
            time for which its page stays.
    """
    from fedquilt_server.simulate.status_poll import StatusPoll  # loaded while the processes load their modules

    with StatusPoll(plan.page_url) as page:
        last_poll = 0.0
        while not children.watch():
            stopped = should_stop()
            if stopped or time.monotonic() - last_poll > 3 * POLL_SECONDS:
                last_poll = time.monotonic()
                _report_news(plan, report)
                if (snapshot := page.fetch()) is not None:
                    show(snapshot)
                if stopped and snapshot is not None and snapshot.phase == "failed":
                    raise RunFailedError(snapshot.message)
            if stopped:
                return False
            time.sleep(POLL_SECONDS)
    _report_news(plan, report)
    return True


def _report_news(plan: SimulationPlan, report: Callable[[str], None]) -> None:
    """Report what has happened to agents on other machines."""
    for sentence in plan.hosts.news(plan) if plan.hosts is not None else ():
        report(sentence)


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
