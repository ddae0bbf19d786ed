"""What ``replies.csv``, ``telemetry.csv`` and ``boards.csv`` hold about each board, folded row by row."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fedquilt_server.library.run_files import BoardRow, TelemetrySample, iterate_rows
from fedquilt_server.status.problems import natural_key
from fedquilt_server.status.reply_row import ReplyRow
from fedquilt_server.status.run_file_names import BOARDS, REPLIES, TELEMETRY

LATEST_ROUNDS: Final = 5
"""Rounds of the timeline."""


@dataclass
class BoardTotals:
    """Sums over the replies and samples of one board; a value that no row has is None.

    Attributes:
        board: the agent.
        outcomes: replies by outcome.
        train_seconds: time of training, over all replies.
        bytes: payload bytes of its replies.
        memory_peak: highest memory of a training process in bytes.
        train_joules: energy while it trained, over the replies that report it.
        joules: energy over the run, as the page shows it.
        power_source: how its energy is known: sensor, meter or estimate.
        temperature: highest temperature in degrees Celsius.
    """

    board: str
    outcomes: Counter[str] = field(default_factory=Counter)
    train_seconds: float | None = None
    bytes: float | None = None
    memory_peak: float | None = None
    train_joules: float | None = None
    joules: float | None = None
    power_source: str | None = None
    temperature: float | None = None

    def add_reply(self, row: ReplyRow) -> None:
        """Count a reply."""
        self.outcomes[row.outcome] += 1
        self.train_seconds = _add(self.train_seconds, row.train_seconds)
        self.bytes = _add(self.bytes, row.bytes)
        self.train_joules = _add(self.train_joules, row.joules)
        self.memory_peak = _highest(self.memory_peak, row.memory_peak)

    def add_sample(self, row: TelemetrySample) -> None:
        """Count a sample of telemetry."""
        self.temperature = _highest(self.temperature, row.temperature)

    def take_state(self, row: BoardRow) -> None:
        """Take what the latest state of the board has."""
        self.joules, self.power_source = row.joules, row.power_source or None


def _add(total: float | None, value: float | None) -> float | None:
    return total if value is None else (total or 0.0) + value


def _highest(highest: float | None, value: float | None) -> float | None:
    return highest if value is None else value if highest is None else max(highest, value)


@dataclass(frozen=True)
class BoardHistory:
    """What is recorded about the boards of one run.

    Attributes:
        boards: totals of each board, in natural order.
        client_accuracy: client -> accuracy of its last accepted reply that reports one.
        latest: the rows of the last ``LATEST_ROUNDS`` rounds.
        has_replies: whether the run has a file of replies that is not empty.
        notes: what is wrong with the files.
    """

    boards: tuple[BoardTotals, ...] = ()
    client_accuracy: Mapping[int, float] = field(default_factory=dict)
    latest: tuple[ReplyRow, ...] = ()
    has_replies: bool = False
    notes: tuple[str, ...] = ()


def read_boards(folder: Path) -> BoardHistory:
    """Read what a run folder holds about its boards."""
    notes = list[str]()
    boards = dict[str, BoardTotals]()
    accuracy = dict[int, float]()
    rounds = defaultdict[int, list[ReplyRow]](list)
    for row in iterate_rows(folder / REPLIES, ReplyRow, notes):
        boards.setdefault(row.agent, BoardTotals(row.agent)).add_reply(row)
        if row.outcome == "accepted" and row.accuracy is not None and row.client is not None:
            accuracy[row.client] = row.accuracy
        _keep_latest(rounds, row)
    for sample in iterate_rows(folder / TELEMETRY, TelemetrySample, notes):
        boards.setdefault(sample.board, BoardTotals(sample.board)).add_sample(sample)
    for state in iterate_rows(folder / BOARDS, BoardRow, notes):
        if state.agent in boards:
            boards[state.agent].take_state(state)
    ordered = sorted(boards.values(), key=lambda board: natural_key(board.board))
    latest = tuple(row for number in sorted(rounds) for row in rounds[number])
    return BoardHistory(tuple(ordered), accuracy, latest, _has_content(folder / REPLIES), tuple(notes))


def _has_content(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _keep_latest(rounds: dict[int, list[ReplyRow]], row: ReplyRow) -> None:
    """Keep a row if it is one of the latest rounds; drop the rows of earlier ones."""
    rounds[row.place[0]].append(row)
    if len(rounds) > LATEST_ROUNDS:
        del rounds[min(rounds)]
