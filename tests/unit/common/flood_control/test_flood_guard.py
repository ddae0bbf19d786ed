"""Buckets and mutes: who floods, for how long it is muted, and how much the coordinator holds of it."""

from __future__ import annotations

from fedquilt_common.flood_control.flood_guard import (
    BURST,
    CONTROL_UNITS,
    FIRST_MUTE,
    LEAK_PER_SECOND,
    LONGEST_MUTE,
    MOST_ACCOUNTS,
    NAMES_AFTER_MUTE,
    RECORD_UNITS,
    REPLIES,
    RETAINED_NAME_UNITS,
    STRANGERS,
    FloodGuard,
    Mute,
    chunk_units,
    control_units,
)
from fedquilt_common.wire.messages import AgentPresence

CHUNK = 256 * 1024


def flood(guard: FloodGuard, agent: str = "noisy", now: float = 0.0) -> Mute:
    """Charge an agent until it is muted."""
    while True:
        if mute := guard.charge(agent, 1.0, now):
            return mute


def test_an_agent_below_the_leak_is_never_muted() -> None:
    guard, now = FloodGuard(clients=4, chunk=CHUNK), 0.0
    for _ in range(int(20 * guard.room("pi"))):
        now += 1.01 / LEAK_PER_SECOND
        assert guard.charge("pi", 1.0, now) is None


def test_a_burst_beyond_the_bucket_mutes_only_its_agent() -> None:
    guard = FloodGuard(clients=4, chunk=CHUNK)
    assert guard.charge("pi", guard.room("pi"), 0.0) is None
    assert guard.charge("noisy", guard.room("noisy") + 1.0, 0.0) == Mute("noisy", FIRST_MUTE)
    assert guard.is_muted("noisy")
    assert not guard.is_muted("pi")
    assert guard.charge("noisy", 1.0, 0.0) is None  # a mute begins once


def test_each_mute_is_twice_as_long_until_the_agent_is_calm() -> None:
    guard, now, lengths = FloodGuard(clients=4, chunk=CHUNK), 0.0, []
    for _ in range(8):
        mute = flood(guard, now=now)
        lengths.append(mute.seconds)
        assert guard.end_mutes(now + mute.seconds - 0.1) == []
        now += mute.seconds
        assert guard.end_mutes(now) == ["noisy"]
    assert lengths == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, LONGEST_MUTE, LONGEST_MUTE]
    assert flood(guard, now=now + LONGEST_MUTE).seconds == FIRST_MUTE


def test_replies_that_count_cost_nothing() -> None:
    guard = FloodGuard(clients=4, chunk=CHUNK)
    units = 700 * chunk_units(256 * 1024)
    guard.expect(units)
    for _ in range(50):
        assert guard.charge("pi", units, 0.0) is None
        guard.refund("pi", units)
    assert guard.room("pi") >= REPLIES * units + BURST
    assert guard.charge("pi", guard.room("pi"), 0.0) is None
    assert guard.charge("pi", 1.0, 0.0) is not None


def test_a_large_message_costs_more_than_a_small_one() -> None:
    assert (chunk_units(0), control_units(300)) == (1.0, CONTROL_UNITS)
    assert chunk_units(1 << 20) == 33.0
    guard = FloodGuard(clients=100, chunk=CHUNK)
    assert control_units(8 << 20) > guard.room("pi")  # one such message a minute is too much


def test_an_agent_with_all_clients_of_a_large_experiment_is_not_muted_by_its_presence() -> None:
    """After a restart of the broker, its presence may arrive several times."""
    guard, clients = FloodGuard(clients=100_000, chunk=CHUNK), list(range(100_000))
    presence = AgentPresence(agent="pi", online=True, boot=1, clients=clients).encode()
    for _ in range(3):
        assert guard.charge("pi", control_units(len(presence)) + RECORD_UNITS, 0.0) is None


def test_a_flood_for_a_month_has_no_effect_on_the_length_of_a_mute() -> None:
    guard, now = FloodGuard(clients=4, chunk=CHUNK), 0.0
    for _ in range(5000):
        mute = guard.charge("noisy", guard.room("noisy") + 1.0, now)
        assert mute is not None
        now += mute.seconds
        assert guard.end_mutes(now) == ["noisy"]
    assert flood(guard, now=now).seconds == LONGEST_MUTE


def test_an_agent_has_more_room_only_while_it_is_set() -> None:
    guard = FloodGuard(clients=4, chunk=CHUNK)
    usual = guard.room("pi")
    guard.make_room("pi", 1000.0)
    assert (guard.room("pi"), guard.room("jetson")) == (usual + 1000.0, usual)
    guard.make_room("pi", 0.0)
    assert guard.room("pi") == usual
    assert not guard._rooms


def test_what_names_no_agent_fills_the_bucket_of_new_names() -> None:
    guard = FloodGuard(clients=1000, chunk=CHUNK)
    assert guard.room(STRANGERS) > guard.room("pi")
    assert guard.charge(STRANGERS, guard.room(STRANGERS), 0.0) is None
    assert guard.charge(STRANGERS, 1.0, 0.0) == Mute(STRANGERS, FIRST_MUTE)


def test_a_fleet_that_is_larger_than_the_experiment_may_appear_at_once() -> None:
    guard = FloodGuard(clients=4, chunk=CHUNK)
    assert all(guard.charge(f"pi-{n}", CONTROL_UNITS + RECORD_UNITS, 0.0) is None for n in range(100))


def test_names_that_the_broker_retains_may_be_a_thousand() -> None:
    guard = FloodGuard(clients=4, chunk=CHUNK)
    assert all(guard.charge(f"pi-{n}", CONTROL_UNITS, 0.0, RETAINED_NAME_UNITS) is None for n in range(1000))


def test_agents_of_the_journal_are_not_new() -> None:
    guard = FloodGuard(clients=4, chunk=CHUNK)
    names = [f"pi-{n}" for n in range(5000)]
    guard.open(names, 0.0)
    assert all(guard.charge(name, CONTROL_UNITS, 0.0) is None for name in names)


def test_many_new_names_mute_new_names_and_no_known_agent() -> None:
    guard = FloodGuard(clients=4, chunk=CHUNK)
    assert guard.charge("pi", 1.0, 0.0) is None
    mutes = [mute for number in range(1000) if (mute := guard.charge(f"name-{number}", 1.0, 0.0))]
    assert mutes == [Mute(STRANGERS, FIRST_MUTE)]
    assert guard.is_muted("another")
    assert not guard.is_muted("pi")
    assert guard.end_mutes(FIRST_MUTE) == [STRANGERS]
    assert not guard.is_muted("another")
    later = [guard.charge(f"later-{number}", 1.0, FIRST_MUTE) for number in range(NAMES_AFTER_MUTE + 1)]
    assert later == [*[None] * NAMES_AFTER_MUTE, Mute(STRANGERS, 2 * FIRST_MUTE)]


def test_every_agent_of_a_large_experiment_may_appear_at_once() -> None:
    guard = FloodGuard(clients=5000, chunk=CHUNK)
    assert all(guard.charge(f"pi-{n}", 1.0 + RECORD_UNITS, 0.0) is None for n in range(5000))


def test_names_without_end_do_not_fill_the_memory() -> None:
    guard = FloodGuard(clients=4, chunk=CHUNK)
    flood(guard)
    for number in range(3 * MOST_ACCOUNTS):
        guard.charge(f"name-{number}", 1.0, now=number / LEAK_PER_SECOND)
    assert len(guard._accounts) <= MOST_ACCOUNTS + 1
    assert guard.is_muted("noisy")


def test_many_names_empty_no_bucket_while_other_agents_are_calm() -> None:
    guard = FloodGuard(clients=4, chunk=CHUNK)
    more_than_half = guard.room("pi") / 2 + 1
    assert guard.charge("pi", more_than_half, 0.0) is None
    guard.open((f"name-{number}" for number in range(MOST_ACCOUNTS)), 0.0)
    assert len(guard._accounts) < MOST_ACCOUNTS  # the guard has forgotten some
    assert guard.charge("pi", more_than_half, 0.0) == Mute("pi", FIRST_MUTE)


def test_a_new_size_empties_the_buckets_and_ends_no_mute() -> None:
    guard = FloodGuard(clients=4, chunk=CHUNK)
    flood(guard)
    guard.charge("pi", guard.room("pi"), 0.0)
    guard.fit(clients=2, chunk=CHUNK)
    assert guard.is_muted("noisy")
    assert guard.charge("pi", guard.room("pi"), 0.0) is None
