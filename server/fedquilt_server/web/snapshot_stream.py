"""The event stream of whole snapshots, for programs: `fedquilt watch` reads it."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator
from typing import Final

import anyio

from fedquilt_server.status.snapshot import Snapshot, StatusStore
from fedquilt_server.web.api import snapshot_since
from fedquilt_server.web.frames import FRAME_SECONDS, encode_event
from fedquilt_server.web.stream import HEARTBEAT_SECONDS

LEFT_OUT: Final = {"reply_rows"}
"""Large; they have a route of their own."""


async def stream_snapshots(store: StatusStore, since: int, closing: threading.Event) -> AsyncIterator[bytes]:
    """Yield each new snapshot until the reader disconnects or the server closes; the last one shows how the run ended.

    A reader that reads slowly skips snapshots, but no round: each event has the rounds that are new to its reader.

    Args:
        store: where the coordinator writes the snapshots.
        since: the last round that the reader holds.
        closing: set when the server closes.
    """
    sent: Snapshot | None = None
    beat, closed = time.monotonic(), False
    while not closed:
        closed = closing.is_set()
        snapshot, now = store.current, time.monotonic()
        if snapshot is not sent:
            yield encode_event("snapshot", snapshot_since(snapshot, since).model_dump_json(exclude=LEFT_OUT))
            sent, beat = snapshot, now
            since = snapshot.history[-1].round if snapshot.history else since
        elif now - beat >= HEARTBEAT_SECONDS:
            yield encode_event("clock", f"{time.time():.3f}")
            beat = now
        if not closed:
            await anyio.sleep(FRAME_SECONDS)
