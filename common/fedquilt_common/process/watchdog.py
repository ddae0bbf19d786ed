"""How whoever supervises a service learns that it is up, and that it lives: systemd (``Type=notify``, sd_notify(3)), or
a health check that looks at the time of a file."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

SOCKET: Final = "NOTIFY_SOCKET"
WATCHDOG: Final = "WATCHDOG_USEC"
ALIVE: Final = "FEDQUILT_ALIVE"
"""Names a file that is touched as long as the process lives."""
ALIVE_SECONDS: Final = 5.0
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
def report_liveness(pulse: Callable[[], Any]) -> Iterator[None]:
    """Inside, the supervisor is told that we are up, and of every change of ``pulse()``: something that stands still
    only in a process that hangs, such as turns of a loop and bytes sent."""
    done = threading.Event()
    listens = notify("READY=1")
    if os.environ.get(ALIVE) or (listens and os.environ.get(WATCHDOG)):
        threading.Thread(target=_beat, args=(pulse, done), name="watchdog", daemon=True).start()
    try:
        yield
    finally:
        done.set()
        notify("STOPPING=1")


def _beat(pulse: Callable[[], Any], done: threading.Event) -> None:
    within, last = os.environ.get(WATCHDOG), None
    pause = int(within) / 1e6 / _PARTS if within else ALIVE_SECONDS
    while True:
        now = pulse()
        if now != last:
            notify("WATCHDOG=1")
            _touch(os.environ.get(ALIVE, ""))
        last = now
        if done.wait(pause):
            return


def _touch(place: str) -> None:
    if place:
        with contextlib.suppress(OSError):  # a full disk must not end training
            Path(place).touch()
