"""Follow a run through its status page's API."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from fedquilt_common.errors import PageUnreachableError
from fedquilt_server.library.page_reader import PageReader
from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.watch.state import WatchState
from fedquilt_server.watch.threaded import PAUSE_SECONDS, States


def page_states(reader: PageReader, *, once: bool) -> States:
    """Return a function that yields the states that a page reports.

    Args:
        reader: reads the page.
        once: raise the first failure; otherwise it is shown, and the page is asked again.
    """

    def states(closing: threading.Event) -> Iterator[WatchState]:
        snapshot = Snapshot()
        while not closing.is_set():
            trouble = f"the page at {reader.url} has closed its connection"
            try:
                for snapshot in reader.stream():
                    yield WatchState(snapshot, reader.url)
            except PageUnreachableError as error:
                if once:
                    raise
                trouble = str(error)
            yield WatchState(snapshot, reader.url, trouble)
            closing.wait(PAUSE_SECONDS)

    return states
