"""Who is connected and hosts which client: silence, stale presences, two agents with one id; with a real machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fedquilt_common.errors import ProtocolError
from fedquilt_common.types import Assignments
from fedquilt_common.wire.messages import AgentPresence
from fedquilt_server.coordinator import claims as module
from fedquilt_server.coordinator.claims import SILENCE_SECONDS

if TYPE_CHECKING:
    from tests.unit.server.coordinator.conftest import ClaimsWorld


# -- silence ---------------------------------------------------------------------------------------------------


def test_a_silent_agent_is_gone_until_its_next_message(world: ClaimsWorld) -> None:
    world.say("a", [0, 1])
    world.say("b", [2])
    world.listen(SILENCE_SECONDS - 1, speaking=["b"])
    assert world.hosts == {0: "a", 1: "a", 2: "b"}
    world.listen(2, speaking=["b"])
    assert world.hosts == {2: "b"}
    world.claims.note_message("a")
    assert world.hosts == {0: "a", 1: "a", 2: "b"}
    assert world.kinds() == ["Joined a", "Joined b", "Left a", "Joined a"]


def test_another_agent_keeps_what_it_took_over_from_a_silent_one(world: ClaimsWorld) -> None:
    world.say("a", [0])
    world.say("b", [0])
    world.listen(SILENCE_SECONDS + 1, speaking=["b"])
    assert world.hosts == {0: "b"}
    world.claims.note_message("a")
    assert world.hosts == {0: "b"}
    assert world.reasons == [world.taken("client 0", "a"), world.taken("client 0", "b")]


def test_only_time_in_which_the_coordinator_listens_is_silence(world: ClaimsWorld) -> None:
    world.say("a", [0])
    world.now += 10 * SILENCE_SECONDS  # a long evaluation, or a stopped process
    world.claims.check()
    assert world.hosts == {0: "a"}
    world.listen(SILENCE_SECONDS - 5)
    world.claims.start_listening()  # the broker was away
    world.listen(SILENCE_SECONDS - 5)
    assert world.hosts == {0: "a"}


def test_an_agent_that_left_is_gone_until_its_next_message(world: ClaimsWorld) -> None:
    """A broker publishes all wills when it stops; then a client resends a reply before the agent's presence."""
    world.say("a", [0], boot=5)
    world.say("a", boot=4)  # the late will of a replaced process
    assert world.hosts == {0: "a"}
    world.say("a", boot=5)
    assert (world.hosts, "a" in world.claims) == ({}, False)
    world.claims.note_message("stranger")
    assert world.hosts == {}
    world.claims.note_message("a")
    world.say("a", [0], boot=5)
    assert (world.hosts, "a" in world.claims) == ({0: "a"}, True)
    assert world.kinds() == ["Joined a", "Left a", "Joined a"]


def test_a_will_after_the_silence_changes_nothing_more(world: ClaimsWorld) -> None:
    world.say("a", [0])
    world.listen(SILENCE_SECONDS + 1)
    world.say("a")
    world.say("a")
    world.listen(SILENCE_SECONDS + 1)
    assert world.kinds() == ["Joined a", "Left a"]


def test_a_retained_presence_after_the_will_shows_that_its_agent_is_back(world: ClaimsWorld) -> None:
    """In contrast to that of a silent agent, it is newer than the departure."""
    world.say("a", [0])
    world.say("a")
    world.listen(SILENCE_SECONDS + 1)
    world.say("a", [0], retained=True)
    world.claims.check()
    assert world.hosts == {0: "a"}


def test_agents_that_left_take_no_room(world: ClaimsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CLAIMS", 3)
    world.say("a", [0, 1])
    world.say("a")
    world.claims.check_room(AgentPresence(agent="b", online=True, boot=1, clients=[0, 1]))


def test_the_room_is_that_of_the_newest_claims(world: ClaimsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CLAIMS", 4)
    world.say("a", [0, 1, 2])
    world.say("a", [0], boot=2)
    world.say("b", [1])
    world.claims.check_room(AgentPresence(agent="b", online=True, boot=1, clients=[1, 2, 3]))  # instead of its own one
    with pytest.raises(ProtocolError, match="claim 5 clients together"):
        world.claims.check_room(AgentPresence(agent="c", online=True, boot=1, clients=[1, 2, 3]))


def test_no_message_brings_back_a_board_that_was_revoked_after_it_left(world: ClaimsWorld) -> None:
    world.say("a", [0])
    world.say("a")
    world.assignments = Assignments({}, frozenset({"a"}))
    world.listen(2)
    world.claims.note_message("a")
    assert (world.hosts, world.cleared) == ({}, ["a"])


# -- retained presences ----------------------------------------------------------------------------------------


def test_a_live_agent_takes_its_clients_from_stale_presences(world: ClaimsWorld) -> None:
    """Two retained presences claim everything; the owners' first telemetry takes it back."""
    for stale in ("x", "y"):
        world.say(stale, [0, 1, 2], retained=True)
    world.say("a", [0], retained=True)
    world.say("b", [1], retained=True)
    assert set(world.hosts.values()) == {"x"}
    world.claims.note_message("a")
    assert world.hosts == {0: "a", 1: "b"}
    world.claims.note_message("b")
    assert world.hosts == {0: "a", 1: "b"}
    world.say("c", [2])
    assert world.hosts == {0: "a", 1: "b", 2: "c"}


def test_a_live_agent_takes_clients_that_it_claims_later(world: ClaimsWorld) -> None:
    world.say("x", [0, 1], retained=True)
    world.say("a", [2])
    world.say("a", [1, 2])
    assert world.hosts == {1: "a", 2: "a"}


def test_a_stale_presence_counts_where_nobody_else_claims(world: ClaimsWorld) -> None:
    world.say("x", [0, 2], retained=True)
    world.say("a", [1])
    assert world.hosts == {0: "x", 1: "a", 2: "x"}
    world.listen(SILENCE_SECONDS + 1, speaking=["a"])
    assert world.hosts == {1: "a"}


def test_a_live_claim_is_not_taken(world: ClaimsWorld) -> None:
    world.say("a", [0])
    world.say("a", [0], retained=True)  # the broker delivers it again after a new subscription
    world.say("b", [0])
    assert world.hosts == {0: "a"}
    assert world.reasons == [world.taken("client 0", "a")]


def test_the_broker_cannot_bring_back_a_silent_agent(world: ClaimsWorld) -> None:
    world.say("a", [0])
    world.listen(SILENCE_SECONDS + 1)
    world.say("a", [0], retained=True)
    assert world.hosts == {}
    world.say("a", [0], boot=2, retained=True)  # it has started again while the coordinator was away
    assert world.hosts == {0: "a"}


def test_the_hosts_of_the_journal_have_time_to_speak(world: ClaimsWorld) -> None:
    """An agent with a private memory keeps its clients when the coordinator restarts."""
    world.say("a", [0])
    world.claims = world.new_claims()
    world.claims.restore()
    world.say("b", [0])
    world.say("a", [0], retained=True)
    assert world.hosts == {0: "a"}
    world.listen(SILENCE_SECONDS + 1, speaking=["b"])
    assert world.hosts == {0: "b"}


def test_a_replay_gives_the_same_hosts(world: ClaimsWorld) -> None:
    world.say("x", [0, 1, 2], retained=True)
    for agent, client in (("a", 0), ("b", 1)):
        world.say(agent, [client], retained=True)
        world.claims.note_message(agent)
    world.listen(SILENCE_SECONDS + 1, speaking=["a"])
    world.claims.note_message("x")
    again = world.new_machine()
    for event in world.events:
        again.handle(event)
    assert again.host_of == world.machine.host_of
    assert again.agents == world.machine.agents


# -- two agents with one id ------------------------------------------------------------------------------------

TWO = (
    "two agents use the id a: on a machine that does not report its name and on a machine that does not report its "
    "name. Give each board its own --id and --state"
)


def test_two_agents_that_answer_each_other_are_reported_once(world: ClaimsWorld) -> None:
    for instance, boot in (("one", 5), ("two", 5), ("one", 5), ("two", 5), ("one", 5)):
        world.say("a", [0], boot, instance=instance)
    assert world.reasons == [TWO]
    assert world.hosts == {0: "a"}


@pytest.mark.parametrize("instance", ["", "one"])
def test_two_starts_that_report_at_the_same_time_are_two_agents(world: ClaimsWorld, instance: str) -> None:
    """Agents of an earlier version, or with a copied state folder."""
    world.say("a", [0], 5, instance=instance)
    world.say("a", [0], 9, instance=instance)
    world.claims.note_message("a", 5)  # it was under way while the agent restarted
    assert world.reasons == []
    world.listen(12, speaking=["a"])
    world.claims.note_message("a", 9)
    world.claims.start_listening()  # what had arrived before may arrive again
    world.claims.note_message("a", 5)
    assert world.reasons == []
    world.listen(12, speaking=["a"])
    for boot in (5, 9, 5):
        world.claims.note_message("a", boot)
    assert world.reasons == [TWO]


def test_an_agent_that_was_replaced_before_the_coordinator_began_is_noticed(world: ClaimsWorld) -> None:
    """The broker keeps one presence only; the other agent still sends telemetry."""
    world.say("a", [0], 9, instance="two")
    world.claims.note_message("a", 5)  # it may have been under way while the agent restarted
    assert world.reasons == []
    world.listen(12, speaking=["a"])
    world.claims.note_message("a", 9)
    assert world.reasons == []
    for boot in (5, 9, 5):
        world.claims.note_message("a", boot)
    assert world.reasons == [TWO]


def test_telemetry_that_overtakes_a_presence_is_of_one_agent(world: ClaimsWorld) -> None:
    world.say("a", [0], 5, instance="one")
    world.claims.note_message("a", 9)
    world.say("a", [0], 9, instance="one")
    world.listen(30, speaking=["a"])
    world.claims.note_message("a", 9)
    assert world.reasons == []


COPIES = TWO.replace("two agents use the id", "copies of one state folder are in use with the id")


def test_copies_of_a_state_folder_that_take_turns_are_reported_once(world: ClaimsWorld) -> None:
    """They have one session at the broker, so each connection ends that of the other."""
    for boot in (5, 6, 5):
        world.say("a", [0], boot, instance="one")
    assert world.reasons == []  # a folder may have been put back to an earlier state
    for boot in (6, 5, 6, 5):
        world.say("a", [0], boot, instance="one")
    assert world.reasons == [COPIES]


def test_a_board_that_lost_its_state_folder_is_one_agent(world: ClaimsWorld) -> None:
    world.say("a", [0], 5, instance="one")
    world.say("a", [0], 9, instance="two")
    world.say("a", boot=5)  # the will of the first
    world.listen(30, speaking=["a"])
    world.claims.note_message("a", 9)
    assert world.reasons == []
    assert world.hosts == {0: "a"}


def test_a_board_that_lost_its_state_folder_and_its_clock_is_no_copy(world: ClaimsWorld) -> None:
    for boot, instance in ((9, "one"), (5, "two"), (9, "one"), (5, "two")):
        world.say("a", [0], boot, instance=instance)
    assert world.reasons == [TWO]
