"""Feeds a sink from a thread of its own: a sink that is slow, full or away never delays the run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from fedquilt_common.plurals import counted
from fedquilt_server.sinks.sink import Sink, board_scalars, round_scalars
from fedquilt_server.status.results import RunStatus
from fedquilt_server.status.snapshot import ENDED, Snapshot

RETRY_SECONDS: Final = 30.0
"""Seconds between two attempts after a failure."""
CLOSE_SECONDS: Final = 10.0
"""How long the end of the program waits for a sink."""
LONGEST_REASON: Final = 160


class SinkFeeder:
    """Writes each finished round to a sink once.

    After a failure it opens the sink again, which then knows its last round, so no round is lost or written twice.

    Args:
        name: the sink's name, for messages.
        open_sink: opens the sink for a run.
        report: called with a sentence when the sink fails, and when it works again.
        retry_seconds: pause after a failure.
    """

    def __init__(
        self,
        name: str,
        open_sink: Callable[[str], Sink],
        report: Callable[[str], None],
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._name, self._open_sink, self._report, self._retry_seconds = name, open_sink, report, retry_seconds
        self._newest: Snapshot | None = None
        self._sink: Sink | None = None
        self._written, self._failed, self._ended = 0, False, False
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"sink-{name}", daemon=True)

    def start(self) -> None:
        """Begin to feed the sink."""
        self._thread.start()

    def show(self, snapshot: Snapshot) -> None:
        """Take the newest snapshot of the run; returns at once."""
        if snapshot.run:
            boards = snapshot.boards or (self._newest.boards if self._newest else [])  # a result file has none
            self._newest = snapshot.model_copy(update={"boards": boards})
            self._wake.set()

    def close(self) -> None:
        """Write what is left, and report the rounds that could not be written."""
        self._closing.set()
        self._wake.set()
        self._thread.join(CLOSE_SECONDS)
        finished = self._newest.history[-1].round if self._newest and self._newest.history else 0
        if (missing := finished - self._written) > 0:
            self._report(
                f"{self._name} has not received the last {counted(missing, 'round')}. result.json in the run folder "
                "has them; a run that is resumed with the same option sends them"
            )

    def _work(self) -> None:
        closing = False
        while not closing:
            self._wake.wait()
            self._wake.clear()
            closing = self._closing.is_set()
            if self._newest is not None and not self._ended and not self._attempt(self._newest) and not closing:
                self._closing.wait(self._retry_seconds)
                self._wake.set()

    def _attempt(self, snapshot: Snapshot) -> bool:
        """Bring the sink up to date; returns False after a failure, which is reported once."""
        try:
            self._catch_up(snapshot)
        except Exception as error:  # any error of a package or a server: the run matters more
            self._sink = None
            if not self._failed:
                self._failed = True
                self._report(f"{self._name} does not take the results: {_first_line(error)}. The run goes on")
            return False
        if self._failed:
            self._failed = False
            self._report(f"{self._name} takes the results again, from the first missing round on")
        return True

    def _catch_up(self, snapshot: Snapshot) -> None:
        if self._sink is None:
            self._sink = self._open_sink(snapshot.run)
            self._written = self._sink.last_round
        for row in snapshot.history:
            if row.round > self._written:
                boards = board_scalars(snapshot.boards) if row is snapshot.history[-1] else {}
                self._sink.write(row.round, {**round_scalars(row), **boards})
                self._written = row.round
        if snapshot.phase in ENDED:
            self._sink.end(_status(snapshot))
            self._ended = True


def _status(snapshot: Snapshot) -> RunStatus:
    ends: dict[str, RunStatus] = {"failed": "failed", "stopped": "stopped"}
    return ends.get(snapshot.phase, "finished")


def _first_line(error: Exception) -> str:
    text = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}..."
