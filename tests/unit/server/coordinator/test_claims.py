"""Who is connected and who hosts which client: silence, stale presences, the inventory; with a real machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fedquilt_common.algorithm_api import State
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.types import Assignments
from fedquilt_common.wire.messages import AgentPresence
from fedquilt_server.coordinator import claims as module
from fedquilt_server.coordinator.claims import SILENCE_SECONDS, Claims
from fedquilt_server.coordinator.rate_limit import RateLimit
from fedquilt_server.coordinator.refusals import Refusals
from fedquilt_server.round.events import Event, Joined, Left, Rejected
from fedquilt_server.round.machine import Machine
from fedquilt_server.round.policy import Policy


def machine() -> Machine:
    """A machine of four clients that never opens a round: the tests do not connect client 3."""
    context = cast(Any, lambda *_: None)
    return Machine(FedAvg(), Policy(1, 4, 4), State({"w": np.zeros(1, np.float32)}), context, context, validates=True)


class World:
    """Claims with a machine, a time that the test sets, and the events that were recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.events: list[Event] = []
        self.assignments = Assignments()
        self.cleared: list[str] = []
        monkeypatch.setattr(module, "clock", SimpleNamespace(now=lambda: self.now))
        self.machine = machine()
        self.limit = RateLimit(lambda: self.now)
        self.claims = self.new_claims()

    def new_claims(self) -> Claims:
        refusals = Refusals(self.limit, self.record)
        return Claims(self.machine, self.limit, refusals, self.record, self.cleared.append, lambda: self.assignments)

    def record(self, event: Event) -> None:
        self.events.append(event)
        self.machine.handle(event)

    def say(
        self, agent: str, clients: Iterable[int] = (), boot: int = 1, *, retained: bool = False, instance: str = ""
    ) -> None:
        """Let a presence arrive; without clients that of an agent that leaves."""
        here = AgentPresence(agent=agent, online=bool(clients), boot=boot, clients=list(clients), instance=instance)
        self.claims.take(here, retained=retained)

    def listen(self, seconds: float, *, speaking: Iterable[str] = ()) -> None:
        """Let time pass while the coordinator waits at its inbox; some agents send telemetry."""
        names = list(speaking)
        for _ in range(round(seconds)):
            self.now += 1.0
            for name in names:
                self.claims.note_message(name)
            self.claims.check()

    @property
    def hosts(self) -> Mapping[int, str]:
        return dict(sorted(self.machine.host_of.items()))

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, Rejected)]

    def kinds(self) -> list[str]:
        """Kind and agent of each event that decides about hosts."""
        return [f"{type(e).__name__} {e.agent}" for e in self.events if isinstance(e, Joined | Left)]


def taken(clients: list[int], holder: str) -> str:
    """Return the reason of a claim that has no effect yet."""
    return f"clients {clients} have another agent: {holder}. They move when it leaves or is silent for 90 s"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


# -- silence ---------------------------------------------------------------------------------------------------


def test_a_silent_agent_is_gone_until_its_next_message(world: World) -> None:
    world.say("a", [0, 1])
    world.say("b", [2])
    world.listen(SILENCE_SECONDS - 1, speaking=["b"])
    assert world.hosts == {0: "a", 1: "a", 2: "b"}
    world.listen(2, speaking=["b"])
    assert world.hosts == {2: "b"}
    world.claims.note_message("a")
    assert world.hosts == {0: "a", 1: "a", 2: "b"}
    assert world.kinds() == ["Joined a", "Joined b", "Left a", "Joined a"]


def test_another_agent_keeps_what_it_took_over_from_a_silent_one(world: World) -> None:
    world.say("a", [0])
    world.say("b", [0])
    world.listen(SILENCE_SECONDS + 1, speaking=["b"])
    assert world.hosts == {0: "b"}
    world.claims.note_message("a")
    assert world.hosts == {0: "b"}
    assert world.reasons == [taken([0], "a"), taken([0], "b")]


def test_only_time_in_which_the_coordinator_listens_is_silence(world: World) -> None:
    world.say("a", [0])
    world.now += 10 * SILENCE_SECONDS  # a long evaluation, or a stopped process
    world.claims.check()
    assert world.hosts == {0: "a"}
    world.listen(SILENCE_SECONDS - 5)
    world.claims.start_listening()  # the broker was away
    world.listen(SILENCE_SECONDS - 5)
    assert world.hosts == {0: "a"}


def test_an_agent_that_left_is_gone_until_its_next_message(world: World) -> None:
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


def test_a_will_after_the_silence_changes_nothing_more(world: World) -> None:
    world.say("a", [0])
    world.listen(SILENCE_SECONDS + 1)
    world.say("a")
    world.say("a")
    world.listen(SILENCE_SECONDS + 1)
    assert world.kinds() == ["Joined a", "Left a"]


def test_a_retained_presence_after_the_will_shows_that_its_agent_is_back(world: World) -> None:
    """In contrast to that of a silent agent, it is newer than the departure."""
    world.say("a", [0])
    world.say("a")
    world.listen(SILENCE_SECONDS + 1)
    world.say("a", [0], retained=True)
    world.claims.check()
    assert world.hosts == {0: "a"}


def test_agents_that_left_take_no_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CLAIMS", 3)
    world.say("a", [0, 1])
    world.say("a")
    world.claims.check_room(AgentPresence(agent="b", online=True, boot=1, clients=[0, 1]))


def test_no_message_brings_back_a_board_that_was_revoked_after_it_left(world: World) -> None:
    world.say("a", [0])
    world.say("a")
    world.assignments = Assignments({}, frozenset({"a"}))
    world.listen(2)
    world.claims.note_message("a")
    assert (world.hosts, world.cleared) == ({}, ["a"])


# -- retained presences ----------------------------------------------------------------------------------------


def test_a_live_agent_takes_its_clients_from_stale_presences(world: World) -> None:
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


def test_a_live_agent_takes_clients_that_it_claims_later(world: World) -> None:
    world.say("x", [0, 1], retained=True)
    world.say("a", [2])
    world.say("a", [1, 2])
    assert world.hosts == {1: "a", 2: "a"}


def test_a_stale_presence_counts_where_nobody_else_claims(world: World) -> None:
    world.say("x", [0, 2], retained=True)
    world.say("a", [1])
    assert world.hosts == {0: "x", 1: "a", 2: "x"}
    world.listen(SILENCE_SECONDS + 1, speaking=["a"])
    assert world.hosts == {1: "a"}


def test_a_live_claim_is_not_taken(world: World) -> None:
    world.say("a", [0])
    world.say("a", [0], retained=True)  # the broker delivers it again after a new subscription
    world.say("b", [0])
    assert world.hosts == {0: "a"}
    assert world.reasons == [taken([0], "a")]


def test_the_broker_cannot_bring_back_a_silent_agent(world: World) -> None:
    world.say("a", [0])
    world.listen(SILENCE_SECONDS + 1)
    world.say("a", [0], retained=True)
    assert world.hosts == {}
    world.say("a", [0], boot=2, retained=True)  # it has started again while the coordinator was away
    assert world.hosts == {0: "a"}


def test_the_hosts_of_the_journal_have_time_to_speak(world: World) -> None:
    """An agent with a private memory keeps its clients when the coordinator restarts."""
    world.say("a", [0])
    world.claims = world.new_claims()
    world.claims.restore()
    world.say("b", [0])
    world.say("a", [0], retained=True)
    assert world.hosts == {0: "a"}
    world.listen(SILENCE_SECONDS + 1, speaking=["b"])
    assert world.hosts == {0: "b"}


def test_a_replay_gives_the_same_hosts(world: World) -> None:
    world.say("x", [0, 1, 2], retained=True)
    for agent, client in (("a", 0), ("b", 1)):
        world.say(agent, [client], retained=True)
        world.claims.note_message(agent)
    world.listen(SILENCE_SECONDS + 1, speaking=["a"])
    world.claims.note_message("x")
    again = machine()
    for event in world.events:
        again.handle(event)
    assert again.host_of == world.machine.host_of
    assert again.agents == world.machine.agents


# -- the inventory ---------------------------------------------------------------------------------------------


def test_a_client_belongs_to_the_board_of_the_inventory(world: World) -> None:
    world.assignments = Assignments({0: "a", 1: "b"})
    world.claims = world.new_claims()
    world.say("x", [0, 1, 2])
    assert world.hosts == {2: "x"}
    assert world.reasons == ["the inventory assigns clients [0, 1] to a, b"]
    world.say("a", [0])
    world.say("b", [1])
    assert world.hosts == {0: "a", 1: "b", 2: "x"}
    assert len(world.reasons) == 1


def test_a_changed_inventory_moves_clients(world: World) -> None:
    world.assignments = Assignments({0: "a"})
    world.say("a", [0, 1])
    world.say("b", [0, 1])
    world.listen(2, speaking=["a", "b"])
    assert world.hosts == {0: "a", 1: "a"}
    world.assignments = Assignments({0: "b"})
    world.listen(2, speaking=["a", "b"])
    assert world.hosts == {0: "b", 1: "a"}
    assert world.reasons[-1] == taken([1], "a")
    assert "the inventory assigns clients [0] to b" in world.reasons


def test_the_inventory_holds_for_the_agents_of_the_journal(world: World) -> None:
    world.say("a", [0, 1])
    world.assignments = Assignments({0: "b"})
    world.claims = world.new_claims()
    world.claims.restore()
    assert world.hosts == {1: "a"}


def test_a_change_beyond_the_limit_counts_when_it_comes_again(world: World) -> None:
    while world.limit.may_join("a"):
        pass
    world.say("a", [0])
    assert world.hosts == {}
    world.limit.reset()
    world.say("a", [0], retained=True)
    assert world.hosts == {0: "a"}


def test_an_agent_beyond_the_limit_joins_again_in_the_same_exchange(world: World) -> None:
    """Each chunk takes longer than the silence on its slow link, so it leaves and joins with each of them."""
    world.say("a", [0])
    while world.limit.may_join("a"):
        pass
    world.listen(SILENCE_SECONDS + 1)
    for _ in range(3):
        world.claims.note_message("a")
        assert world.hosts == {0: "a"}
        world.listen(SILENCE_SECONDS + 1)
        assert world.hosts == {}


def test_a_join_beyond_the_limit_is_postponed(world: World) -> None:
    while world.limit.may_join("a"):
        pass
    world.say("a", [0])
    world.listen(30, speaking=["b"])
    assert world.hosts == {}
    world.listen(40, speaking=["b"])
    assert world.hosts == {0: "a"}


# -- revoked boards --------------------------------------------------------------------------------------------


def test_a_revoked_board_leaves_at_once_and_its_presence_is_cleared(world: World) -> None:
    world.say("a", [0, 1])
    world.say("b", [0])
    world.assignments = Assignments({}, frozenset({"a", "never-seen"}))
    world.listen(1, speaking=["a", "b"])
    assert world.hosts == {0: "b"}
    assert world.cleared == ["a"]
    world.claims.note_message("a")  # it was under way
    assert world.hosts == {0: "b"}
    assert world.kinds() == ["Joined a", "Joined b", "Left a"]


def test_a_board_that_was_revoked_while_no_coordinator_ran_is_gone_at_the_start(world: World) -> None:
    """After a resume, where the journal has it, and in a new run, where only the broker does."""
    world.say("a", [0])
    world.assignments = Assignments({}, frozenset({"a"}))
    for claims in (world.new_claims(), world.new_claims()):
        world.claims = claims
        world.claims.restore()
        world.say("a", [0], retained=True)
        world.say("b", [0])
        assert world.hosts == {0: "b"}
    assert set(world.cleared) == {"a"}
    assert world.kinds() == ["Joined a", "Left a", "Joined b"]
    assert world.reasons == []


def test_a_revoked_board_that_the_broker_still_accepts_is_reported_once(world: World) -> None:
    world.assignments = Assignments({}, frozenset({"a"}))
    world.claims = world.new_claims()
    for _ in range(3):
        world.say("a", [0], instance="one")
        world.say("a")
    assert world.hosts == {}
    assert world.cleared == ["a"] * 6
    assert world.reasons == ["a is revoked, but the broker accepts it: give the broker its new revocation list and ACL"]


@pytest.mark.parametrize("seconds", [0, 1])
def test_a_board_with_a_new_identity_joins_with_its_next_presence(world: World, seconds: float) -> None:
    """Also if it is faster than the coordinator, which looks into the inventory once a second."""
    world.say("a", [0])
    world.assignments = Assignments({}, frozenset({"a"}))
    world.listen(1)
    world.assignments = Assignments({0: "a"})
    world.listen(seconds)
    assert world.hosts == {}
    world.say("a", [0], 2, instance="new")
    assert world.hosts == {0: "a"}
    assert world.reasons == []


# -- two agents with one id ------------------------------------------------------------------------------------

TWO = (
    "two agents use the id a: on a machine that does not report its name and on a machine that does not report its "
    "name. Give each board its own --id and --state"
)


def test_two_agents_that_answer_each_other_are_reported_once(world: World) -> None:
    for instance, boot in (("one", 5), ("two", 5), ("one", 5), ("two", 5), ("one", 5)):
        world.say("a", [0], boot, instance=instance)
    assert world.reasons == [TWO]
    assert world.hosts == {0: "a"}


@pytest.mark.parametrize("instance", ["", "one"])
def test_two_starts_that_report_at_the_same_time_are_two_agents(world: World, instance: str) -> None:
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


def test_a_board_that_lost_its_state_folder_is_one_agent(world: World) -> None:
    world.say("a", [0], 5, instance="one")
    world.say("a", [0], 9, instance="two")
    world.say("a", boot=5)  # the will of the first
    world.listen(30, speaking=["a"])
    world.claims.note_message("a", 9)
    assert world.reasons == []
    assert world.hosts == {0: "a"}
