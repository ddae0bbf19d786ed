"""Updates the status that the page shows when something happens in a run; decides nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from fedquilt_common.wire.messages import ESTIMATE
from fedquilt_server.coordinator.failures import Failures, pick_failures
from fedquilt_server.history.history import History
from fedquilt_server.round.events import Event, Joined, Left, Rejected, Replied, Send
from fedquilt_server.round.machine import Machine
from fedquilt_server.runs import clock
from fedquilt_server.runs.run import ActiveRun
from fedquilt_server.status.agent_list import AgentList
from fedquilt_server.status.budget import BudgetUse
from fedquilt_server.status.placement import PlacementReader, PlacementRecord
from fedquilt_server.status.results import PrivacySpent, RoundResult
from fedquilt_server.status.snapshot import BoardStatus, RejectedReply, StatusStore

REJECTIONS_SHOWN: Final = 20
"""Rejected replies on the page, the latest first."""

FAILURES_SHOWN: Final = 5
"""Failing clients whose reason is shown."""


class StatusUpdater:
    """Keeps the snapshot in the status store, with counters that survive restarts of the coordinator.

    Args:
        store: where the page, the API and the metrics read.
        agents: the agents' latest presence and telemetry.
    """

    def __init__(self, store: StatusStore, agents: AgentList) -> None:
        self._store = store
        self._agents = agents
        self._totals: Counter[str] = Counter()
        self._together = 0
        self._rejections: list[RejectedReply] = []
        self._failures = Failures()
        self._history: History | None = None
        self._privacy: Callable[[], list[PrivacySpent]] = list
        self._joules = 0.0
        self._silences: Mapping[str, float] = {}
        self._sending: Collection[str] = ()
        self._placements: PlacementReader | None = None
        self._placed: PlacementRecord | None = None

    @property
    def boards(self) -> list[BoardStatus]:
        """The agents as the page lists them."""
        return self._agents.boards()

    def start(self, run: ActiveRun) -> None:
        """Show the journal's results before the run continues."""
        experiment, rows = run.experiment, run.folder.journal.results()
        self._placements = PlacementReader(run.folder.path)
        self._history, self._privacy = run.history, lambda: run.privacy
        self._joules = math.fsum(row.joules or 0.0 for row in rows)
        self._agents.restore_energy(run.history.board_joules)
        self._totals.update(
            accepted=sum(row.replies for row in rows),
            late=sum(row.late for row in rows),
            duplicate=sum(row.duplicates for row in rows),
            rejected=sum(row.rejected for row in rows),
        )
        self._store.update(
            name=experiment.name,
            run=run.folder.run,
            algorithm=experiment.algorithm.name,
            dataset=experiment.data.set,
            rounds=experiment.rounds,
            round=run.machine.done,
            started_at=run.folder.started_at,
            history=[row for row in rows if not row.awaits_scores],
            boards=self.boards,
            awaited=run.machine.awaited,
            warning=run.divergence.warning,
            budget=run.budget.uses,
            privacy=run.privacy,
            **self._counts(),
            **self._happened(),
        )

    def _happened(self) -> dict[str, object]:
        """Return the latest events and replies."""
        if (history := self._history) is None:
            return {}
        rows = [*history.rows, *history.open_rows()]
        return {"events": history.events, "reply_rows": rows, "coverage": history.coverage}

    # -- phases of a round ---------------------------------------------------------------------

    def show_exchange(self, send: Send, machine: Machine) -> None:
        """Show an exchange that opens or reopens."""
        self._failures.clear()
        self._store.update(
            phase="sending",
            round=send.round,
            exchange=send.exchange,
            deadline=send.deadline,
            opened_at=clock.now(),
            tasks=len(send.tasks) + len(send.earlier),
            until=send.until,
            replies=len(machine.exchange.replies) if machine.exchange else 0,
            awaited=machine.awaited,
            **self._failing(machine),
            **self._counts(),
        )

    def show_training(self) -> None:
        """Show that the tasks are published."""
        self._store.update(phase="training")

    def show_averaging(self) -> None:
        """Show that an exchange closes: its replies are averaged."""
        self._store.update(phase="averaging", deadline=None)

    def show_evaluating(self) -> None:
        """Show that a round is aggregated."""
        self._store.update(phase="evaluating")

    def show_round(self, row: RoundResult, warning: str, budget: Sequence[BudgetUse]) -> None:
        """Show a finished round, the warning that the training has diverged, and what is used of the budget."""
        history = [*self._store.current.history, row]
        changes = {"warning": warning, "budget": list(budget), "privacy": self._privacy()}
        self._store.update(history=history, **changes, **self._happened())

    def take_energy(self) -> dict[str, float | bool | None]:
        """Return the joules of all boards since the round before, and how and of how many boards they are known."""
        total, sources = self._agents.settle_energy(clock.now()), self._agents.energy_sources
        if total is None:
            return {"joules": None}
        joules = max(0.0, total - self._joules)
        self._joules += joules
        measured = bool(sources - {ESTIMATE})
        boards, seen = self._agents.energy_coverage
        known = {"joules_boards": boards, "joules_boards_missing": seen - boards}
        return {"joules": joules, "joules_estimated": ESTIMATE in sources, "joules_measured": measured, **known}

    # -- health --------------------------------------------------------------------------------

    def expect_boards(self, boards: Mapping[str, Sequence[int]]) -> None:
        """Show boards that have not connected yet, with the clients that are assigned to them."""
        self._agents.expect(boards)
        self._store.update(boards=self.boards)

    def check_health(self, silences: Mapping[str, float], sending: Collection[str], now: float) -> None:
        """Judge the health of all boards, and report those that fall silent or are back.

        Args:
            silences: of each agent, the seconds in which the coordinator listened and no message arrived.
            sending: the agents whose reply has arrived in part.
            now: Unix time in seconds.
        """
        self._silences, self._sending = silences, sending
        self.judge_boards(now)

    def judge_boards(self, now: float) -> None:
        """Count the replies of all boards and judge their health again, with the latest known silences."""
        if self._history is None:
            return
        self._show_placements()
        names = [board.agent for board in self.boards]
        facts = {
            name: self._history.counts_of(name).facts(self._silences.get(name, 0.0), is_sending=name in self._sending)
            for name in names
        }
        for board, before in self._agents.refresh(facts, now):
            if board.health == "silent":
                self._history.add("silent", now, f"sends nothing: {board.reason}", board=board.agent)
            elif before == "silent" and board.online:
                self._history.add("back", now, "sends messages again", board=board.agent)
        self.show_boards()

    def _show_placements(self) -> None:
        """Show where a cluster runs the agents, and report each agent that it has moved."""
        if (reader := self._placements) is None or self._history is None:
            return
        reader.refresh()
        if reader.record is not self._placed and reader.record is not None:
            self._placed = reader.record
            self._agents.place(reader.record.placements)
        for news in reader.take_news():
            self._history.add("moved", news.at, news.text, board=news.agent)

    def show_boards(self) -> None:
        """Show the boards and the latest events, if they have changed."""
        shown, boards = self._store.current, self.boards
        happened = self._happened()
        if boards != shown.boards or any(getattr(shown, name) != value for name, value in happened.items()):
            self._store.update(boards=boards, **happened)

    # -- events --------------------------------------------------------------------------------

    def show_event(self, event: Event, machine: Machine) -> None:
        """Show an event that the machine has handled."""
        if isinstance(event, Rejected):
            self._show_refusal(event)
        elif isinstance(event, Replied):
            self._show_reply(event, machine)
        elif isinstance(event, Joined | Left):
            self._restore_agents([event.agent], machine, event.at)
            self._agents.update_online(event.agent, online=event.agent in machine.agents)
            self._store.update(boards=self.boards)
        if isinstance(event, Joined) or (isinstance(event, Rejected) and event.declined):
            self._store.update(privacy=self._privacy())
        if self._failures.take(event, machine):
            self._store.update(**self._failing(machine))

    def show_restored(self, machine: Machine, now: float) -> None:
        """Show the agents of a checkpoint."""
        self._restore_agents(list(machine.agents), machine, now)
        self._store.update(boards=self.boards)

    def _restore_agents(self, names: Iterable[str], machine: Machine, now: float) -> None:
        for name in names:
            if name in machine.agents:
                self._agents.restore(name, machine.agents[name], now)

    def show_connected(self, agent: str, machine: Machine) -> None:
        """Show that an agent has connected, again or for the first time."""
        if self._failures.retry(agent):
            self._store.update(**self._failing(machine))

    def _show_reply(self, event: Replied, machine: Machine) -> None:
        self._totals["accepted"] += 1
        self._together += 1
        if event.more:  # the last member of a partial sum shows all
            return
        together, self._together = self._together, 0
        self._agents.update_last_seen(event.agent, event.at)
        now = machine.exchange
        still_open = now is not None and event.client in now.replies
        replies = len(now.replies) if now and still_open else self._store.current.replies + together
        self._store.update(boards=self.boards, replies=replies, accepted=self._totals["accepted"])

    def _show_refusal(self, event: Rejected) -> None:
        self._totals[event.outcome] += 1
        if event.outcome == "rejected":
            latest = RejectedReply(
                at=event.at, agent=event.agent, client=event.client, round=event.round, reason=event.reason
            )
            self._rejections = [latest, *self._rejections][:REJECTIONS_SHOWN]
        self._store.update(rejections=self._rejections, **self._counts())

    def show_waiting(self, machine: Machine) -> None:
        """Show which clients the run waits for; called after an event and all its commands."""
        now = self._store.current
        idle = machine.exchange is None and not machine.finished
        changes: dict[str, Any] = {"awaited": machine.awaited}
        changes |= {"phase": "waiting", "deadline": None} if idle else {}
        if any(getattr(now, name) != value for name, value in changes.items()):
            self._store.update(**changes)

    def _failing(self, machine: Machine) -> dict[str, object]:
        failing = self._failures.current(machine)
        return {"failing": len(failing), "failures": pick_failures(failing, FAILURES_SHOWN)}

    def _counts(self) -> dict[str, int]:
        totals = self._totals
        return {
            "accepted": totals["accepted"],
            "late": totals["late"],
            "duplicates": totals["duplicate"],
            "rejected": totals["rejected"],
        }


def show_finished(run: ActiveRun, store: StatusStore) -> None:
    """Show a run that was finished before this program started."""
    StatusUpdater(store, AgentList()).start(run)
    store.update(phase="finished", message=run.end_reason)
