"""What systemd is told by a service of ``Type=notify``: that it is up, and that it lives (sd_notify(3))."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

SOCKET: Final = "NOTIFY_SOCKET"
WATCHDOG: Final = "WATCHDOG_USEC"
_PARTS: Final = 4
"""A beat is due this often within the time after which systemd takes us for dead."""


def notify(state: str) -> bool:
    """Say ``READY=1``, ``WATCHDOG=1`` or ``STOPPING=1``; False where nobody listens."""
    place = os.environ.get(SOCKET, "")
    if not place:
        return False
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.connect("\0" + place[1:] if place.startswith("@") else place)
        line.send(state.encode())
        return True
    return False


@contextlib.contextmanager
def supervised(pulse: Callable[[], Any]) -> Iterator[None]:
    """Inside, systemd is told that we are up, and of every change of ``pulse()``: something that stands still only in a
    process that hangs, such as turns of a loop and bytes sent."""
    done = threading.Event()
    beats = threading.Thread(target=_beat, args=(pulse, done), name="watchdog", daemon=True)
    if notify("READY=1") and os.environ.get(WATCHDOG):
        beats.start()
    try:
        yield
    finally:
        done.set()
        notify("STOPPING=1")


def _beat(pulse: Callable[[], Any], done: threading.Event) -> None:
    pause, last = int(os.environ[WATCHDOG]) / 1e6 / _PARTS, None
    while not done.wait(pause):
        now = pulse()
        if now != last:
            notify("WATCHDOG=1")
        last = now
