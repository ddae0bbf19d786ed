"""What the watchdog learns of an agent's process."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedquilt_client import process
from fedquilt_client.participant import Participant, ParticipantSettings
from fedquilt_common.wire.broker_url import parse_broker_url
from fedquilt_common.wire.transport import MakeTransport, Will


class Idle:
    """A participant whose thread hangs until the test gives it work; and a stop signal that never comes.

    Attributes:
        work: what the thread does next.
        done: what it has done.
    """

    exit_code = 0

    def __init__(self) -> None:
        self.work: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[str] = queue.SimpleQueue()

    def connect(self, connect: MakeTransport, _should_stop: Callable[[], bool]) -> Participant:
        connect(print, Will("x", b""))
        return cast(Participant, self)

    def execute(self, should_stop: Callable[[], bool]) -> None:
        while (work := self.work.get()) != "leave":
            if work == "turn":
                should_stop()
            else:
                sum(range(10**5))
            self.done.put(work)

    def __call__(self) -> bool:
        return False


def wait_for(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_an_agent_that_hangs_has_no_pulse_though_its_connection_sends_pings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulses: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
    connection, agent = SimpleNamespace(bytes_sent=0), Idle()

    @contextlib.contextmanager
    def take(pulse: Callable[[], Any]) -> Iterator[None]:
        pulses.put(pulse)
        yield

    monkeypatch.setattr(process, "report_liveness", take)
    monkeypatch.setattr(process, "StopSignal", lambda: agent)
    monkeypatch.setattr(process, "MqttTransport", lambda *_, **__: connection)
    settings = cast(ParticipantSettings, SimpleNamespace(federation="lab", name="a", state=tmp_path))
    arguments = settings, parse_broker_url("127.0.0.1"), agent.connect
    main = threading.Thread(target=process.run_participant, args=arguments)
    main.start()
    try:
        pulse = pulses.get(timeout=60)

        def ignores_a_ping() -> bool:
            before = pulse()
            connection.bytes_sent += 2
            return bool(pulse() == before)

        for work in ("turn", "long work without a turn"):
            wait_for(ignores_a_ping)  # not while the thread still goes to its rest
            hanging = pulse()
            agent.work.put(work)
            assert agent.done.get(timeout=60) == work
            assert pulse() != hanging
    finally:
        agent.work.put("leave")
        main.join(60)
