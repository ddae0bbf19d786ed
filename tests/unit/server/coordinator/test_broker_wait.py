"""A coordinator that starts waits for a broker that may come, and for nothing else."""

from __future__ import annotations

import queue

import pytest

from fedquilt_common.errors import BrokerUnreachableError
from fedquilt_common.wire.transport import Connected, Disconnected, Incoming
from fedquilt_server.coordinator.broker_wait import await_broker

AWAY = Disconnected("no MQTT broker answers at mqtt://lab:1883")
REFUSED = Disconnected("mqtt://lab:1883 refused the connection", refused=True, advice="Correct the password")


def inbox(*events: Incoming) -> queue.SimpleQueue[Incoming]:
    waiting = queue.SimpleQueue[Incoming]()
    for event in events:
        waiting.put(event)
    return waiting


def test_attempts_that_fail_are_taken_until_the_broker_accepts() -> None:
    taken, there = list[Incoming](), Connected(session_present=False)
    assert await_broker(inbox(AWAY, AWAY, there), taken.append, 1000.0, lambda: False) == there
    assert taken == [AWAY, AWAY, there]


def test_a_refusal_ends_the_wait_at_once() -> None:
    with pytest.raises(BrokerUnreachableError) as failure:
        await_broker(inbox(AWAY, REFUSED), lambda _: None, 1000.0, lambda: False)
    assert str(failure.value) == "mqtt://lab:1883 refused the connection. Correct the password"


def test_the_end_of_the_wait_names_the_option() -> None:
    with pytest.raises(BrokerUnreachableError, match=r"answers at mqtt://lab:1883\. .*raise --broker-wait \(0.1 s\)"):
        await_broker(inbox(AWAY), lambda _: None, 0.1, lambda: False)


def test_a_stop_ends_the_wait_for_a_silent_broker() -> None:
    assert await_broker(inbox(), lambda _: None, 1000.0, lambda: True) is None
