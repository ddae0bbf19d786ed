"""The command ``fedquilt coordinator``."""

from __future__ import annotations

import contextlib
import os
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from fedquilt_common.broker_options import BrokerCaOption, BrokerCertOption, BrokerKeyOption, ServedFederationOption
from fedquilt_common.command_app import CommandApp
from fedquilt_common.error_messages import RESUME
from fedquilt_common.errors import FedquiltError, RunFailedError, RunFolderError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment_file import load_experiment
from fedquilt_common.plurals import counted
from fedquilt_common.process.file_limit import raise_file_limit
from fedquilt_common.process.malloc import return_freed_memory
from fedquilt_common.process.signals import StopSignal
from fedquilt_common.types import Assignments
from fedquilt_common.user_imports import describe_sys_exit, print_to_stderr
from fedquilt_common.wire.broker_url import BROKER_PASSWORD, BrokerAddress, parse_broker_url
from fedquilt_common.wire.client_id import coordinator_client_id, keep_suffix
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.transport import MakeTransport
from fedquilt_server.coordinator.broker_wait import BROKER_SECONDS
from fedquilt_server.coordinator.claims import all_free
from fedquilt_server.coordinator.coordinator import STALL_SECONDS, Coordinator
from fedquilt_server.coordinator.display import show_finished
from fedquilt_server.provisioning.owners import InventoryFile, check_inventory, find_inventory
from fedquilt_server.run_options import (
    CoordinatorBrokerOption,
    CoordinatorBrokerWaitOption,
    CoordinatorHostOption,
    CoordinatorInventoryOption,
    CoordinatorPageOption,
    CoordinatorPatienceOption,
    CoordinatorPortOption,
    CoordinatorPublicPageOption,
    CoordinatorResumeOption,
    ExperimentFile,
    JsonResult,
    KeepReplies,
    LingerOption,
    Out,
    Set,
    print_control,
    print_remarks,
)
from fedquilt_server.runs.final_result import restore_result
from fedquilt_server.runs.page_address import PageAddress, note_page
from fedquilt_server.runs.run import ActiveRun
from fedquilt_server.runs.stop_request import StopRequest
from fedquilt_server.sinks.opening import Mlflow, TensorBoard, open_sinks
from fedquilt_server.status.console import print_message
from fedquilt_server.status.control import ControlRequest
from fedquilt_server.status.results import Ending
from fedquilt_server.status.snapshot import Snapshot, StatusStore
from fedquilt_server.status.summary import print_summary
from fedquilt_server.status.terminal import ProgressDisplay
from fedquilt_server.web.access import Access, choose_access
from fedquilt_server.web.connections import connection_limit
from fedquilt_server.web.options import AllowHost
from fedquilt_server.web.server import PageServer

app = CommandApp()

LINGER_STEP = 0.2
_STOPPED_BY_PERSON = f"somebody has stopped the run; {RESUME}. It ended after round"
_STOPPED = f"a signal stopped the coordinator; {RESUME}"


@app.command()
def coordinator(
    experiment: ExperimentFile,
    broker: CoordinatorBrokerOption,
    out: Out = None,
    set_: Set = None,
    resume: CoordinatorResumeOption = False,
    federation: ServedFederationOption = "default",
    host: CoordinatorHostOption = "127.0.0.1",
    port: CoordinatorPortOption = 8080,
    allow_host: AllowHost = None,
    page: CoordinatorPageOption = True,
    public_page: CoordinatorPublicPageOption = False,
    linger: LingerOption = 0.0,
    patience: CoordinatorPatienceOption = STALL_SECONDS,
    broker_wait: CoordinatorBrokerWaitOption = BROKER_SECONDS,
    keep_replies: KeepReplies = False,
    tensorboard: TensorBoard = None,
    mlflow: Mlflow = None,
    ca: BrokerCaOption = "",
    cert: BrokerCertOption = "",
    key: BrokerKeyOption = "",
    inventory: CoordinatorInventoryOption = None,
    json_: JsonResult = False,
) -> None:
    """Run the coordinator of an experiment against a broker; agents join from their boards.

    You can give the broker's password in FEDQUILT_BROKER_PASSWORD instead of the URL. FEDQUILT_PAGE_TOKEN is the token
    with which people control the run on the page; other machines need it to read the page, too.
    """
    address = parse_broker_url(broker).with_files(ca, cert, key).with_password(os.environ.get(BROKER_PASSWORD, ""))
    loaded = load_experiment(experiment, set_ or ())
    assignments = _assignments_of(inventory or find_inventory(cert), federation)
    folder = out or Path("runs") / loaded.name
    store, stop = StatusStore(Snapshot(connect=_agent_options(address, federation))), StopSignal()
    requests: queue.SimpleQueue[ControlRequest] = queue.SimpleQueue()
    access, shown_for = (choose_access(host, folder, public=public_page), linger) if page else (None, 0.0)
    pages = _serve_page(store, host, port, allow_host or (), access, requests, folder)
    with open_sinks(tensorboard, mlflow, loaded) as sinks, pages as url:
        progress = ProgressDisplay(url, loaded.rounds, shown_for, stop)
        with print_to_stderr(wanted=json_), progress, progress.follow(sinks.pass_on(lambda: store.current)):
            run = _load(loaded, folder, progress, url, resume=resume, keep_replies=keep_replies)
            if run.folder.closed:
                show_finished(run, store)
            else:
                transports = _transport_maker(address, federation, run.folder.path)
                made = Coordinator(run, federation, transports, store, assignments, patience, requests, broker_wait)
                _run_coordinator(made, store, stop, shown_for)
        if run.folder.finished:
            _show_result(run, json_, shown_for, stop)
    raise typer.Exit(run.ending.exit_code or 0)


def _load(
    experiment: Experiment, folder: Path, progress: ProgressDisplay, url: str, *, resume: bool, keep_replies: bool
) -> ActiveRun:
    """Load a run, show what of its model can be cut and which rounds are finished, and note where its page is.

    A finished run whose ``result.json`` is lost gets it again.
    """
    progress.stage(f"Loading {experiment.data.set} and the model")
    return_freed_memory()
    run = ActiveRun(experiment, folder, resume=resume, keep_replies=keep_replies)
    note_page(run.folder.path, PageAddress(url=url, run=run.folder.run))
    if run.folder.closed:
        restore_result(run.folder.path, run.result)
    if run.model_cut is not None:
        progress.stage(run.model_cut.summary)
    if run.machine.done:
        progress.stage(f"Resuming after round {run.machine.done}")
    progress.skip_rounds(run.machine.done)
    return run


def _run_coordinator(coordinator: Coordinator, store: StatusStore, stop: StopSignal, linger: float) -> None:
    """Run the coordinator, and record how its run ended. The page of a run that failed stays for ``linger`` seconds.

    Raises:
        FedquiltError: as ``Coordinator.execute``.
    """
    run = coordinator.run
    request = StopRequest(run.folder.path)
    try:
        coordinator.execute(lambda: stop() or request())
    except FedquiltError as error:
        _end(run, store, Ending(status="failed", reason=str(error), exit_code=error.exit_code))
        if isinstance(error, RunFailedError):
            _linger(linger, stop)
        raise
    except SystemExit as error:
        reason = f"the experiment's code {describe_sys_exit(error, '')}, and {RESUME}"
        _end(run, store, Ending(status="failed", reason=reason, exit_code=RunFailedError.exit_code))
        raise RunFailedError(reason) from error
    except Exception as error:
        _end(run, store, Ending(status="failed", reason=f"{type(error).__name__}: {error}", exit_code=1))
        raise
    if run.folder.finished:
        return None
    if coordinator.was_stopped:
        _end(run, store, Ending(status="stopped", reason=f"{_STOPPED_BY_PERSON} {run.machine.done}", exit_code=0))
        return _linger(linger, stop)
    _end(run, store, request.ending or Ending(status="stopped", reason=_STOPPED, exit_code=stop.exit_code))
    if request.ending is not None:
        _linger(linger, stop)
    return request.drop()


def _end(run: ActiveRun, store: StatusStore, ending: Ending) -> None:
    """Show and record how the run ended, as far as the disk allows.

    Raises:
        RunFolderError: the run folder was removed meanwhile.
    """
    run.folder.check_present()
    store.update(phase=ending.status, message=ending.reason)
    with contextlib.suppress(RunFolderError):  # the error of the run itself matters more
        run.end(ending, store.current.boards)
        store.update(events=run.history.events)


@contextmanager
def _serve_page(
    store: StatusStore,
    host: str,
    port: int,
    names: Sequence[str],
    access: Access | None,
    requests: queue.SimpleQueue[ControlRequest],
    folder: Path,
) -> Iterator[str]:
    """Serve the status page until the block ends; yields its address, empty if it is not served (no ``access``)."""
    connections = connection_limit(raise_file_limit())
    if access is None:
        yield ""
        return
    server = PageServer(store, host, port, names, connections, access, requests.put, folder)
    server.start()
    print_control(server.url, access)
    try:
        yield server.url
    finally:
        server.stop()


def _agent_options(address: BrokerAddress, federation: str) -> str:
    """Return the options with which an agent finds the broker and the federation."""
    return f"--broker {address.without_password()} --federation {federation}"


def _assignments_of(inventory: Path | None, federation: str) -> Callable[[], Assignments]:
    """Return a function that reads an inventory's assignments, and print which inventory it reads."""
    if inventory is None:
        return all_free
    file = InventoryFile(inventory)
    check_inventory(inventory, federation)
    owners = file.assignments().owners
    clients, boards = counted(len(owners), "client"), counted(len(set(owners.values())), "board")
    print_message(f"The inventory {inventory} assigns {clients} to {boards}")
    return file.assignments


def _transport_maker(address: BrokerAddress, federation: str, folder: Path) -> MakeTransport:
    client_id = coordinator_client_id(federation, keep_suffix(folder))
    return lambda deliver, will: MqttTransport(address, client_id, deliver, will=will)


def _show_result(run: ActiveRun, as_json: bool, linger: float, stop: StopSignal) -> None:
    """Print the result of a finished run; its page stays for ``linger`` seconds."""
    if as_json:
        typer.echo(run.result().model_dump_json(indent=2))
        print_message(f"The run folder is {run.folder.path}")
        print_remarks(run.result())
    else:
        print_summary(run.result(), run.folder.path, {})
    _linger(linger, stop)


def _linger(seconds: float, stop: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stop():
        time.sleep(LINGER_STEP)


@app.callback()
def group() -> None:
    """Keep ``coordinator`` a sub-command."""


def run(arguments: list[str]) -> None:
    """Run one command with its arguments."""
    app(arguments, prog_name="fedquilt")
