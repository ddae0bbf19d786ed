"""Downloads of samples: requested a few chunks at a time, once, and continued after a restart."""

from __future__ import annotations

import hashlib
import itertools
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedquilt_client import data_downloads as module
from fedquilt_client.data_downloads import ATTEMPTS, FIRST_PAUSE, WINDOW, DataDownloads
from fedquilt_client.downloads import DISK_RESERVE
from fedquilt_common.errors import PayloadError
from fedquilt_common.wire.chunks import Assembly, Blob
from fedquilt_common.wire.data_messages import DataFile, DataMessage, DataRequest

CHUNK = 10
CONTENT = {name: bytes([number]) * 405 for number, name in enumerate(("one", "two", "public"))}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def message(url: str | None = None) -> DataMessage:
    one, two, public = (DataFile(digest=digest(data), size=len(data), url=url) for data in CONTENT.values())
    return DataMessage(
        name="made", shape=[2], dtype="float32", classes=2, task="", shards=[one, two], public=public
    )  # fmt: skip


class Board:
    """Downloads with a coordinator that answers each request, a clock, and a link that can lose chunks."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, clients: tuple[int, ...] = (1,)) -> None:
        self.now, self.free, self.chunk = 1000.0, 10**12, CHUNK
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(module, "psutil", SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=self.free)))
        self.folder, self.clients = folder, clients
        self.requests: list[DataRequest] = []
        self.sent = 0
        self.damaged: set[str] = set()
        self.start()

    def start(self) -> None:
        """Start the agent, also again on the same folder."""
        self.requests.clear()
        self.downloads = DataDownloads(self.folder, "run", message(), self.clients, self.requests.append)
        self.downloads.start()

    def answer(self, most: int = 1000, lose: frozenset[int] = frozenset()) -> int:
        """Answer requests as the coordinator does, up to ``most`` chunks; returns how many files have ended."""
        ended = 0
        while self.requests and most:
            request = self.requests.pop(0)
            data = next(data for data in CONTENT.values() if digest(data) == request.digest)
            headers = Blob(Path(), request.digest, len(data)).headers(self.chunk)
            for header in headers[request.first : request.first + request.count][:most]:
                part = data[header.offset : header.offset + header.length]
                part = bytes(len(part)) if request.digest in self.damaged else part
                self.sent += len(part)
                most -= 1
                if header.index not in lose:
                    ended += self.downloads.take(header.encode(), part)
        return ended


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    return Board(tmp_path, monkeypatch)


def test_samples_arrive_once_for_all_runs(board: Board) -> None:
    assert not board.downloads.has(1)
    assert board.requests == [DataRequest(run="run", digest=digest(CONTENT["two"]), first=0, count=WINDOW)]
    assert board.answer() == 2  # its own samples and the public ones, not those of client 0
    assert board.downloads.has(1)
    files = board.downloads.job_data(1)
    assert files.shard is not None
    assert files.public is not None
    assert (files.shard.path.read_bytes(), files.public.path.read_bytes()) == (CONTENT["two"], CONTENT["public"])
    assert board.sent == len(CONTENT["two"]) + len(CONTENT["public"])
    board.start()
    assert board.requests == []
    assert board.downloads.has(1)


def test_an_interrupted_download_continues(board: Board) -> None:
    board.answer(most=WINDOW + 3)
    board.start()
    assert board.requests[0].first == WINDOW
    assert board.answer() == 2
    assert board.sent == len(CONTENT["two"]) + len(CONTENT["public"]) + 3 * CHUNK
    assert sorted(path.suffix for path in board.folder.iterdir()) == [".safetensors"] * 2


def test_chunks_of_another_size_continue_nothing(board: Board) -> None:
    """Such as those of a coordinator that was restarted with another limit of its broker."""
    board.answer(most=WINDOW)
    board.chunk = 2 * CHUNK
    board.start()
    ended = board.answer()
    board.now += FIRST_PAUSE
    board.downloads.repair()
    assert ended + board.answer() == 2  # each file once: none was damaged
    assert board.downloads.has(1)


def test_a_part_that_does_not_fit_any_more_is_replaced(board: Board) -> None:
    board.answer(most=WINDOW)
    (part,) = board.folder.glob("*.part")
    part.write_bytes(b"other bytes of a damaged disk" + part.read_bytes()[29:])
    board.start()
    board.answer()
    assert board.downloads.has(1)  # the first attempt had another digest


@pytest.mark.parametrize("lost", [{0}, {5}, {WINDOW - 1}, set(range(WINDOW)), {40}])
def test_lost_chunks_are_requested_again(board: Board, lost: set[int]) -> None:
    board.answer(lose=frozenset(lost))
    for _ in range(4):
        board.downloads.repair()
        assert not board.requests  # not before the pause is over
        board.now += FIRST_PAUSE
        board.downloads.repair()
        board.answer()
        if board.downloads.has(1):
            return
    raise AssertionError("the lost chunks did not arrive")


def test_a_coordinator_that_does_not_answer_is_asked_less_and_less_often(board: Board) -> None:
    asked = []
    for second in range(200):
        board.now += 1.0
        board.downloads.repair()
        if board.requests:
            asked.append(second)
            board.requests.clear()
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert gaps == sorted(gaps)
    assert len(asked) < 8


def test_samples_with_another_digest_are_not_used(board: Board) -> None:
    board.damaged = {digest(CONTENT["two"])}
    assert board.answer() == ATTEMPTS + 1  # the other file arrives
    assert not board.downloads.has(1)
    assert f"arrived {ATTEMPTS} times with another SHA-256" in board.downloads.problem(1)
    board.damaged.clear()
    board.start()
    assert board.answer() == 1
    assert board.downloads.has(1)


def test_a_full_disk_is_a_problem_before_anything_is_requested(board: Board) -> None:
    board.free = DISK_RESERVE
    board.start()
    assert board.requests == []
    assert "samples of 405 bytes do not fit into" in board.downloads.problem(1)
    assert "Free disk space" in board.downloads.problem(1)


def test_what_has_arrived_needs_no_more_room(board: Board) -> None:
    board.answer(most=WINDOW)
    (part,) = board.folder.glob("*.part")
    board.free = DISK_RESERVE + 405 - part.stat().st_size
    board.start()
    assert board.requests[0].first == WINDOW


def test_samples_of_other_runs_give_way_when_the_disk_is_short(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    board.answer()
    old = [board.folder / f"{'0' * 63}{number}.safetensors" for number in range(3)]
    for age, path in enumerate(old):
        path.write_bytes(b"x" * 300)
        os.utime(path, (1000 + age, 1000 + age))
    own, public = (board.folder / f"{digest(CONTENT[name])}.safetensors" for name in ("two", "public"))
    own.unlink()
    os.utime(public, (900, 900))

    def measure(_: str) -> SimpleNamespace:
        return SimpleNamespace(free=DISK_RESERVE + 300 * sum(not path.exists() for path in old))

    monkeypatch.setattr(module, "psutil", SimpleNamespace(disk_usage=measure))
    board.start()
    assert [path.exists() for path in old] == [False, False, True]  # two of them make room for 405 bytes
    assert public.exists()  # the oldest, but a file of this run
    assert board.answer() == 1


def test_chunks_that_nobody_requested_change_nothing(board: Board) -> None:
    foreign = b"x" * 20
    header = Blob(Path(), digest(foreign), 20).headers(10)[0]
    assert board.downloads.take(header.encode(), foreign[:10]) is False
    wanted = Blob(Path(), digest(CONTENT["two"]), 10**9).headers(10**6)[0]
    with pytest.raises(PayloadError, match="larger than the 405 bytes expected"):
        board.downloads.take(wanted.encode(), b"x" * wanted.length)
    with pytest.raises(PayloadError, match="chunk header has"):
        board.downloads.take(b"short", b"")
    assert board.answer() == 2


def test_a_file_that_the_disk_damages_arrives_again(board: Board) -> None:
    board.answer()
    shard = board.downloads.job_data(1).shard
    assert shard is not None
    shard.path.write_bytes(b"damaged")
    assert board.downloads.fetch_again(shard.path)
    assert not board.downloads.has(1)
    board.answer()
    assert shard.is_intact()
    assert not board.downloads.fetch_again(board.folder / "other")


def test_a_chunk_costs_no_look_at_all_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Assembly, "missing")
    assert Board(tmp_path, monkeypatch).answer() == 2
