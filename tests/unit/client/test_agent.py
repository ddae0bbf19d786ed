"""An agent on a real broker, with the test in the coordinator's place."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tests.support.agents import failures, plus, presences, same
from tests.support.memory_transport import MemoryBroker, MemoryTransport

from fedquilt_client import agent as agent_module
from fedquilt_client import uploads
from fedquilt_client.jobs import Jobs
from fedquilt_client.settings import AgentSettings
from fedquilt_client.store import AgentStore
from fedquilt_client.worker_pool import WorkerPool
from fedquilt_common.files.file_stamp import FileStamp, stamp
from fedquilt_common.training_jobs import Job
from fedquilt_common.wire.bitmaps import encode_bitmap
from fedquilt_common.wire.messages import (
    REPLY_KEY,
    CoordinatorPresence,
    EndMessage,
    MissingMessage,
    ReceiptMessage,
    ReplyHeader,
    StopMessage,
)
from fedquilt_common.wire.round_messages import PatchMessage, RoundMessage, TaskMessage
from fedquilt_common.wire.topics import Topics

if TYPE_CHECKING:
    from tests.unit.client.conftest import Host, Kit, Peer

Wait = Callable[..., Any]


@pytest.fixture
def _late_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent sends a chunk by itself to ask for a receipt, however slow the machine is."""
    monkeypatch.setattr(uploads, "FIRST_PROBE_SECONDS", 1e6)


def test_tasks_are_answered_for_all_clients_hosted_here(peer: Peer, host: Host, kit: Kit, wait_for: Wait) -> None:
    peer.publish(peer.topics.run, kit.run())
    message = peer.open("run-1", 1, kit.blob(), [0, 1, 3])
    with host(clients=(0, 1)):
        for client in (0, 1):
            reply = peer.reply(client, 1)
            assert same(reply, plus(0.5, kit))
            header = ReplyHeader.model_validate_json(reply.metadata[REPLY_KEY])
            assert (header.run, header.client, header.round, header.exchange) == ("run-1", client, 1, 0)
            assert header.task == message.fingerprint(message.tasks[0], 0)
        second = kit.blob(plus(0.5, kit), "second")
        peer.open("run-1", 2, second, [1])
        assert same(peer.reply(1, 2), plus(1.0, kit))
    assert not peer.chunks(3, 1)
    assert not peer.chunks(0, 2)


def test_a_run_without_some_clients_of_this_agent_is_reported_once(
    peer: Peer, host: Host, kit: Kit, wait_for: Wait, caplog: pytest.LogCaptureFixture
) -> None:
    """The kit's experiment has clients 0 to 3."""
    caplog.set_level(logging.INFO, "fedquilt_client")
    with host(clients=(3, 4, 9)):
        for run in ("run-1", "run-1", "run-2"):
            peer.publish(peer.topics.run, kit.run(run))  # retained: an agent that subscribes late gets the last one
            wait_for(lambda run=run: f"{run} has clients" in caplog.text, f"the warning of {run}")
    with host(clients=(0, 3)):
        wait_for(lambda: caplog.text.count("run-2: echo") == 2, "the run")
    assert [line for line in caplog.messages if "get no tasks" in line] == [
        f"the experiment of run {run} has clients 0 to 3 only, so this agent's clients 4, 9 get no tasks: change "
        "`clients` of this agent, or `data.clients` in the experiment"
        for run in ("run-1", "run-2")
    ]


@pytest.mark.usefixtures("_late_probes")
def test_a_repeated_task_is_answered_from_the_store(
    peer: Peer, host: Host, kit: Kit, wait_for: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer.publish(peer.topics.run, kit.run())
    peer.open("run-1", 1, kit.blob(), [0])
    with host():
        peer.reply(0, 1, accept=False)
    before = peer.chunks(0, 1)
    jobs: list[Job] = []
    monkeypatch.setattr(WorkerPool, "submit", lambda _, job: jobs.append(job))
    with host():
        wait_for(lambda: len(peer.chunks(0, 1)) == 2 * len(before), "the same reply again")
        assert peer.chunks(0, 1)[len(before) :] == before
        peer.accept(0, 1)
        peer.open("run-1", 1, kit.blob(), [0], scalars={"lr": 0.1})  # another question is another task
        wait_for(lambda: jobs, "a job")
    assert [(job.round, job.scalars) for job in jobs] == [(1, {"lr": 0.1})]


def test_a_job_says_that_its_patch_has_just_been_verified(
    peer: Peer, host: Host, kit: Kit, wait_for: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamps: list[tuple[FileStamp | None, FileStamp | None]] = []
    monkeypatch.setattr(WorkerPool, "submit", lambda _, job: stamps.append(_stamps_of(job)))
    peer.publish(peer.topics.run, kit.run())
    with host():
        peer.open("run-1", 1, kit.blob(), [0])
        wait_for(lambda: stamps, "a job")
    ((said, found),) = stamps
    assert said is not None
    assert said == found


def _stamps_of(job: Job) -> tuple[FileStamp | None, FileStamp | None]:
    (patch,) = job.patches
    return patch.intact, stamp(patch.path)


@pytest.mark.usefixtures("_late_probes")
def test_missing_chunks_are_sent_again(peer: Peer, host: Host, kit: Kit, wait_for: Wait) -> None:
    peer.publish(peer.topics.run, kit.run())
    peer.open("run-1", 1, kit.blob(), [0])
    with host():
        peer.reply(0, 1, accept=False)
        sent = peer.chunks(0, 1)
        first = sent[0][0]
        bitmap = encode_bitmap({0, 2}, first.count)
        ask = {"run": "run-1", "client": 0, "round": 1, "exchange": 0, "digest": first.digest, "bitmap": bitmap}
        peer.send_to("board", MissingMessage.model_validate(ask))
        wait_for(lambda: len(peer.chunks(0, 1)) >= len(sent) + 2)
        assert peer.chunks(0, 1)[len(sent) :] == [sent[0], sent[2]]
        # a coordinator that has started again hears at once that there is something
        peer.publish(peer.topics.coordinator, CoordinatorPresence(online=True, epoch=5, run="run-1"))
        wait_for(lambda: len(peer.chunks(0, 1)) >= len(sent) + 3)
        assert peer.chunks(0, 1)[-1] == sent[-1]


def refuse(peer: Peer, client: int, *, final: bool) -> None:
    digest = peer.chunks(client, 1)[0][0].digest
    fields = {"run": "run-1", "client": client, "round": 1, "exchange": 0, "digest": digest, "outcome": "rejected"}
    peer.send_to("board", ReceiptMessage.model_validate({**fields, "final": final}))


@pytest.mark.parametrize("final", [True, False])
def test_a_refused_reply_is_offered_again_for_each_manifest(
    final: bool, peer: Peer, host: Host, kit: Kit, wait_for: Wait
) -> None:
    peer.publish(peer.topics.run, kit.run())
    peer.open("run-1", 1, kit.blob(), [0, 1])
    with host():
        peer.reply(0, 1, accept=False)
        refuse(peer, 0, final=final)
        peer.reply(1, 1)  # the refused one does not hold others up
        if not final:
            wait_for(lambda: len(peer.chunks(0, 1)) > peer.chunks(0, 1)[0][0].count, "the reply again, by itself")
        before = len(peer.chunks(0, 1))
        peer.open("run-1", 1, kit.blob(), [0, 1])
        wait_for(lambda: len(peer.chunks(0, 1)) > before, "the reply again")
        last = peer.chunks(0, 1)[-1][0]
        assert last.index == last.count - 1


def test_a_coordinator_that_has_restarted_may_go_back(peer: Peer, host: Host, kit: Kit) -> None:
    """Its run folder was restored from a backup."""
    peer.publish(peer.topics.run, kit.run())
    peer.publish(peer.topics.coordinator, CoordinatorPresence(online=True, epoch=1, run="run-1"))
    peer.open("run-1", 5, kit.blob(), [0])
    with host():
        peer.reply(0, 5)
        peer.publish(peer.topics.coordinator, CoordinatorPresence(online=True, epoch=2, run="run-1"))
        peer.open("run-1", 3, kit.blob(), [0])
        peer.reply(0, 3)


def test_an_agent_that_starts_while_the_coordinator_goes_back_follows_it(peer: Peer, host: Host, kit: Kit) -> None:
    """What the broker has retained is older than the coordinator's restart."""
    peer.publish(peer.topics.run, kit.run())
    peer.open("run-1", 5, kit.blob(), [0])
    with host():
        peer.reply(0, 5)
        peer.open("run-1", 3, kit.blob(), [0])
        peer.reply(0, 3)


def test_a_retained_manifest_does_not_hide_that_the_coordinator_goes_back(kit: Kit) -> None:
    """The agent reconnects between the presence of the restarted coordinator and its first manifest."""
    broker, topics = MemoryBroker(), Topics("test")
    transport = MemoryTransport(broker, "board", lambda _: None)
    transport.connect()
    store = AgentStore(kit.folder / "state")
    settings = AgentSettings("board", (0,), federation="test", state=kit.folder / "state")
    jobs = Jobs(settings, store, transport, topics, lambda _: None, lambda *_: None)

    def round_of(number: int) -> RoundMessage:
        """Each round has a slot of its own, so the subscriptions show which one the agent follows."""
        patch = PatchMessage(slot=number, digest="0" * 64, size=1)
        task = TaskMessage(clients=[0], kind="train", patches=[0])
        return RoundMessage(run="run-1", round=number, exchange=0, patches=[patch], tasks=[task])

    def followed() -> set[str]:
        return broker.sessions["board"].filters

    jobs.enter_run(kit.run())
    jobs.open_round(round_of(5), retained=False)
    jobs.open_round(round_of(4), retained=False)
    assert followed() == {topics.slot_chunks("slices/5")}
    jobs.greet_coordinator()
    jobs.open_round(round_of(5), retained=True)
    jobs.open_round(round_of(3), retained=False)
    assert followed() == {topics.slot_chunks("slices/3")}
    jobs.open_round(round_of(2), retained=False)
    assert followed() == {topics.slot_chunks("slices/3")}
    store.release()


def test_a_client_that_cannot_do_its_task_reports_why_for_each_manifest(
    peer: Peer, host: Host, kit: Kit, wait_for: Wait
) -> None:
    peer.publish(peer.topics.run, kit.run(algorithm={"name": "nonsense:Algorithm"}))
    peer.open("run-1", 1, kit.blob(), [1])
    with host():
        failure = wait_for(lambda: failures(peer))[0]
        assert (failure.client, failure.round, failure.agent) == (1, 1, "board")
        assert "--allow-import nonsense" in failure.reason
        peer.open("run-1", 1, kit.blob(), [1], deadline=9.0)  # as after a restart: the task may succeed now
        wait_for(lambda: failures(peer)[1:])
        peer.open("run-1", 2, kit.blob(), [0])
        wait_for(lambda: failures(peer)[2:])
    assert [(failure.client, failure.round) for failure in failures(peer)] == [(1, 1), (1, 1), (0, 2)]


def test_a_failure_is_reported_again_while_the_coordinator_is_online(
    peer: Peer, host: Host, kit: Kit, wait_for: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first report may be lost, with the broker's session for example."""
    monkeypatch.setattr(agent_module, "FAILURE_SECONDS", 0.2)
    peer.publish(peer.topics.run, kit.run(algorithm={"name": "nonsense:Algorithm"}))
    peer.publish(peer.topics.coordinator, CoordinatorPresence(online=True, epoch=1, run="run-1"))
    peer.open("run-1", 1, kit.blob(), [1])
    with host():
        wait_for(lambda: failures(peer)[2:])
        assert len({failure.encode() for failure in failures(peer)}) == 1


def test_work_for_a_round_that_is_over_is_ended(peer: Peer, host: Host, kit: Kit, wait_for: Wait) -> None:
    """Also when the next round asks the same clients for the same: its seed is another."""
    own = kit.package("dawdling", "Path(os.environ['PID_FILE']).write_text(str(os.getpid()))\ntime.sleep(600)")
    pid_file = kit.folder / "pid"
    kit.monkeypatch.setenv("PID_FILE", str(pid_file))
    kit.monkeypatch.setattr("fedquilt_client.worker_pool.CANCEL_SECONDS", 0.5)
    peer.publish(peer.topics.run, kit.run(algorithm={"name": own}))
    peer.open("run-1", 1, kit.blob(), [0])
    with host(allow_import=("dawdling",)):
        first = int(wait_for(lambda: pid_file.exists() and pid_file.read_text()))
        peer.open("run-1", 1, kit.blob(), [0], deadline=1e9)  # published again: training continues
        peer.open("run-1", 2, kit.blob(), [0])
        second = int(wait_for(lambda: pid_file.read_text() != str(first) and pid_file.read_text()))
        assert not psutil.pid_exists(first)
        peer.open("run-1", 3, kit.blob(), [3])
        wait_for(lambda: not psutil.pid_exists(second), "the second worker's end")


def test_a_stopped_client_works_no_more(peer: Peer, host: Host, kit: Kit, wait_for: Wait) -> None:
    code = "Path(os.environ['PIDS'], str(ctx.client)).write_text(str(os.getpid()))\ntime.sleep(600)"
    kit.monkeypatch.setenv("PIDS", str(kit.folder))
    kit.monkeypatch.setattr("fedquilt_client.worker_pool.CANCEL_SECONDS", 0.5)
    peer.publish(peer.topics.run, kit.run(algorithm={"name": kit.package("stoppable", code)}))
    peer.open("run-1", 1, kit.blob(), [0, 1])
    with host(allow_import=("stoppable",), workers=2):
        files = [kit.folder / str(client) for client in (0, 1)]
        pids = [int(wait_for(lambda f=file: f.exists() and f.read_text())) for file in files]
        peer.send_to("board", StopMessage(run="run-1", clients=[0, 1], round=2, exchange=0))
        peer.send_to("board", StopMessage(run="run-1", clients=[1], round=1, exchange=0, reason="enough replies"))
        wait_for(lambda: not psutil.pid_exists(pids[1]), "the worker's end")
        assert psutil.pid_exists(pids[0])
        peer.send_to("board", StopMessage(run="run-1", clients=[0], round=1, exchange=0))
        wait_for(lambda: not psutil.pid_exists(pids[0]), "the other's end")


def test_run_and_round_may_come_in_any_order(peer: Peer, host: Host, kit: Kit) -> None:
    with host():
        peer.open("run-1", 1, kit.blob(), [0])
        peer.publish(peer.topics.run, kit.run())
        assert same(peer.reply(0, 1), plus(0.5, kit))


def test_an_earlier_round_is_no_task(peer: Peer, host: Host, kit: Kit, wait_for: Wait) -> None:
    jobs: list[Job] = []
    submit = WorkerPool.submit

    def noted(pool: WorkerPool, job: Job) -> None:
        jobs.append(job)
        submit(pool, job)

    kit.monkeypatch.setattr(WorkerPool, "submit", noted)
    peer.publish(peer.topics.run, kit.run())
    with host():
        wait_for(lambda: peer.messages("telemetry"), "telemetry: the agent has subscribed")
        peer.open("run-1", 5, kit.blob(), [3])
        peer.open("run-1", 4, kit.blob(), [0])
        peer.open("run-2", 6, kit.blob(), [0])
        peer.open("run-1", 6, kit.blob(), [0])
        peer.reply(0, 6)
    assert [(job.run_file.parent.name, job.round) for job in jobs] == [("run-1", 6)]


def test_the_end_of_the_run(peer: Peer, host: Host, kit: Kit, wait_for: Wait) -> None:
    peer.publish(peer.topics.run, kit.run())
    peer.open("run-1", 1, kit.blob(), [0])
    with host(once=True) as agent:
        peer.reply(0, 1)
        peer.publish(peer.topics.end, EndMessage(run="another", reason="not ours"), retain=False)
        peer.open("run-1", 2, kit.blob(), [1])
        peer.reply(1, 2)
        assert presences(peer)[-1].online
        peer.publish(peer.topics.end, EndMessage(run="run-1", reason="all rounds are done"))
        wait_for(lambda: not presences(peer)[-1].online, "the agent to leave by itself")
        assert not agent.stop.is_set()
