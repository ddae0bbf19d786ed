"""Senders wait for room in the window, but not for ever."""

from __future__ import annotations

import threading

import pytest

from fedquilt_common.wire import window as module
from fedquilt_common.wire.window import Window


def test_a_sender_that_waits_for_a_frozen_broker_gives_up_when_its_process_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "STEP_SECONDS", 0.001)
    asked = iter([False, False, True])
    window = Window(10, 2, lambda: next(asked))
    window.set_open(True)
    assert window.reserve(8)
    found: list[bool] = []
    sender = threading.Thread(target=lambda: found.append(window.reserve(3)), daemon=True)
    sender.start()
    sender.join(60)
    assert found == [False]
    assert next(asked, None) is None


def test_a_process_that_stops_still_publishes_its_farewell() -> None:
    window = Window(10, 2, lambda: True)
    window.set_open(True)
    assert window.reserve(8)
    assert not window.reserve(3)
    window.register(1, 8)
    window.acknowledge(1)
    assert window.drain(0)
    assert window.reserve(3)
