"""What a program that receives results must offer, and the numbers that it receives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from fedquilt_common.learning_tasks.metrics import LOSS
from fedquilt_server.status.results import SCORE_COLUMNS, RoundResult, RunStatus
from fedquilt_server.status.snapshot import BoardStatus
from fedquilt_server.status.units import is_number

ROUND_SCALARS: Final[Mapping[str, str]] = {
    **{name: f"score/{name}" for name in SCORE_COLUMNS if name != LOSS.name},
    "loss": "loss",
    "seconds": "seconds/round",
    "train_seconds": "seconds/train",
    "overhead_seconds": "seconds/overhead",
    "sending_seconds": "seconds/sending",
    "receiving_seconds": "seconds/receiving",
    "averaging_seconds": "seconds/averaging",
    "evaluate_seconds": "seconds/evaluate",
    "bytes_down": "bytes/down",
    "bytes_up": "bytes/up",
    "label_bytes_down": "bytes/labels_down",
    "label_bytes_up": "bytes/labels_up",
    "joules": "energy/joules",
    "replies": "replies/accepted",
    "late": "replies/late",
    "rejected": "replies/rejected",
    "duplicates": "replies/duplicate",
    "waste_rate": "sub-models/waste_rate",
}
"""Field of a round -> name of its curve. The part before the slash groups the curves."""
BOARD_SCALARS: Final[Mapping[str, str]] = {
    "temperature": "celsius",
    "power": "watts",
    "joules": "joules",
    "memory_used": "memory_bytes",
    "memory_own": "agent_memory_bytes",
    "load": "load",
}
"""Field of a board -> last part of the name of its curve."""


class Sink(Protocol):
    """Receives the rounds of one run, each one once, in order. Any error means that the round has not arrived."""

    @property
    def last_round(self) -> int:
        """The last round that the sink holds, even from an earlier start of the run; 0 without one."""
        ...

    def write(self, round: int, scalars: Mapping[str, float]) -> None:
        """Write the numbers of a round, durably."""
        ...

    def end(self, status: RunStatus) -> None:
        """Record how the run has ended, and close."""
        ...


def round_scalars(row: RoundResult) -> dict[str, float]:
    """Return the finite numbers of a round by the names of their curves."""
    fields = {name: getattr(row, field) for field, name in ROUND_SCALARS.items()}
    others = {f"score/{name}": value for name, value in row.scores.items()}
    return {name: float(value) for name, value in {**fields, **others}.items() if is_number(value)}


def board_scalars(boards: Sequence[BoardStatus]) -> dict[str, float]:
    """Return what the boards last reported, by the names of the curves."""
    return dict(_board_pairs(boards))


def _board_pairs(boards: Sequence[BoardStatus]) -> Iterator[tuple[str, float]]:
    for board in boards:
        for field, name in BOARD_SCALARS.items():
            if is_number(value := getattr(board, field)):
                yield f"board {board.agent}/{name}", float(value)
