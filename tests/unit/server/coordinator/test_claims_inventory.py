"""Who may host which client: the inventory and revoked boards; with a real machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fedquilt_common.types import Assignments
from fedquilt_server.coordinator.claims import SILENCE_SECONDS

if TYPE_CHECKING:
    from tests.unit.server.coordinator.conftest import ClaimsWorld


# -- the inventory ---------------------------------------------------------------------------------------------


def test_a_client_belongs_to_the_board_of_the_inventory(world: ClaimsWorld) -> None:
    world.assignments = Assignments({0: "a", 1: "b"})
    world.claims = world.new_claims()
    world.say("x", [0, 1, 2])
    assert world.hosts == {2: "x"}
    assert world.reasons == ["the inventory assigns clients 0\N{EN DASH}1 to a, b"]
    world.say("a", [0])
    world.say("b", [1])
    assert world.hosts == {0: "a", 1: "b", 2: "x"}
    assert len(world.reasons) == 1


def test_a_changed_inventory_moves_clients(world: ClaimsWorld) -> None:
    world.assignments = Assignments({0: "a"})
    world.say("a", [0, 1])
    world.say("b", [0, 1])
    world.listen(2, speaking=["a", "b"])
    assert world.hosts == {0: "a", 1: "a"}
    world.assignments = Assignments({0: "b"})
    world.listen(2, speaking=["a", "b"])
    assert world.hosts == {0: "b", 1: "a"}
    assert world.reasons[-1] == world.taken("client 1", "a")
    assert "the inventory assigns client 0 to b" in world.reasons


def test_the_inventory_holds_for_the_agents_of_the_journal(world: ClaimsWorld) -> None:
    world.say("a", [0, 1])
    world.assignments = Assignments({0: "b"})
    world.claims = world.new_claims()
    world.claims.restore()
    assert world.hosts == {1: "a"}


def test_a_change_beyond_the_limit_counts_when_it_comes_again(world: ClaimsWorld) -> None:
    while world.limit.count_join("a"):
        pass
    world.say("a", [0])
    assert world.hosts == {}
    world.limit.reset()
    world.say("a", [0], retained=True)
    assert world.hosts == {0: "a"}


def test_an_agent_beyond_the_limit_joins_again_in_the_same_exchange(world: ClaimsWorld) -> None:
    """Each chunk takes longer than the silence on its slow link, so it leaves and joins with each of them."""
    world.say("a", [0])
    while world.limit.count_join("a"):
        pass
    world.listen(SILENCE_SECONDS + 1)
    for _ in range(3):
        world.claims.note_message("a")
        assert world.hosts == {0: "a"}
        world.listen(SILENCE_SECONDS + 1)
        assert world.hosts == {}


def test_a_join_beyond_the_limit_is_postponed(world: ClaimsWorld) -> None:
    while world.limit.count_join("a"):
        pass
    world.say("a", [0])
    world.listen(30, speaking=["b"])
    assert world.hosts == {}
    world.listen(40, speaking=["b"])
    assert world.hosts == {0: "a"}


# -- revoked boards --------------------------------------------------------------------------------------------


def test_a_revoked_board_leaves_at_once_and_its_presence_is_cleared(world: ClaimsWorld) -> None:
    world.say("a", [0, 1])
    world.say("b", [0])
    world.assignments = Assignments({}, frozenset({"a", "never-seen"}))
    world.listen(1, speaking=["a", "b"])
    assert world.hosts == {0: "b"}
    assert world.cleared == ["a"]
    world.claims.note_message("a")  # it was under way
    assert world.hosts == {0: "b"}
    assert world.kinds() == ["Joined a", "Joined b", "Left a"]


def test_a_board_that_was_revoked_while_no_coordinator_ran_is_gone_at_the_start(world: ClaimsWorld) -> None:
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


def test_a_revoked_board_that_the_broker_still_accepts_is_reported_once(world: ClaimsWorld) -> None:
    world.assignments = Assignments({}, frozenset({"a"}))
    world.claims = world.new_claims()
    for _ in range(3):
        world.say("a", [0], instance="one")
        world.say("a")
    assert world.hosts == {}
    assert world.cleared == ["a"] * 6
    assert world.reasons == ["a is revoked, but the broker accepts it: give the broker its new revocation list and ACL"]


@pytest.mark.parametrize("seconds", [0, 1])
def test_a_board_with_a_new_identity_joins_with_its_next_presence(world: ClaimsWorld, seconds: float) -> None:
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
