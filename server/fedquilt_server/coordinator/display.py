"""Turns what happens into what the page shows; decides nothing."""

from __future__ import annotations

from collections import Counter
from typing import Final

from fedquilt_server.round.events import Event, Rejected, Replied, Send
from fedquilt_server.round.machine import Machine
from fedquilt_server.runs.run import Run
from fedquilt_server.status.snapshot import CLIENT_FAILED, BoardStatus, RejectedReply, StatusStore

REJECTIONS_SHOWN: Final = 20


class StatusUpdater:
    """Keeps the snapshot's counters, over restarts of the coordinator too: from the journal's rows and events."""

    def __init__(self, board: StatusStore) -> None:
        self._board = board
        self._totals: Counter[str] = Counter()
        self._rejections: list[RejectedReply] = []
        self._failing: dict[int, str] = {}

    def start(self, run: Run, boards: list[BoardStatus]) -> None:
        """What is known before anything happens."""
        experiment, history = run.experiment, run.journal.results()
        self._totals.update(
            accepted=sum(row.replies for row in history),
            late=sum(row.late for row in history),
            duplicate=sum(row.duplicates for row in history),
            rejected=sum(row.rejected for row in history),
        )
        self._board.update(
            name=experiment.name,
            run=run.id,
            algorithm=experiment.algorithm.name,
            dataset=experiment.data.set,
            rounds=experiment.rounds,
            round=run.machine.done,
            started_at=run.started_at,
            history=history,
            boards=boards,
            awaited=run.machine.awaited,
            **self._counts(),
        )

    def exchange(self, send: Send, machine: Machine) -> None:
        """An exchange opens, or is open again."""
        self._failing.clear()
        self._board.update(
            phase="sending",
            round=send.round,
            exchange=send.exchange,
            deadline=send.deadline,
            tasks=len(send.tasks),
            replies=len(machine.exchange.replies) if machine.exchange else 0,
            awaited=machine.awaited,
            **self._counts(),
        )

    def show_event(self, event: Event, machine: Machine) -> None:
        """The machine has taken an event in."""
        if isinstance(event, Rejected):
            self._refused(event)
        elif isinstance(event, Replied):
            self._totals["accepted"] += 1
            now = machine.exchange
            still_open = now is not None and (machine.round, now.number) == (event.round, event.exchange)
            replies = len(now.replies) if now and still_open else self._board.current.replies + 1
            self._failing.pop(event.client, None)
            self._board.update(replies=replies, accepted=self._totals["accepted"], failing=len(self._failing))

    def show_waiting(self, machine: Machine) -> None:
        """All that followed from an event is done: whom is waited for now."""
        now = self._board.current
        idle = machine.exchange is None and not machine.finished
        changes = {"awaited": machine.awaited, "phase": "waiting" if idle else now.phase}
        if changes != {"awaited": now.awaited, "phase": now.phase}:
            self._board.update(**changes)

    def _refused(self, event: Rejected) -> None:
        self._totals[event.outcome] += 1
        if event.outcome == "rejected":
            latest = RejectedReply(
                at=event.at, agent=event.agent, client=event.client, round=event.round, reason=event.reason
            )
            self._rejections = [latest, *self._rejections][:REJECTIONS_SHOWN]
            if event.client is not None and event.reason.startswith(CLIENT_FAILED):
                self._failing[event.client] = event.reason
        self._board.update(rejections=self._rejections, **self._counts())

    def _counts(self) -> dict[str, int]:
        totals = self._totals
        return {
            "accepted": totals["accepted"],
            "late": totals["late"],
            "duplicates": totals["duplicate"],
            "rejected": totals["rejected"],
            "failing": len(self._failing),
        }


def show_finished(run: Run, board: StatusStore) -> None:
    """What is known of a run that was over before this program started."""
    StatusUpdater(board).start(run, [])
    board.update(phase="finished", message="all rounds are done")
