"""Downloads of patches: assembled from chunks in any order, with requests for lost chunks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.memory_transport import MemoryBroker, MemoryTransport

from fedquilt_client import downloads as module
from fedquilt_client.downloads import DISK_RESERVE, Downloads
from fedquilt_client.store import RunStore
from fedquilt_common.errors import PayloadError, RunFolderError
from fedquilt_common.wire.chunks import Blob, ChunkHeader
from fedquilt_common.wire.messages import RunMessage
from fedquilt_common.wire.repairs import LONGEST_REPAIR_SECONDS, REPAIR_SECONDS, SINGLE_REPAIRS
from fedquilt_common.wire.round_messages import PatchMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Incoming, MqttMessage

TOPICS = Topics("test")


class RecordingTransport(MemoryTransport):
    """Records subscriptions and unsubscriptions."""

    asked: list[str]
    left: list[str]

    def subscribe(self, filters: Iterable[str]) -> None:
        names = list(filters)
        self.asked += names
        super().subscribe(names)

    def unsubscribe(self, filters: Iterable[str]) -> None:
        names = list(filters)
        self.left += names
        super().unsubscribe(names)


class Board:
    """Downloads with a broker in memory, a clock that the test sets, and a link that can lose chunks."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.free = 1000.0, 10**12
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        disk = SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=self.free))
        monkeypatch.setattr(module, "psutil", disk)
        self.broker = MemoryBroker()
        self.inbox: list[MqttMessage] = []
        self.transport = RecordingTransport(self.broker, "board", self._deliver)
        self.transport.asked, self.transport.left = [], []
        self.transport.connect()
        self.store = RunStore(folder, RunMessage(run="run", experiment={}))
        self.downloads = Downloads(self.store, self.transport, TOPICS)

    def _deliver(self, incoming: Incoming) -> None:
        if isinstance(incoming, MqttMessage):
            self.inbox.append(incoming)

    def publish(self, slot: int, data: bytes, chunk: int = 10) -> PatchMessage:
        """Fill a slot, as the coordinator does."""
        blob = Blob(Path(), hashlib.sha256(data).hexdigest(), len(data))
        for header in blob.headers(chunk):
            part = data[header.offset : header.offset + header.length]
            self.broker.publish(TOPICS.slot_chunk(f"slices/{slot}", header.index), part, header.encode(), True)
        return PatchMessage(slot=slot, digest=blob.digest, size=blob.size)

    def arrive(self, lose: Iterable[int] = ()) -> list[bool]:
        """Store all delivered chunks except those to lose."""
        messages, self.inbox = self.inbox, []
        addressed = [(TOPICS.parse(message.topic), message) for message in messages]
        return [
            self.downloads.take(address, message.header, message.payload)
            for address, message in addressed
            if address.chunk not in lose
        ]

    def bytes_of(self, patch: PatchMessage) -> bytes | None:
        path = self.store.patch(patch.digest)
        return path.read_bytes() if path.exists() else None

    def files(self) -> set[str]:
        return {path.name for path in self.store.patches.iterdir()}


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    return Board(tmp_path, monkeypatch)


def data(seed: int, size: int = 95) -> bytes:
    return hashlib.shake_128(b"%d" % seed).digest(size)


def chunk_header(content: bytes, index: int, count: int) -> bytes:
    return ChunkHeader(hashlib.sha256(content).hexdigest(), index, count, len(content)).encode()


def test_patches_of_several_slots_come_whole(board: Board) -> None:
    patches = [board.publish(slot, data(slot)) for slot in (0, 3)]
    board.publish(1, data(1))
    assert not board.downloads.has(patches)
    board.downloads.want(patches)
    assert sum(board.arrive()) == 2
    assert board.downloads.has(patches)
    assert [board.bytes_of(patch) for patch in patches] == [data(0), data(3)]
    assert board.files() == {patch.digest for patch in patches}
    board.now += 1000
    board.downloads.repair()
    assert board.inbox == []
    board.downloads.reconnect(session_present=False)
    assert not any(board.arrive())  # a complete patch is not downloaded twice


def test_chunks_come_in_any_order_and_twice(board: Board) -> None:
    patch = board.publish(0, data(0))
    board.downloads.want([patch])
    board.inbox = [*reversed(board.inbox[3:]), *board.inbox, *board.inbox]
    assert board.arrive().count(True) == 1
    assert board.bytes_of(patch) == data(0)
    assert board.files() == {patch.digest}


def test_few_lost_chunks_are_asked_for_one_by_one(board: Board) -> None:
    patch = board.publish(0, data(0))
    board.downloads.want([patch])
    board.arrive(lose={2, 7})
    board.now += REPAIR_SECONDS - 0.1
    board.downloads.repair()
    assert board.inbox == []
    board.now += 0.2
    board.downloads.repair()
    assert [TOPICS.parse(message.topic).chunk for message in board.inbox] == [2, 7]
    assert board.arrive() == [False, True]
    assert board.bytes_of(patch) == data(0)
    board.broker.publish(TOPICS.slot_chunk("slices/0", 2), b"", b"", True)
    assert len(board.inbox) == 1  # the subscription to the slot itself remains


def test_many_lost_chunks_are_asked_for_at_once(board: Board) -> None:
    patch = board.publish(0, data(0, 1000))
    board.downloads.want([patch])
    board.arrive(lose=range(SINGLE_REPAIRS + 1))
    board.transport.asked.clear()
    board.now += REPAIR_SECONDS
    board.downloads.repair()
    assert board.transport.asked == [TOPICS.slot_chunks("slices/0")]
    assert any(board.arrive())
    assert board.bytes_of(patch) == data(0, 1000)


def test_a_slot_of_which_nothing_came_is_asked_for_whole(board: Board) -> None:
    patch = board.publish(0, data(0))
    board.downloads.want([patch])
    board.inbox.clear()
    board.now += REPAIR_SECONDS
    board.downloads.repair()
    assert any(board.arrive())
    assert board.bytes_of(patch) == data(0)


def test_repairs_wait_for_each_other_and_for_silence(board: Board) -> None:
    board.downloads.want([board.publish(0, data(0))])
    board.arrive(lose={2})
    asked = []
    for step in range(8):
        board.transport.asked.clear()
        board.now += REPAIR_SECONDS
        board.downloads.repair()
        if board.transport.asked:
            asked.append(step)
    assert asked == [0, 2, 6]  # each pause is twice the one before
    board.now += 1000
    board.inbox = board.inbox[:1]
    board.arrive(lose=())
    board.transport.asked.clear()
    board.downloads.repair()
    assert board.transport.asked == []


def test_a_line_on_which_each_chunk_takes_longer_than_the_pause_is_learnt(board: Board) -> None:
    """Else each chunk would make the broker send the whole patch again, and the line never be free."""
    board.downloads.want([board.publish(0, data(0, 1000))])
    board.transport.asked.clear()
    on_the_line, board.inbox = board.inbox, []
    while on_the_line:
        for _ in range(4):
            board.now += REPAIR_SECONDS / 3
            board.downloads.repair()
        on_the_line += board.inbox  # what was asked for again comes behind what is on the line
        board.inbox = [on_the_line.pop(0)]
        board.arrive()
        board.inbox.clear()
    assert board.transport.asked == [TOPICS.slot_chunks("slices/0")]


@pytest.mark.parametrize(("size", "times"), [(1000, 1.0), (24 << 20, 2.0), (400 << 20, 4.0)])
def test_larger_chunks_have_longer_on_the_line(board: Board, size: int, times: float) -> None:
    board.downloads.want([board.publish(0, data(0)).model_copy(update={"size": size})])
    board.transport.asked.clear()
    board.now += times * REPAIR_SECONDS - 0.1
    board.downloads.repair()
    assert board.transport.asked == []
    board.now += 0.2
    board.downloads.repair()
    assert board.transport.asked != []


def test_a_long_gap_does_not_make_patience_endless(board: Board) -> None:
    """After an hour without a link, a chunk that is lost later is still requested within the longest pause."""
    patch = board.publish(0, data(0))
    board.downloads.want([patch])
    first, *rest = board.inbox
    board.inbox = [first]
    board.arrive()
    board.now += 3600
    board.inbox = rest
    board.arrive(lose={2})
    board.transport.asked.clear()
    board.now += LONGEST_REPAIR_SECONDS
    board.downloads.repair()
    assert board.transport.asked


def test_a_reused_slot_holds_the_new_patch_only(board: Board) -> None:
    old = board.publish(0, data(0))
    board.downloads.want([old])
    board.arrive(lose={9})
    new = board.publish(0, data(1))
    board.downloads.want([new])
    assert board.arrive().count(True) == 1
    assert board.bytes_of(old) is None
    assert board.bytes_of(new) == data(1)
    assert board.files() == {new.digest}


def test_chunks_of_the_round_before_do_not_hinder(board: Board) -> None:
    """The round names the new patch while the slot's old chunks still arrive."""
    old, content = board.publish(0, data(0)), data(1)
    new = PatchMessage(slot=0, digest=hashlib.sha256(content).hexdigest(), size=len(content))
    board.downloads.want([new])
    board.arrive(lose={9})
    assert not board.downloads.has([new])
    assert board.publish(0, content) == new
    assert any(board.arrive())
    assert board.bytes_of(new) == content
    assert board.bytes_of(old) is None


def test_what_arrives_of_the_next_round_stays_when_the_same_slot_is_wanted_again(board: Board) -> None:
    """The coordinator publishes the chunks of a round before its manifest; meanwhile a board appears behind a relay."""
    patch = board.publish(0, data(0))
    board.downloads.want([patch])
    board.arrive()
    following = board.publish(0, data(1))
    board.arrive(lose=range(5, 10))
    board.downloads.want([patch])
    board.publish(0, data(1))
    board.arrive()
    board.downloads.want([following])
    assert board.bytes_of(following) == data(1)


def test_slots_no_longer_wanted_are_given_up(board: Board) -> None:
    patch = board.publish(0, data(0))
    board.downloads.want([patch])
    board.arrive(lose={1})
    board.downloads.want([])
    assert board.transport.left == [TOPICS.slot_chunks("slices/0")]
    assert board.files() == set()
    board.publish(0, data(5))
    assert board.inbox == []
    board.downloads.want([patch])
    board.downloads.close()
    assert board.transport.left == [TOPICS.slot_chunks("slices/0")] * 2


def test_other_slots_and_cleared_ones_are_ignored(board: Board) -> None:
    board.downloads.want([board.publish(0, data(0))])
    board.arrive(lose={0})
    assert not board.downloads.take(TOPICS.parse(TOPICS.slot_chunk("slices/1", 0)), chunk_header(b"x", 0, 1), b"x")
    assert hashlib.sha256(b"x").hexdigest() not in board.files()
    assert not board.downloads.take(TOPICS.parse(TOPICS.slot_chunk("slices/0", 0)), b"", b"")


def test_bytes_of_another_digest_are_refused_and_asked_for_again(board: Board) -> None:
    patch = board.publish(0, data(0))
    board.downloads.want([patch])
    good = board.inbox.pop(4)
    board.arrive()
    with pytest.raises(PayloadError, match="announced digest"):
        board.downloads.take(TOPICS.parse(good.topic), good.header, b"\0" * len(good.payload))
    assert board.files() == set()
    board.now += REPAIR_SECONDS
    board.downloads.repair()
    assert any(board.arrive())
    assert board.bytes_of(patch) == data(0)


@pytest.mark.parametrize("header", [b"", b"x" * 48, b"\x02" + b"\0" * 48, b"\x01" + b"\0" * 48])
def test_what_is_no_chunk_is_refused(board: Board, header: bytes) -> None:
    board.downloads.want([board.publish(0, data(0))])
    with pytest.raises(PayloadError):
        board.downloads.take(TOPICS.parse(TOPICS.slot_chunk("slices/0", 0)), header, b"payload")
    assert board.files() == set()


def test_a_patch_that_comes_again_in_other_chunks_is_begun_anew(board: Board) -> None:
    patch = board.publish(0, data(0))
    board.downloads.want([patch])
    board.arrive(lose={9})
    assert board.publish(0, data(0), chunk=20) == patch
    assert any(board.arrive())
    assert board.bytes_of(patch) == data(0)


def test_a_chunk_of_the_wrong_length_is_refused(board: Board) -> None:
    patch = board.publish(0, data(0))
    board.downloads.want([patch])
    board.arrive(lose={0})
    address = TOPICS.parse(TOPICS.slot_chunk("slices/0", 0))
    with pytest.raises(PayloadError, match="9 bytes instead of 10"):
        board.downloads.take(address, chunk_header(data(0), 0, 10), data(0)[:9])
    assert board.downloads.take(address, chunk_header(data(0), 0, 10), data(0)[:10])
    assert board.bytes_of(patch) == data(0)


def test_what_the_disk_cannot_hold_is_an_error_that_names_the_disk(board: Board) -> None:
    patch = board.publish(0, data(0))
    board.downloads.want([patch])
    board.free = DISK_RESERVE + len(data(0)) - 1
    with pytest.raises(RunFolderError, match=r"95 bytes does not fit into .*: 67108958 bytes are free there"):
        board.arrive()
    board.free = 0
    with pytest.raises(RunFolderError, match="0 bytes are free there, and 67108864 must stay free"):
        board.downloads.take(TOPICS.parse(TOPICS.slot_chunk("slices/0", 0)), chunk_header(data(0), 0, 10), data(0)[:10])
    assert board.files() == set()
    board.free = DISK_RESERVE + len(data(0))
    board.now += REPAIR_SECONDS
    board.downloads.repair()
    assert any(board.arrive())
    assert board.bytes_of(patch) == data(0)


def test_a_patch_of_another_board_does_not_need_to_fit_on_the_disk(board: Board) -> None:
    """The next round's patch in a slot may be for a board with more room; its manifest has not arrived."""
    address = TOPICS.parse(TOPICS.slot_chunk("slices/0", 0))
    board.downloads.want([board.publish(0, data(0))])
    board.free = DISK_RESERVE
    next_patch = chunk_header(data(1), 0, 10)
    too_long = ChunkHeader(hashlib.sha256(data(0)).hexdigest(), 0, 10, 10**9).encode()
    for header in (next_patch, too_long):
        with pytest.raises(PayloadError, match=r"does not fit into .* No task of this board names it"):
            board.downloads.take(address, header, data(1)[:10])
    board.downloads.want([PatchMessage(slot=0, digest=hashlib.sha256(data(1)).hexdigest(), size=len(data(1)))])
    with pytest.raises(RunFolderError, match="does not fit into"):
        board.downloads.take(address, next_patch, data(1)[:10])


def test_a_broker_that_forgot_us_is_asked_again(board: Board) -> None:
    patch = board.publish(0, data(0))
    board.downloads.want([patch])
    board.inbox.clear()
    board.transport.asked.clear()
    board.downloads.reconnect(session_present=True)
    assert board.transport.asked == []
    board.downloads.reconnect(session_present=False)
    assert board.transport.asked == [TOPICS.slot_chunks("slices/0")]
    assert any(board.arrive())
    assert board.downloads.has([patch])
