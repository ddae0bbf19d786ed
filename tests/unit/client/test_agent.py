"""An agent on a real broker, with the test in the coordinator's place."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
from tests.support.memory_transport import MemoryBroker, MemoryTransport

from fedquilt_client import agent as agent_module
from fedquilt_client.jobs import Jobs
from fedquilt_client.settings import AgentSettings
from fedquilt_client.store import AgentStore
from fedquilt_client.worker_pool import WorkerPool
from fedquilt_common.training_jobs import Job
from fedquilt_common.wire.bitmaps import encode_bitmap
from fedquilt_common.wire.codec import FileArrays
from fedquilt_common.wire.messages import (
    PROTOCOL,
    REPLY_KEY,
    AgentPresence,
    CoordinatorPresence,
    EndMessage,
    FailedMessage,
    MissingMessage,
    PatchMessage,
    ReceiptMessage,
    ReplyHeader,
    RoundMessage,
    StopMessage,
    TaskMessage,
    parse_telemetry,
)
from fedquilt_common.wire.topics import Topics

if TYPE_CHECKING:
    from tests.unit.client.conftest import Host, Kit, Peer

Wait = Callable[..., Any]


def presences(peer: Peer) -> list[AgentPresence]:
    return [AgentPresence.model_validate_json(message.payload) for message in peer.messages("presence")]


def failures(peer: Peer) -> list[FailedMessage]:
    messages = [parse_telemetry(message.payload, message.topic) for message in peer.messages("telemetry")]
    return [message for message in messages if isinstance(message, FailedMessage)]


def same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def plus(step: float, kit: Kit) -> dict[str, Any]:
    return {name: x + np.float32(step) for name, x in FileArrays(kit.blob().path).items()}


def test_presence_is_retained_and_names_the_boot(peer: Peer, host: Host, wait_for: Wait) -> None:
    with host(clients=(0, 2), kind="jetson", workers=2, memory=1 << 20) as agent:
        message = peer.messages("presence")[0]
        here = presences(peer)[0]
        assert (here.agent, here.online, here.clients, here.workers) == ("board", True, [0, 2], 2)
        assert (here.profile.kind, here.profile.memory) == ("jetson", 1 << 20)
        assert here.profile.cores >= 1
        will = agent.wills[0]
        assert (will.topic, will.delay) == (message.topic, 20)
        assert AgentPresence.model_validate_json(will.payload) == AgentPresence(
            agent="board", online=False, boot=here.boot
        )
        telemetry = wait_for(lambda: peer.messages("telemetry"))[0]
        assert json.loads(telemetry.payload)["memory_used"] > 0
    wait_for(lambda: len(presences(peer)) == 2)
    assert (presences(peer)[1].online, presences(peer)[1].boot) == (False, here.boot)
    with host():
        assert presences(peer)[-1].boot > here.boot
    late = type(peer)(peer.port, peer.topics.federation, peer.folder)
    try:
        wait_for(lambda: late.messages("presence"), "the retained presence")
        assert late.messages("presence")[0].retained
        assert not presences(late)[0].online
    finally:
        late.close()


def test_two_agents_with_one_id_find_out_and_go_on(
    peer: Peer, host: Host, kit: Kit, wait_for: Wait, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def complaints() -> list[str]:
        return [r.getMessage() for r in caplog.records if "another agent uses the id board" in r.getMessage()]

    peer.publish(peer.topics.run, kit.run())
    with host(state=tmp_path / "first"), host(state=tmp_path / "second"):
        wait_for(lambda: len(complaints()) == 2, "both to find out")
        assert all("Give each board its own --id" in text for text in complaints())
        peer.open("run-1", 1, kit.blob(), [0])
        assert same(peer.reply(0, 1), plus(0.5, kit))
        instances = {here.instance for here in presences(peer)}
        assert len(instances) == 2
        assert len(presences(peer)) <= 4  # two presences, and one answer of each
    assert len(complaints()) == 2


def test_an_agent_that_is_shown_as_offline_announces_itself_again(peer: Peer, host: Host, wait_for: Wait) -> None:
    with host():
        wait_for(lambda: peer.messages("telemetry"), "telemetry")
        late = AgentPresence(agent="board", online=False, boot=1)
        peer.publish(peer.topics.presence("board"), late)
        wait_for(lambda: presences(peer)[-2:][0].online is False and presences(peer)[-1].online, "a new presence")


def test_a_restart_of_an_agent_is_no_other_agent(
    peer: Peer, host: Host, wait_for: Wait, caplog: pytest.LogCaptureFixture
) -> None:
    older = AgentPresence(agent="board", online=True, boot=1)  # of a version without instances
    peer.publish(peer.topics.presence("board"), older)
    for _ in range(2):
        with host():
            wait_for(lambda: peer.messages("telemetry"), "telemetry")
    assert "another agent" not in caplog.text
    assert [here.online for here in presences(peer)] == [True, True, False, True, False]


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
        wait_for(lambda: len(peer.chunks(0, 1)) >= len(sent) + 3, seconds=2.5)
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
        patch = PatchMessage(slot=number, digest=NOBODY, size=1)
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


NEWER = PROTOCOL + 1


def test_a_newer_protocol_is_ignored_with_advice(
    peer: Peer, host: Host, kit: Kit, wait_for: Wait, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "fedquilt_client")
    peer.publish(peer.topics.run, kit.run().model_copy(update={"v": NEWER, "run": "future"}))
    with host():
        wait_for(lambda: "install the same fedquilt version" in caplog.text, "the advice")
        assert f"has protocol version {NEWER}" in caplog.text
        peer.publish(peer.topics.run, kit.run())
        peer.open("run-1", 1, kit.blob(), [0])
        assert same(peer.reply(0, 1), plus(0.5, kit))


NOBODY = "0" * 64
HOSTILE: dict[str, list[bytes]] = {
    "run": [
        b"not json", b"[1]", b"{}", b'{"v":1}', b"\xff\xfe", b"[" * 100_000, b'{"v":true}', b'{"v":"1"}', b'{"v":-1}',
        b'{"v":1,"run":"../../etc","experiment":{}}', b'{"v":1,"run":"x","experiment":{}}',
        b'{"v":1,"run":"x","experiment":{"name":"x","rounds":NaN}}',
    ],
    "round": [
        b'{"v":1,"run":"run-1","round":-1,"exchange":0}',
        b'{"v":1,"run":"run-1","round":1e400,"exchange":0}',
        RoundMessage(run="run-1", round=1, exchange=0,
                     tasks=[TaskMessage(clients=[0], kind="train", patches=[])]
                     ).encode().replace(b'"patches":[],"scalars"', b'"patches":[7],"scalars"'),
        RoundMessage(run="run-1", round=1, exchange=0,
                     patches=[PatchMessage(slot=0, digest=NOBODY, size=0), PatchMessage(slot=0, digest=NOBODY, size=9)],
                     tasks=[TaskMessage(clients=[0, 0, 1], kind="train", patches=[1, 0, 1])]).encode(),
    ],
    "inbox": [
        b"", b"{", b'{"v":1,"type":"unknown"}', b'{"v":1,"type":"receipt"}',
        StopMessage(run="run-1", clients=[0], round=9, exchange=0).encode(),
        ReceiptMessage(run="run-1", client=0, round=1, exchange=0, digest=NOBODY, outcome="rejected").encode(),
        MissingMessage(run="run-1", client=0, round=1, exchange=0, digest=NOBODY, bitmap="AAAA").encode(),
    ],
    "coordinator": [b"{}", b'{"v":1,"online":1,"epoch":"x"}', CoordinatorPresence(online=False, epoch=0).encode()],
    "end": [b"0", b'{"v":1,"run":"x"}'],
    "slice": [b"x", b"y" * 5000],
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_words_do_no_harm(peer: Peer, host: Host, kit: Kit, kind: str) -> None:
    """After any malformed message the agent still does the next valid task."""
    topics = peer.topics
    places = {"run": topics.run, "round": topics.round, "coordinator": topics.coordinator, "end": topics.end,
              "inbox": topics.inbox("board"), "slice": topics.slot_chunk("slices/0", 0)}  # fmt: skip
    peer.publish(topics.run, kit.run())
    peer.open("run-1", 1, kit.blob(), [0])
    with host():
        peer.reply(0, 1)
        for payload in HOSTILE[kind]:
            for header in (b"", b"\0" * 49, b"\x01" + b"\xee" * 48):
                peer.publish(places[kind], payload, header=header, retain=False)
        peer.open("run-1", 2, kit.blob(), [0])
        assert same(peer.reply(0, 2), plus(0.5, kit))


def test_a_reply_with_wrong_missing_bitmap_is_kept(peer: Peer, host: Host, kit: Kit) -> None:
    peer.publish(peer.topics.run, kit.run())
    peer.open("run-1", 1, kit.blob(), [0])
    with host():
        peer.reply(0, 1, accept=False)
        digest = peer.chunks(0, 1)[0][0].digest
        for bitmap in ("", "AAAAAAAAAAAA", "////////"):
            peer.send_to(
                "board", MissingMessage(run="run-1", client=0, round=1, exchange=0, digest=digest, bitmap=bitmap)
            )
        peer.accept(0, 1)
        peer.open("run-1", 2, kit.blob(), [0])
        assert same(peer.reply(0, 2), plus(0.5, kit))
    assert len(peer.chunks(0, 1)) == peer.chunks(0, 1)[0][0].count
