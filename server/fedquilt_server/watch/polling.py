"""Fetch states from a thread of its own, so that a page or a disk that hangs does not delay the terminal."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

from fedquilt_common.errors import FedquiltError
from fedquilt_server.watch.state import WatchState

POLL_SECONDS: Final = 0.5


class PolledSource:
    """A source that is asked again and again.

    Args:
        fetch: returns the state now, given the last one.
    """

    def __init__(self, fetch: Callable[[WatchState | None], WatchState]) -> None:
        self._fetch = fetch
        self._states: queue.SimpleQueue[WatchState | FedquiltError] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="watch", daemon=True)
        self.complete = False

    def __enter__(self) -> PolledSource:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()  # the thread may wait for an answer: it ends with the program

    def next(self, timeout: float) -> WatchState | None:
        """Return the next state; None if nothing has changed within ``timeout`` seconds.

        Raises:
            FedquiltError: as ``fetch``.
        """
        try:
            found = self._states.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(found, FedquiltError):
            raise found
        self.complete = True
        return found

    def _poll(self) -> None:
        last: WatchState | None = None
        while not self._closing.is_set():
            try:
                state = self._fetch(last)
            except FedquiltError as error:
                self._states.put(error)
                return
            if last is None or _key(state) != _key(last):
                self._states.put(state)
            last = state
            self._closing.wait(POLL_SECONDS)


def _key(state: WatchState) -> tuple[object, ...]:
    """Return what differs between two states that are both worth showing."""
    now = state.snapshot
    return state.source, state.trouble, now.run, now.version, now.phase
