"""Subscriptions at a broker: everything, or everything except muted agents."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from tests.support.memory_transport import MemoryBroker, MemoryTransport

from fedquilt_common.flood_control.subscriptions import Subscriptions
from fedquilt_common.wire.topics import AGENT_KINDS, RELAYED, Topics
from fedquilt_common.wire.transport import MqttMessage, Transport

TOPICS = Topics("lab")


class Side:
    """Subscriptions of a coordinator, and what arrives of each agent."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.arrived: list[str] = []
        self.transport = MemoryTransport(self.broker, "coordinator", self._take)
        self.subscriptions = self.restart()

    def restart(self) -> Subscriptions:
        """Return the subscriptions of a new process that resumes the session."""
        self.transport.connect()
        self.subscriptions = Subscriptions(self.transport, TOPICS)
        self.subscriptions.renew(TOPICS.filters("sites"))
        return self.subscriptions

    def _take(self, incoming: object) -> None:
        if isinstance(incoming, MqttMessage):
            self.arrived.append(incoming.topic)

    def receives(self, agent: str) -> set[str]:
        """Publish on all topics of an agent; returns the kinds that arrive, each of them once."""
        self.arrived.clear()
        topics = (TOPICS.presence(agent), TOPICS.telemetry(agent), TOPICS.reply_chunk(agent, 0, 1, 0, 0))
        for topic in topics:
            self.broker.publish(topic, b"x", b"", False)
        assert len(self.arrived) == len(set(self.arrived))
        return {TOPICS.parse(topic).kind for topic in self.arrived}

    @property
    def filters(self) -> set[str]:
        return self.broker.sessions["coordinator"].filters


ALL = {"presence", "telemetry", "replies"}


@pytest.fixture
def side() -> Side:
    side = Side()
    side.subscriptions.add(["a", "b", "noisy"])
    return side


def test_everything_arrives_while_nobody_is_muted(side: Side) -> None:
    assert side.receives("a") == side.receives("unknown") == ALL
    assert side.filters == {*TOPICS.filters(*AGENT_KINDS), *TOPICS.filters("sites")}


def test_nothing_of_a_muted_agent_arrives_and_all_of_the_others(side: Side) -> None:
    side.subscriptions.mute("noisy")
    assert side.receives("noisy") == set()
    assert side.receives("a") == side.receives("b") == ALL
    side.subscriptions.mute("b")
    assert side.receives("b") == set()
    side.subscriptions.unmute(["noisy"])
    assert (side.receives("noisy"), side.receives("b")) == (ALL, set())
    side.subscriptions.unmute(["b"])
    assert side.receives("b") == side.receives("unknown") == ALL
    assert side.filters == {*TOPICS.filters(*AGENT_KINDS), *TOPICS.filters("sites")}


def test_a_new_agent_is_found_while_another_one_is_muted(side: Side) -> None:
    side.subscriptions.mute("noisy")
    side.broker.publish(TOPICS.presence("new"), b"x", b"", True)
    assert side.receives("new") == set()
    side.subscriptions.look_around()
    assert TOPICS.presence("new") in side.arrived
    side.subscriptions.add(["new"])
    assert side.receives("new") == ALL
    assert side.receives("noisy") == set()


def test_an_agent_that_left_is_forgotten_and_found_again(side: Side) -> None:
    """The names of a federation may change without end."""
    side.subscriptions.mute("noisy")
    side.subscriptions.remove("a")
    side.subscriptions.remove("unknown")
    assert side.receives("a") == set()
    assert not any("/a/" in name for name in side.filters)
    side.broker.publish(TOPICS.presence("a"), b"x", b"", True)
    side.subscriptions.look_around()
    assert TOPICS.presence("a") in side.arrived
    side.subscriptions.add(["a"])
    assert side.receives("a") == ALL
    side.subscriptions.unmute(["noisy"])
    side.subscriptions.remove("a")
    assert side.receives("a") == ALL
    assert side.subscriptions._known == {"b", "noisy"}


def test_a_new_session_gets_the_subscriptions_of_the_moment(side: Side) -> None:
    side.subscriptions.mute("noisy")
    side.broker.sessions.clear()
    side.transport.connect()
    side.subscriptions.renew(TOPICS.filters("sites"))
    assert side.receives("noisy") == side.receives("unknown") == set()
    assert side.receives("a") == ALL


def test_a_mute_that_ends_without_a_connection_leaves_nothing_behind(side: Side) -> None:
    side.subscriptions.mute("noisy")
    side.transport.break_off()
    side.subscriptions.unmute(["noisy"])
    side.transport.connect()
    side.subscriptions.renew(TOPICS.filters("sites"))
    assert side.filters == {*TOPICS.filters(*AGENT_KINDS), *TOPICS.filters("sites")}


def test_the_next_process_drops_what_the_session_has_of_the_last(side: Side) -> None:
    side.subscriptions.mute("noisy")
    side.restart()
    assert side.filters > set(TOPICS.filters(*AGENT_KINDS))
    side.subscriptions.inherit(["a", "b", "noisy"])
    assert side.filters == {*TOPICS.filters(*AGENT_KINDS), *TOPICS.filters("sites")}
    assert side.receives("noisy") == ALL


def test_what_names_agents_comes_first_and_their_replies_last() -> None:
    """A relay that restarts must have its boards before the manifest, and the manifest before replies."""
    order: list[str] = []
    transport = cast(Transport, SimpleNamespace(subscribe=order.extend, unsubscribe=lambda _: None))
    Subscriptions(transport, TOPICS, RELAYED).renew([TOPICS.round])
    assert order == [*TOPICS.filters("presence", "telemetry"), TOPICS.round, *TOPICS.filters("replies")]


def test_a_flood_in_the_session_does_not_cut_the_agents_of_the_journal_off(side: Side) -> None:
    """It mutes its agent while the coordinator connects, before the coordinator knows the others."""
    side.restart().mute("noisy")
    side.subscriptions.renew()
    side.subscriptions.inherit(["a", "noisy"])
    assert side.receives("a") == ALL
    assert side.receives("noisy") == set()
