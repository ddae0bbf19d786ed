"""The history of a run in its folder: ``replies.csv``, ``events.jsonl``, ``telemetry.csv``, and what they count."""

from __future__ import annotations

import contextlib
import csv
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from fedquilt_common.files.disk_errors import report_run_errors
from fedquilt_common.files.durable import write_atomically
from fedquilt_common.submodels.slices import Slice
from fedquilt_common.types import ClientId
from fedquilt_server.history.coverage_book import add_round
from fedquilt_server.history.event_book import BoardCounts, EventBook
from fedquilt_server.history.log_files import AppendedCsv, EventFile
from fedquilt_server.history.privacy_book import PrivacyBook
from fedquilt_server.history.reply_book import ReplyBook
from fedquilt_server.round.events import Event
from fedquilt_server.status.coverage import Coverage
from fedquilt_server.status.reply_row import ReplyRow
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.run_event import EventKind, RunEvent
from fedquilt_server.status.run_file_names import BOARDS, COVERAGE, EVENTS, REPLIES, TELEMETRY
from fedquilt_server.status.snapshot import BoardStatus
from fedquilt_server.status.training_memory import MemoryTally

EVENTS_KEPT: Final = 200
ROUNDS_KEPT: Final = 12
"""Finished rounds whose replies are kept in memory, for the page's timeline."""
FLUSH_SECONDS: Final = 2.0
LOST_MEMORY_WARNING: Final = (
    "clients have started without the private memory that they had, so the model may not be that of an "
    "undisturbed run; the events 'memory lost' name them"
)
FinishedRound = tuple[int, float, RoundResult]
"""Number of the round's last event in the journal, Unix time in seconds of its checkpoint, and its results."""


class TelemetryRow(BaseModel):
    """One message of telemetry: a row of ``telemetry.csv``."""

    model_config = ConfigDict(frozen=True)

    time: float = Field(description="Unix time in seconds at which it arrived")
    board: str
    temperature: float | None = Field(default=None, description="degrees Celsius")
    power: float | None = Field(default=None, description="watts")
    memory: int | None = Field(default=None, description="bytes in use on the board")
    memory_own: int | None = Field(default=None, description="bytes in use by the agent and its training processes")
    load: float | None = Field(default=None, description="load average over one minute")
    joules: float | None = Field(default=None, description="energy since the board connected in this run")


class History:
    """Follows a run and writes its history.

    The journal is the source: a coordinator that restarts writes ``replies.csv`` again, and adds to ``events.jsonl``
    what a crash prevented. ``telemetry.csv`` and the events without a number are not in the journal: a crash loses at
    most the last ``FLUSH_SECONDS`` of the former and one of the latter.

    Args:
        folder: the run folder.
        rounds: the finished rounds, oldest first.
        events: the journal's events with their numbers, oldest first.

    Attributes:
        rows: the replies of the latest finished rounds, oldest first.
        coverage: how often each channel was trained; None if all clients trained the whole model.
        memory: the peaks of each client's trainings in the finished rounds.
        board_joules: of each board, the energy that an earlier process has recorded.
        privacy: what clients with differential privacy have spent on their samples, and which decline.

    Raises:
        RunFolderError: the files cannot be written.
    """

    def __init__(self, folder: Path, rounds: Sequence[FinishedRound], events: Iterable[tuple[int, Event]]) -> None:
        self._replies = AppendedCsv(folder / REPLIES, ReplyRow)
        self._telemetry = AppendedCsv(folder / TELEMETRY, TelemetryRow)
        self._book, self._events = ReplyBook(), EventBook()
        self._pending: list[TelemetryRow] = []
        self._flush_at = 0.0
        stored = list(events)
        self._file = EventFile(folder / EVENTS, EVENTS_KEPT, fresh=not stored)
        self._has_lost_memory = any(event.kind == "memory lost" for event in self._file.latest)
        self.rows: list[ReplyRow] = []
        self.memory = defaultdict[ClientId, MemoryTally](MemoryTally)
        self.privacy = PrivacyBook()
        self._coverage_path = folder / COVERAGE
        self.coverage = read_coverage(self._coverage_path) if stored else None
        self._written = self.coverage
        self._replies.write(self._catch_up(rounds, stored))
        if stored:
            self._telemetry.repair()
        else:
            self._telemetry.write([])
        self.board_joules = read_board_joules(folder) if stored else {}

    def _catch_up(self, rounds: Sequence[FinishedRound], events: Sequence[tuple[int, Event]]) -> list[ReplyRow]:
        """Take what the journal holds; returns the rows of all finished rounds."""
        rows: list[ReplyRow] = []
        ends = iter([*rounds, None])
        end = next(ends)
        for seq, event in events:
            while end is not None and seq > end[0]:
                rows += self._close(end[2], end[1])
                end = next(ends)
            self.take(seq, event)
        while end is not None:
            rows += self._close(end[2], end[1])
            end = next(ends)
        return rows

    def take(self, seq: int, event: Event) -> None:
        """Take an event that was journaled.

        Raises:
            RunFolderError: the event cannot be written.
        """
        self._book.take(event)
        self.privacy.take(event)
        if (shown := self._events.take(seq, event)) is not None:
            self._file.add(shown)

    def close_round(self, result: RoundResult, at: float) -> None:
        """Write the replies of a finished round.

        Args:
            result: the round's results.
            at: Unix time in seconds of its checkpoint.

        Raises:
            RunFolderError: the replies cannot be written.
        """
        self._replies.append(self._close(result, at))

    def count_parts(self, parts: Mapping[ClientId, Slice]) -> None:
        """Count the sub-models that were averaged in the open round; called before ``close_round``."""
        if parts:
            accepted = [row for row in self.open_rows() if row.outcome == "accepted"]
            hosts = {row.client: row.agent for row in accepted if row.client is not None}
            self.coverage = add_round(self.coverage, parts, hosts)

    def _write_coverage(self) -> None:
        if self.coverage is not None and self.coverage is not self._written:
            with report_run_errors(self._coverage_path):
                write_atomically(self._coverage_path, self.coverage.model_dump_json())
            self._written = self.coverage

    def _close(self, result: RoundResult, at: float) -> list[ReplyRow]:
        rows = self._book.close(result, at)
        self._count_trainings(rows)
        self._events.round = result.round + 1
        first = result.round - ROUNDS_KEPT
        self.rows = [*(row for row in self.rows if row.place[0] > first), *rows]
        return rows

    def _count_trainings(self, rows: Iterable[ReplyRow]) -> None:
        for row in rows:
            if row.outcome == "accepted" and row.client is not None and row.train_seconds is not None:
                self.memory[row.client].add(row.memory_peak, row.gpu_memory_peak)

    def add(
        self, kind: EventKind, at: float, text: str, *, seq: int | None = None, board: str | None = None,
        client: int | None = None, round: int | None = None, exchange: int | None = None,
    ) -> None:  # fmt: skip
        """Write an event; one with the number of a journal's event is written once, whatever is repeated.

        Args:
            kind: what happened.
            at: Unix time in seconds.
            text: one sentence for people.
            seq: number of the journal's event that caused it.
            board: the agent that it concerns.
            client: the client that it concerns.
            round: the round that it concerns; None for the open one.
            exchange: the exchange in which it happened.

        Raises:
            RunFolderError: the event cannot be written.
        """
        self._has_lost_memory = self._has_lost_memory or kind == "memory lost"
        made = self._events.make(kind, at, text, seq=seq, board=board, client=client, exchange=exchange)
        self._file.add(made if round is None else made.model_copy(update={"round": round}))

    def add_telemetry(self, board: BoardStatus, at: float) -> None:
        """Note a board's readings; ``flush`` writes them."""
        row = TelemetryRow(
            time=at, board=board.agent, temperature=board.temperature, power=board.power,
            memory=board.memory_used, memory_own=board.memory_own, load=board.load, joules=board.joules,
        )  # fmt: skip
        self._pending.append(row)

    def flush(self, *, force: bool = False) -> None:
        """Write the readings and the coverage, at most once in ``FLUSH_SECONDS`` unless ``force`` is set.

        Raises:
            RunFolderError: they cannot be written.
        """
        now = time.monotonic()
        if force or now >= self._flush_at:
            rows, self._pending, self._flush_at = self._pending, [], now + FLUSH_SECONDS
            self._telemetry.append(rows)
            self._write_coverage()

    @property
    def events(self) -> list[RunEvent]:
        """The latest events, newest first."""
        return self._file.latest[::-1]

    @property
    def warning(self) -> str:
        """Why the run's model may differ from that of an undisturbed run; empty if nothing is known of it."""
        return LOST_MEMORY_WARNING if self._has_lost_memory else ""

    @property
    def boards(self) -> Mapping[str, BoardCounts]:
        """The counts of each board."""
        return self._events.boards

    def counts_of(self, board: str) -> BoardCounts:
        """Return the counts of a board, which later events change."""
        return self._events.counts_of(board)

    def open_rows(self) -> list[ReplyRow]:
        """Return the replies of the open round so far."""
        return self._book.open_rows()


def read_coverage(path: Path) -> Coverage | None:
    """Return the coverage of a run folder; None if the file is missing or damaged."""
    try:
        return Coverage.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def read_board_joules(folder: Path) -> dict[str, float]:
    """Return the highest energy of each board in a run folder; what cannot be read is left out.

    ``boards.csv`` has that at the end of the last round, ``telemetry.csv`` may have later values.

    Raises:
        RunFolderError: a file cannot be read.
    """
    found: dict[str, float] = {}
    for name, column in ((BOARDS, "agent"), (TELEMETRY, "board")):
        for board, joules in _read_joules(folder / name, column):
            found[board] = max(joules, found.get(board, 0.0))
    return found


def _read_joules(path: Path, column: str) -> Iterator[tuple[str, float]]:
    """Yield each board of ``column`` in a CSV file with its joules."""
    if path.exists():
        with (
            report_run_errors(path),
            path.open(encoding="utf-8", errors="replace", newline="") as file,
            contextlib.suppress(csv.Error),
        ):
            for row in csv.DictReader(file):
                board, joules = row.get(column), _parse_joules(row.get("joules"))
                if board and joules is not None:
                    yield board, joules


def _parse_joules(text: str | None) -> float | None:
    try:
        joules = float(text or "nan")
    except ValueError:
        return None
    return joules if 0 <= joules < math.inf else None
