"""Report to a supervisor that a service is up and alive.

The supervisor is systemd (``Type=notify``, sd_notify(3)), or a health check that reads a file's modification time.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SOCKET: Final = "NOTIFY_SOCKET"
WATCHDOG: Final = "WATCHDOG_USEC"
ALIVE: Final = "FEDQUILT_ALIVE"
"""Environment variable with the path of a file that is touched while the process is alive."""
ALIVE_SECONDS: Final = 5.0
_REPORTS: Final = 4
"""Reports within the time after which systemd considers the process dead."""


def notify(state: str) -> bool:
    """Send systemd ``READY=1``, ``WATCHDOG=1`` or ``STOPPING=1``.

    Returns:
        Whether it was sent; False without systemd.
    """
    address = os.environ.get(SOCKET, "")
    if not address:
        return False
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.connect("\0" + address[1:] if address.startswith("@") else address)
        line.send(state.encode())
        return True
    return False


@dataclass
class CountedStop:
    """Calls ``stop`` and counts the calls, so that the watchdog sees whether a program still takes turns."""

    stop: Callable[[], bool]
    count: int = 0

    def __call__(self) -> bool:
        self.count += 1
        return self.stop()


def measure_own_time() -> Callable[[], float]:
    """Return a function that returns the processor seconds of the thread that calls this one; any thread may call it.

    They stay the same while the thread waits, and grow while it works, however long that takes. So the watchdog
    distinguishes a thread that hangs from one that adds up large replies. It does not notice an endless loop.
    Always 0 where the system has no such clock, as macOS, which has no systemd either.
    """
    if not hasattr(time, "pthread_getcpuclockid"):
        return lambda: 0.0
    clock = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime(clock)


@contextlib.contextmanager
def report_liveness(pulse: Callable[[], Any]) -> Iterator[None]:
    """Report that the process is up, and then, in a thread, that it is alive, until the block ends.

    Args:
        pulse: returns a value that stays the same if the process hangs, such as turns of its main loop. Bytes sent
            do not qualify: the network thread sends pings even if the main thread hangs. Each change is reported.
    """
    done = threading.Event()
    has_systemd = notify("READY=1")
    if os.environ.get(ALIVE) or (has_systemd and os.environ.get(WATCHDOG)):
        threading.Thread(target=_report_changes, args=(pulse, done), name="watchdog", daemon=True).start()
    try:
        yield
    finally:
        done.set()
        notify("STOPPING=1")


def _report_changes(pulse: Callable[[], Any], done: threading.Event) -> None:
    limit, last = os.environ.get(WATCHDOG), None
    pause = int(limit) / 1e6 / _REPORTS if limit else ALIVE_SECONDS
    while True:
        now = pulse()
        if now != last:
            notify("WATCHDOG=1")
            _touch(os.environ.get(ALIVE, ""))
        last = now
        if done.wait(pause):
            return


def _touch(path: str) -> None:
    if path:
        with contextlib.suppress(OSError):  # a full disk must not stop training
            Path(path).touch()
