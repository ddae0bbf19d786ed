"""Read a fleet from a CSV file, one board a line, and check every line before anything is written."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Final

from fedquilt_common.errors import ExperimentError, FedquiltError
from fedquilt_common.experiment.agent_config import parse_clients
from fedquilt_common.files.yaml_text import read_text
from fedquilt_server.provisioning.board_plan import (
    BoardRequest,
    check_new_name,
    choose_clients,
    with_board,
)
from fedquilt_server.provisioning.card import Wifi, read_wifi
from fedquilt_server.provisioning.kinds import check_kind
from fedquilt_server.provisioning.names import check_host, check_user
from fedquilt_server.provisioning.record import BoardRecord, FederationRecord

COLUMNS: Final = ("name", "kind", "clients", "host", "user", "wifi")
REQUIRED: Final = ("name", "kind")
_FORM: Final = "begin with a line such as name,kind,clients,host,user,wifi"
_MOST_SHOWN: Final = 20


@dataclass(frozen=True)
class Mistake:
    """A cell that cannot be used: its place, and what is wrong with it."""

    line: int
    column: str
    text: str

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.text}"


@dataclass(frozen=True)
class ListedBoard:
    """One line of the file.

    Args:
        line: its number, from 1.
        request: what the line asks for.
        wifi: the file with its wireless network; None if the cell is empty.
        surplus: a cell without a column, after which the others may be in the wrong columns; None without one.
    """

    line: int
    request: BoardRequest
    wifi: Path | None = None
    surplus: Mistake | None = None


def read_boards(path: Path) -> list[ListedBoard]:
    """Read the lines of the file. Commas or semicolons separate the cells; empty lines are skipped.

    Raises:
        ExperimentError: the file cannot be read, or a column is unknown or missing.
    """
    text = read_text(path).removeprefix("\ufeff")  # spreadsheets write a byte order mark
    head = text.partition("\n")[0]
    lines = csv.reader(StringIO(text, newline=""), delimiter=";" if ";" in head and "," not in head else ",")
    try:
        rows = [(lines.line_num, [cell.strip() for cell in cells]) for cells in lines if any(map(str.strip, cells))]
    except csv.Error as error:
        raise ExperimentError(f"{path}, line {lines.line_num}: is not CSV: {error}; check the quotes") from None
    if not rows:
        raise ExperimentError(f"{path}: is empty; {_FORM}")
    columns = _read_header(rows[0][1], path, rows[0][0])
    return [_read_line(line, cells, columns, path.parent) for line, cells in rows[1:]]


def _read_header(cells: Sequence[str], path: Path, line: int) -> list[str]:
    names = [cell.lower().replace("-", "") for cell in cells]
    for cell, name in zip(cells, names, strict=True):
        if name not in COLUMNS:
            near = difflib.get_close_matches(name, COLUMNS, 1)
            hint = f"did you mean {near[0]}?" if near else _FORM
            raise ExperimentError(f"{path}, line {line}: there is no column {cell!r}; {hint}")
        if names.count(name) > 1:
            raise ExperimentError(f"{path}, line {line}: the column {name} occurs twice; keep one of them")
    if missing := [name for name in REQUIRED if name not in names]:
        raise ExperimentError(f"{path}, line {line}: the column {missing[0]} is missing; {_FORM}")
    return names


def _read_line(line: int, cells: Sequence[str], columns: Sequence[str], folder: Path) -> ListedBoard:
    values = dict(zip(columns, cells, strict=False))
    wifi = values.pop("wifi", "")
    surplus = [
        Mistake(line, str(number), f'{cell!r} has no column; put a list such as "0,2,5" in quotes')
        for number, cell in enumerate(cells, 1)
        if number > len(columns)
    ]
    request = BoardRequest(**{"name": "", **values})
    return ListedBoard(line, request, folder / wifi if wifi else None, surplus[0] if surplus else None)


def check_boards(record: FederationRecord, boards: Sequence[ListedBoard], path: Path) -> list[ListedBoard]:
    """Check every board against the record and against each other.

    Args:
        record: the federation.
        boards: the lines of the file.
        path: the file, for messages.

    Returns:
        The boards that have no identity yet, those with a choice of clients first: the others take free numbers.

    Raises:
        ExperimentError: a cell cannot be used. The message names each such cell.
    """
    mistakes = [board.surplus for board in boards if board.surplus]
    boards = [board for board in boards if not board.surplus]
    new = [board for board in boards if board.request.name not in record.boards]
    new.sort(key=lambda board: not board.request.clients)
    mistakes += [*_repeated(boards), *_differing(record, boards)]
    for board in new:
        found = list(_mistakes_in(record, board))
        mistakes += found
        record = record if found else with_board(record, board.request)
    if mistakes:
        shown = [f"{path}, {mistake}" for mistake in sorted(mistakes, key=lambda mistake: mistake.line)]
        more = [f"and {len(shown) - _MOST_SHOWN} more"] if len(shown) > _MOST_SHOWN else []
        raise ExperimentError("\n".join([*shown[:_MOST_SHOWN], *more, "Nothing was written."]))
    return new


def _repeated(boards: Iterable[ListedBoard]) -> Iterator[Mistake]:
    first: dict[str, int] = {}
    for board in boards:
        line = first.setdefault(board.request.name, board.line)
        if line != board.line:
            yield Mistake(board.line, "name", f"{board.request.name!r} is in line {line}, too: remove one of them")


def _mistakes_in(record: FederationRecord, board: ListedBoard) -> Iterator[Mistake]:
    """Yield the cells of a new board that cannot be used."""
    request = board.request
    checks: Mapping[str, Callable[[], object]] = {
        "name": lambda: check_new_name(record, request.name),
        "kind": lambda: check_kind(request.kind),
        "clients": lambda: choose_clients(record, request),
        "host": lambda: request.host and check_host(request.host, "host"),
        "user": lambda: check_user(request.user, "user"),
        "wifi": partial(_check_wifi, board.wifi),
    }
    yield from _failures(board.line, checks)


def _failures(line: int, checks: Mapping[str, Callable[[], object]]) -> Iterator[Mistake]:
    for column, check in checks.items():
        try:
            check()
        except FedquiltError as error:
            yield Mistake(line, column, str(error))


def _check_wifi(path: Path | None) -> None:
    if path is not None:
        read_wifi(path)


def _differing(record: FederationRecord, boards: Iterable[ListedBoard]) -> Iterator[Mistake]:
    """Yield the cells that differ from the record of a board that has an identity."""
    for board in boards:
        known = record.boards.get(board.request.name)
        if known is not None:
            yield from _failures(board.line, {"wifi": partial(_check_wifi, board.wifi)})
            yield from _changes(board, known)


def _changes(board: ListedBoard, known: BoardRecord) -> Iterator[Mistake]:
    request = board.request
    if known.revoked is not None:
        advice = f"remove the line, or run `fedquilt provision {request.name} --renew` for a new identity"
        yield Mistake(board.line, "name", f"{request.name} is revoked: {advice}")
        return
    for column in ("kind", "clients", "host", "user"):
        asked, had = getattr(request, column), getattr(known, column)
        if asked and asked != had and not (column == "clients" and _same_clients(asked, had)):
            advice = f"correct the line, or run `fedquilt provision {request.name} --renew --{column} {asked}`"
            yield Mistake(board.line, column, f"{asked!r} is not the {had!r} that {request.name} has: {advice}")


def _same_clients(one: str, other: str) -> bool:
    try:
        return parse_clients(one) == parse_clients(other)
    except ExperimentError:
        return False


def read_networks(boards: Iterable[ListedBoard]) -> dict[str, Wifi]:
    """Return the wireless network of each board whose line names one.

    Raises:
        ExperimentError: a file is not such a network.
    """
    return {board.request.name: read_wifi(board.wifi) for board in boards if board.wifi is not None}
