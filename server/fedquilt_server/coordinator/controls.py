"""Carries out what a person asks of a run: pause, continue, stop after the round, drop or readmit a board.

Each request is durable before it has an effect, so it holds after a restart of the coordinator.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Final

from fedquilt_server.coordinator.claims import Claims
from fedquilt_server.coordinator.refusals import Record
from fedquilt_server.round.events import Continued, Paused
from fedquilt_server.runs import clock
from fedquilt_server.runs.run import ActiveRun
from fedquilt_server.status.control import ControlRequest
from fedquilt_server.status.snapshot import StatusStore

log = logging.getLogger(__name__)

_DROPPED: Final = "dropped"
"""Key of the journal: JSON list of the boards that were dropped."""
_STOPPING: Final = "stopping"
"""Key of the journal: "yes" if the run ends after the open round."""


class Controls:
    """The requests to one run.

    Args:
        run: its journal keeps the requests.
        claims: joins and drops agents.
        record: journals an event and passes it to the machine.
        publish_again: publishes the manifest again, with which agents offer replies that were refused.
        store: shows whether the run is paused.
    """

    def __init__(
        self,
        run: ActiveRun,
        claims: Claims,
        record: Record,
        publish_again: Callable[[], None],
        store: StatusStore,
    ) -> None:
        self._run, self._claims, self._record, self._store = run, claims, record, store
        self._publish_again = publish_again
        self._stopping = False

    def restore(self) -> None:
        """Apply the requests of an earlier start. A run that was stopped after a round goes on."""
        for board in self._read_dropped():
            self._run.history.counts_of(board).is_dropped = True
            self._claims.drop(board)
        if self._run.folder.journal.meta(_STOPPING) == "yes":
            self._run.folder.journal.set_meta(_STOPPING, "no")
            if self._run.machine.paused:
                self._record(Continued(clock.now()))
        self._show()

    @property
    def wants_end(self) -> bool:
        """Whether the run is to end now: a person has stopped it, and no round is open."""
        return self._stopping and self._run.machine.exchange is None

    def take(self, request: ControlRequest) -> None:
        """Carry out a request; one that changes nothing is ignored."""
        log.info("a person requests: %s %s", request.action, request.board)
        match request.action:
            case "pause":
                self._pause()
            case "continue":
                self._continue()
            case "stop":
                self._stop()
            case "drop" | "readmit":
                self._set_dropped(request.board, dropped=request.action == "drop")
        self._show()

    def _pause(self) -> None:
        if not self._run.machine.paused and not self._run.machine.finished:
            self._record(Paused(clock.now()))

    def _stop(self) -> None:
        if self._stopping:
            return
        self._run.folder.journal.set_meta(_STOPPING, "yes")
        self._stopping = True
        if not self._run.machine.finished:
            self._record(Paused(clock.now(), stops=True))

    def _continue(self) -> None:
        self._run.folder.journal.set_meta(_STOPPING, "no")
        self._stopping = False
        if self._run.machine.paused:
            self._record(Continued(clock.now()))

    def _set_dropped(self, board: str, *, dropped: bool) -> None:
        before = self._read_dropped()
        if (board in before) == dropped:
            return
        after = [*before, board] if dropped else [name for name in before if name != board]
        self._run.folder.journal.set_meta(_DROPPED, json.dumps(after))
        history = self._run.history
        history.counts_of(board).is_dropped = dropped
        if dropped:
            history.add("dropped", clock.now(), "somebody has dropped it from the run", board=board)
            self._claims.drop(board)
        else:
            history.add("readmitted", clock.now(), "may take part again", board=board)
            self._claims.readmit(board)
            self._publish_again()

    def _read_dropped(self) -> list[str]:
        names: list[str] = json.loads(self._run.folder.journal.meta(_DROPPED) or "[]")
        return names

    def _show(self) -> None:
        self._store.update(paused=self._run.machine.paused, stopping=self._stopping)
