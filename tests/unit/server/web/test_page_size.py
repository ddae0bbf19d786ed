"""The bytes of the page are those that its documentation states."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from tests.support.example_runs import healthy_board, running

from fedquilt_server.status.snapshot import BoardStatus, StatusStore
from fedquilt_server.web.compression import LEVEL
from fedquilt_server.web.frames import FrameSource
from fedquilt_server.web.stream import Reader

DOCUMENT = Path(__file__).parents[4] / "docs" / "status-page.md"
SECONDS = 10


def report(board: BoardStatus, second: int, number: int) -> BoardStatus:
    """Return a board after a report in which every measured value has changed."""
    other = healthy_board(1000 * second + number, (board.last_seen or 0) + second)
    measured = ("memory_used", "memory_own", "temperature", "power", "load", "joules", "last_seen")
    training = dict(zip(board.training, other.training.values(), strict=False))
    return board.model_copy(update={**{name: getattr(other, name) for name in measured}, "training": training})


def update_bytes(source: FrameSource, store: StatusStore, reader: Reader) -> int:
    """Count the bytes of the updates while each board reports once a second: a quarter of them for each frame."""
    total = 0
    for frame in range(4 * SECONDS):
        boards = [
            report(board, frame // 4 + 1, i) if i % 4 == frame % 4 else board
            for i, board in enumerate(store.current.boards)
        ]
        store.update(boards=boards)
        total += len(reader.events(frame / 4, newest=True))
    return total


@pytest.mark.parametrize("boards", [40, 200])
def test_the_documented_bytes_are_those_of_the_page(boards: int) -> None:
    stated = re.search(rf"^\| {boards} \|((?: \d+ kB \|){{3}})$", DOCUMENT.read_text(), re.MULTILINE)
    assert stated is not None
    store = StatusStore(running(boards))
    source = FrameSource(store)
    page = source.page()
    shown = re.search(r"events\?frame=([\w.]+)", page)
    assert shown is not None
    reader = Reader(source, shown[1])
    sizes = [len(page.encode()), len(reader.events(0.0)), update_bytes(source, store, reader)]
    assert [size / 1000 for size in sizes] == pytest.approx([float(n) for n in re.findall(r"\d+", stated[1])], rel=0.1)


def test_the_documented_bytes_of_the_compressed_page_are_right() -> None:
    stated = re.search(r"page of 40 boards has (\d+) kB", DOCUMENT.read_text())
    assert stated is not None
    page = FrameSource(StatusStore(running(40))).page()
    assert len(gzip.compress(page.encode(), LEVEL)) / 1000 == pytest.approx(float(stated[1]), rel=0.1)
