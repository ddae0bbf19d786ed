"""Buckets and mutes: who floods, for how long it is muted, and how much the coordinator holds of it."""

from __future__ import annotations

from fedquilt_server.coordinator.flood_guard import (
    BURST,
    CONTROL_UNITS,
    FIRST_MUTE,
    LEAK_PER_SECOND,
    LONGEST_MUTE,
    MOST_ACCOUNTS,
    RECORD_UNITS,
    REPLIES,
    STRANGERS,
    FloodGuard,
    Mute,
    chunk_units,
    control_units,
)


def flood(guard: FloodGuard, agent: str = "noisy", now: float = 0.0) -> Mute:
    """Charge an agent until it is muted."""
    while True:
        if mute := guard.charge(agent, 1.0, now):
            return mute


def test_an_agent_below_the_leak_is_never_muted() -> None:
    guard, now = FloodGuard(clients=4), 0.0
    for _ in range(int(20 * BURST)):
        now += 1.01 / LEAK_PER_SECOND
        assert guard.charge("pi", 1.0, now) is None


def test_a_burst_beyond_the_bucket_mutes_only_its_agent() -> None:
    guard = FloodGuard(clients=4)
    assert guard.charge("pi", BURST, 0.0) is None
    assert guard.charge("noisy", BURST + 1.0, 0.0) == Mute("noisy", FIRST_MUTE)
    assert guard.is_muted("noisy")
    assert not guard.is_muted("pi")
    assert guard.charge("noisy", 1.0, 0.0) is None  # a mute begins once


def test_each_mute_is_twice_as_long_until_the_agent_is_calm() -> None:
    guard, now, lengths = FloodGuard(clients=4), 0.0, []
    for _ in range(8):
        mute = flood(guard, now=now)
        lengths.append(mute.seconds)
        assert guard.end_mutes(now + mute.seconds - 0.1) == []
        now += mute.seconds
        assert guard.end_mutes(now) == ["noisy"]
    assert lengths == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, LONGEST_MUTE, LONGEST_MUTE]
    assert flood(guard, now=now + LONGEST_MUTE).seconds == FIRST_MUTE


def test_replies_that_count_cost_nothing() -> None:
    guard = FloodGuard(clients=4)
    units = 700 * chunk_units(256 * 1024)
    guard.expect(units)
    for _ in range(50):
        assert guard.charge("pi", units, 0.0) is None
        guard.refund("pi", units)
    assert guard.charge("pi", REPLIES * units + BURST, 0.0) is None
    assert guard.charge("pi", 1.0, 0.0) is not None


def test_a_large_message_costs_more_than_a_small_one() -> None:
    assert (chunk_units(0), control_units(300)) == (1.0, CONTROL_UNITS)
    assert chunk_units(1 << 20) == 33.0
    assert control_units(8 << 20) > BURST  # one such message a minute is too much


def test_many_new_names_mute_new_names_and_no_known_agent() -> None:
    guard = FloodGuard(clients=4)
    assert guard.charge("pi", 1.0, 0.0) is None
    mutes = [mute for number in range(1000) if (mute := guard.charge(f"name-{number}", 1.0, 0.0))]
    assert mutes == [Mute(STRANGERS, FIRST_MUTE)]
    assert guard.is_muted("another")
    assert not guard.is_muted("pi")
    assert guard.end_mutes(FIRST_MUTE) == [STRANGERS]
    assert not guard.is_muted("another")


def test_every_agent_of_a_large_experiment_may_appear_at_once() -> None:
    guard = FloodGuard(clients=5000)
    assert all(guard.charge(f"pi-{n}", 1.0 + RECORD_UNITS, 0.0) is None for n in range(5000))


def test_names_without_end_do_not_fill_the_memory() -> None:
    guard = FloodGuard(clients=4)
    flood(guard)
    for number in range(3 * MOST_ACCOUNTS):
        guard.charge(f"name-{number}", 1.0, now=number / LEAK_PER_SECOND)
    assert len(guard._accounts) <= MOST_ACCOUNTS + 1
    assert guard.is_muted("noisy")
