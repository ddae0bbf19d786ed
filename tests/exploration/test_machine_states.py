"""Every state of a few tiny worlds; ``make explore`` visits those of the larger ones."""

from __future__ import annotations

from typing import Any

import pytest
from tests.exploration.search import PropertyError, explore
from tests.exploration.world import World

from fedquilt_server.round.machine import Machine

CLAIMS = {"a": ((0, 1),), "b": ((1, 2),)}


@pytest.mark.long
@pytest.mark.parametrize(
    "world",
    [
        World(2, shortfall="replace", rounds=1, claims=CLAIMS),
        World(1, exchanges=1, claims=CLAIMS),
        World(2, shortfall="replace", exchanges=1, per_round=2, claims=CLAIMS),
        World(3, deadline=False, claims=CLAIMS),
    ],
    ids=str,
)
def test_every_state_of_a_small_world(world: World) -> None:
    found = explore(world)
    assert found.states > 100
    assert found.recoveries == found.states - 1
    assert found.finished
    assert {len(history) for history in found.models} == set(range(1, world.rounds + 1))


def forget_a_reply(machine: Machine) -> None:
    if machine.exchange is not None and machine.exchange.replies:
        client, _ = machine.exchange.replies.popitem()
        machine._accepted.pop((client, machine.round, machine.exchange.number), None)


def forget_the_silent(machine: Machine) -> None:
    machine._silent = set()


PLANTED = {
    "_leave": (forget_a_reply, "exactly the accepted replies count"),
    "_postpone": (forget_a_reply, "exactly the accepted replies count"),
    "restore": (forget_the_silent, "a crash after the checkpoint is durable changes nothing"),
}


@pytest.mark.parametrize("method", PLANTED)
def test_a_planted_defect_is_found_with_its_shortest_story(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    damage, text = PLANTED[method]
    sound = getattr(Machine, method)

    def damaged(machine: Machine, *given: Any) -> Any:
        done = sound(machine, *given)
        damage(machine)
        return done

    monkeypatch.setattr(Machine, method, damaged)
    with pytest.raises(PropertyError, match=text) as caught:
        explore(World(1, shortfall="replace", exchanges=1, per_round=2, claims=CLAIMS))
    assert "\n  1. a joins with clients (0, 1)\n" in str(caught.value)


@pytest.mark.long
def test_a_run_that_cannot_go_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that never replaces anybody waits forever for a client whose agent has left."""
    monkeypatch.setattr(Machine, "_shortfall", lambda machine, exchange, at: [])
    with pytest.raises(PropertyError, match="the connected clients alone can finish the run"):
        explore(World(1, shortfall="replace", rounds=1, exchanges=1))
