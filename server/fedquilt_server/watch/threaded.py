"""Collect states in a thread of its own, so that a page or a disk that hangs does not delay the terminal."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Final

from fedquilt_common.errors import FedquiltError
from fedquilt_server.watch.state import WatchState

PAUSE_SECONDS: Final = 0.5
"""Pause between two attempts to find something new."""
States = Callable[[threading.Event], Iterator[WatchState]]
"""Yields states until the event is set."""


class ThreadedSource:
    """A source whose states a thread collects.

    Args:
        states: yields them.
    """

    def __init__(self, states: States) -> None:
        self._make_states = states
        self._states: queue.SimpleQueue[WatchState | FedquiltError] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._collect, name="watch", daemon=True)
        self.complete = False

    def __enter__(self) -> ThreadedSource:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()  # the thread may wait for an answer: it ends with the program

    def next(self, timeout: float) -> WatchState | None:
        """Return the next state; None if nothing has changed within ``timeout`` seconds.

        Raises:
            FedquiltError: as the states.
        """
        try:
            found = self._states.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(found, FedquiltError):
            raise found
        self.complete = True
        return found

    def _collect(self) -> None:
        shown: tuple[object, ...] = ()
        try:
            for state in self._make_states(self._closing):
                if shown != (shown := _key(state)):
                    self._states.put(state)
        except FedquiltError as error:
            self._states.put(error)


def _key(state: WatchState) -> tuple[object, ...]:
    """Return what differs between two states that are both worth showing."""
    now = state.snapshot
    return state.source, state.trouble, now.run, now.version, now.phase
