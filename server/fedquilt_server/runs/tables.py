"""The tables of a run folder: one row for each round, client and board, one plain value in each cell. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.snapshot import BoardStatus

Cells = dict[str, Any]
_MAPPINGS: Final = (
    "missing",
    "discarded",
    "trained",
    "sub_models",
    "label_bytes",
    "client_accuracy",
    "client_scores",
    "class_accuracy",
    "scores",
    "report",
    "central_privacy",
)
"""Fields of a round that hold several values: they are not columns of ``rounds.csv`` as they are."""
CLASS_COLUMNS: Final = ("round", "class", "accuracy")
CLIENT_COLUMNS: Final = ("round", "client", "level", "accuracy", "score", "label_bytes_down", "label_bytes_up")
_NOT_IN_TABLE: Final = {"training", "unnamed_clients"}
BOARD_COLUMNS: Final = tuple(name for name in BoardStatus.model_fields if name not in _NOT_IN_TABLE)


def round_records(rows: Sequence[RoundResult]) -> list[Cells]:
    """Return a record for each round, without what no round has: plain fields, ``scores``, ``central_privacy``."""
    records = [row.model_dump(exclude=set(_MAPPINGS)) | row.scores | _privacy_cells(row) for row in rows]
    names = dict.fromkeys(name for record in records for name in record)
    used = [name for name in names if any(record.get(name) is not None for record in records)]
    return [{name: record.get(name) for name in used} for record in records]


def _privacy_cells(row: RoundResult) -> Cells:
    spent = row.central_privacy
    return {} if spent is None else {f"privacy_{name}": value for name, value in spent.model_dump().items()}


def client_records(rows: Sequence[RoundResult]) -> list[Cells]:
    """Return a record for each client of each round that has a value of its own there."""
    return [_client_record(row, client) for row in rows for client in _clients_of(row)]


def _clients_of(row: RoundResult) -> list[str]:
    return sorted({*row.trained, *row.client_accuracy, *row.client_scores, *row.label_bytes}, key=int)


def _client_record(row: RoundResult, client: str) -> Cells:
    sizes = row.label_bytes.get(client, {})
    return {
        "round": row.round,
        "client": client,
        "level": row.trained.get(client),
        "accuracy": row.client_accuracy.get(client),
        "score": row.client_scores.get(client),
        "label_bytes_down": sizes.get("down"),
        "label_bytes_up": sizes.get("up"),
    }


def class_records(rows: Sequence[RoundResult]) -> list[Cells]:
    """Return a record for each class of each round that was evaluated."""
    return [
        {"round": row.round, "class": number, "accuracy": value}
        for row in rows
        for number, value in row.class_accuracy.items()
    ]


def board_records(boards: Sequence[BoardStatus]) -> list[Cells]:
    """Return a record for each board; ``clients`` is their number."""
    return [board.model_dump(exclude=_NOT_IN_TABLE) | {"clients": len(board.clients)} for board in boards]


def rounds_csv(rows: Sequence[RoundResult]) -> str:
    """Return ``rounds.csv``."""
    records = round_records(rows)
    return _csv(records, list(records[0]) if records else ["round"])


def clients_csv(rows: Sequence[RoundResult]) -> str:
    """Return ``clients.csv``."""
    return _csv(client_records(rows), CLIENT_COLUMNS)


def classes_csv(rows: Sequence[RoundResult]) -> str:
    """Return ``classes.csv``."""
    return _csv(class_records(rows), CLASS_COLUMNS)


def boards_csv(boards: Sequence[BoardStatus]) -> str:
    """Return ``boards.csv``."""
    return _csv(board_records(boards), BOARD_COLUMNS)


def _csv(records: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
