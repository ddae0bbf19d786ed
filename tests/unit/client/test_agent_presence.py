"""An agent's presence on a real broker: retained, announced again, and of one agent only."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.support.agents import plus, presences, same
from tests.support.memory_transport import MemoryBroker, MemoryTransport

from fedquilt_client.agent import Agent
from fedquilt_client.presence import OwnPresence
from fedquilt_client.settings import AgentSettings
from fedquilt_common.wire.broker_url import BrokerAddress
from fedquilt_common.wire.messages import AgentPresence, CoordinatorPresence, ReceiptMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Deliver, PublicationRefused, Transport, Will

if TYPE_CHECKING:
    from tests.unit.client.conftest import Host, Kit, Peer

Wait = Callable[..., Any]


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


def test_an_agent_takes_its_clients_back_from_another_with_its_id_that_is_gone() -> None:
    published: list[AgentPresence] = []

    def make() -> AgentPresence:
        return AgentPresence(agent="board", online=True, boot=2, clients=[0, 1], instance="own")

    def publish(topic: str, payload: bytes, **_: object) -> None:
        published.append(AgentPresence.model_validate_json(payload))

    presence = OwnPresence(cast("Transport", SimpleNamespace(publish=publish)), Topics("lab"), make)
    presence.connect()
    presence.take(make())
    presence.note_rejected(100.0)
    assert len(published) == 1  # its reply has another fault
    other = AgentPresence(agent="board", online=True, boot=9, clients=[5], instance="other")
    presence.take(other)
    presence.take(make())  # the answer
    presence.take(other)
    assert len(published) == 2
    for now, total in ((101.0, 3), (130.9, 3), (131.0, 4)):
        presence.note_rejected(now)
        assert len(published) == total
    presence.take(make())
    presence.note_rejected(200.0)
    assert published == [make()] * 4


def _has_presences(peer: Peer, count: int) -> bool:
    return len(presences(peer)) == count


def test_a_rejected_receipt_lets_an_agent_publish_its_presence_again(peer: Peer, host: Host, wait_for: Wait) -> None:
    with host():
        wait_for(lambda: peer.messages("telemetry"), "telemetry")
        other = AgentPresence(agent="board", online=True, boot=1 << 40, clients=[5], instance="other")
        for number in (1, 2):
            peer.publish(peer.topics.presence("board"), other)
            wait_for(partial(_has_presences, peer, number + 2), "the other presence, and the answer to the first")
        receipt = ReceiptMessage(run="run-1", client=0, round=1, exchange=0, digest="0" * 32, outcome="rejected")
        peer.publish(peer.topics.inbox("board"), receipt)
        wait_for(lambda: presences(peer)[-1].instance != "other", "its own presence")


def test_an_agent_that_is_shown_as_offline_announces_itself_again(peer: Peer, host: Host, wait_for: Wait) -> None:
    with host():
        wait_for(lambda: peer.messages("telemetry"), "telemetry")
        late = AgentPresence(agent="board", online=False, boot=1)
        peer.publish(peer.topics.presence("board"), late)
        wait_for(lambda: presences(peer)[-2:][0].online is False and presences(peer)[-1].online, "a new presence")


def test_an_agent_whose_presence_is_cleared_publishes_it_with_its_next_telemetry(
    peer: Peer, host: Host, wait_for: Wait
) -> None:
    """The coordinator clears that of a revoked board; the board may have a new identity already."""
    with host():
        wait_for(lambda: peer.messages("telemetry"), "telemetry")
        peer.publish(peer.topics.presence("board"), b"")
        peer.publish(peer.topics.coordinator, CoordinatorPresence(online=True, epoch=5, run="run-1"))
        wait_for(lambda: peer.messages("presence")[2:], "a new presence")
        payloads = [message.payload for message in peer.messages("presence")]
        assert payloads == [payloads[0], b"", payloads[0]]


def test_telemetry_follows_a_run_at_once(
    peer: Peer, host: Host, kit: Kit, wait_for: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the coordinator would know nothing of the energy of a short run."""
    monkeypatch.setattr("fedquilt_client.agent.IDLE_TELEMETRY_SECONDS", 1000.0)
    with host():
        wait_for(lambda: peer.messages("telemetry"), "telemetry")
        peer.publish(peer.topics.run, kit.run())
        wait_for(lambda: peer.messages("telemetry")[1:], "telemetry")


def test_an_agent_whose_presence_the_broker_refuses_stays_and_says_once_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker may use an ACL that does not name the agent yet."""
    topic = Topics("default").presence("board")

    def make_transport(deliver: Deliver, will: Will) -> Transport:
        for name in (topic, topic, topic.replace("presence", "telemetry")):
            deliver(PublicationRefused(name, "Not authorized", BrokerAddress("localhost", 1883, username="desk")))
        return cast("Transport", MemoryTransport(broker, "board", deliver, will=will))

    broker, steps = MemoryBroker(), iter([False, False, False, False, True])
    Agent(AgentSettings("board", (0,), tmp_path), make_transport).execute(lambda: next(steps))
    assert broker.retained
    (message,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert message.startswith(f"mqtt://localhost:1883 refused the agent's presence on {topic}: Not authorized. ")
    assert "The agent connects as the user 'desk'. Check --id (it is board" in message
    assert "--federation (it is default)" in message


def test_a_restart_of_an_agent_is_no_other_agent(
    peer: Peer, host: Host, wait_for: Wait, caplog: pytest.LogCaptureFixture
) -> None:
    older = AgentPresence(agent="board", online=True, boot=1)  # of a version without instances
    peer.publish(peer.topics.presence("board"), older)
    with host():
        wait_for(lambda: len(presences(peer)) == 2, "the first presence")
    with host():
        wait_for(lambda: len(presences(peer)) == 4, "the second one")
    assert "another agent" not in caplog.text
    wait_for(lambda: len(presences(peer)) == 5, "the last farewell")
    assert [here.online for here in presences(peer)] == [True, True, False, True, False]
