"""A slow, lossy link between a transport and its broker: what arrives, when, and in which order."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.memory_transport import MemoryBroker, MemoryTransport

from fedquilt_common.errors import BrokerUnreachableError, ExperimentError
from fedquilt_common.wire import slow_link
from fedquilt_common.wire.link import Link, parse_link
from fedquilt_common.wire.slow_link import SlowLinkTransport
from fedquilt_common.wire.transport import Connected, Deliver, Incoming, MqttMessage, Transport, Will
from fedquilt_common.wire.windowed_transfer import draw_transfer

WILL = Will("gone", b"")


class Clock:
    """The clock of the links: that of the machine, until the test holds it."""

    def __init__(self) -> None:
        self._held: float | None = None
        self._lag = 0.0

    def monotonic(self) -> float:
        return time.monotonic() - self._lag if self._held is None else self._held

    def time(self) -> float:
        """Return a Unix time that passes with ``monotonic``."""
        return 1.8e9 + self.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait until this clock has gone on by ``seconds``."""
        end = self.monotonic() + seconds
        while self.monotonic() < end:
            time.sleep(min(seconds, 0.002))

    def hold(self) -> None:
        self._held = self.monotonic()

    def advance(self, seconds: float) -> None:
        """Let a clock that is held jump."""
        assert self._held is not None
        self._held += seconds

    def release(self) -> None:
        """Let a clock that is held go on."""
        self._lag, self._held = time.monotonic() - self.monotonic(), None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    monkeypatch.setattr(slow_link, "time", made)
    yield made
    if made._held is not None:
        made.release()


@given(
    st.builds(
        Link,
        st.none() | st.floats(0.1, 1e12),
        st.floats(0, 86_400),
        st.floats(0, 0.9),
        st.none() | st.integers(8, 10**9),
        st.floats(1e-3, 1e6),
        st.integers(1, 9),
        st.floats(0, 100),
        st.lists(st.floats(1e-9, 1e3), min_size=2, max_size=2, unique=True).map(
            lambda ends: ((min(ends), max(ends) + 1.0),)
        ),
        st.just(2000.0),
    )
)
def test_a_link_is_read_as_it_is_written(link: Link) -> None:
    assert parse_link(link.encode()) == link


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "write it as"), ("fast", "write it as"), ("rate=1,rate=2", "write it as"), ("speed=3", "write it as"),
        ("rate=0", "rate must be a number from"), ("loss=1", "loss must be"), ("loss=nan", "loss must be"),
        ("mtu=x", "mtu must be"), ("mtu=8.7", "mtu must be a whole number"), ("latency=-1", "latency must be"),
        ("window=1.5", "whole number of packets"), ("window=0", "window must be"), ("open=3:9", "each other"),
        ("period=9", "each other"), ("open=3-9,period=9", "write the open times as"),
        ("open=5:3,period=9", "later"), ("open=0:5/4:6,period=9", "overlap"), ("open=0:10,period=9", "ends at 10"),
    ],
)  # fmt: skip
def test_what_is_no_link_is_named(text: str, words: str) -> None:
    with pytest.raises(ExperimentError, match=words):
        parse_link(text)


class Board:
    """Two transports at the same broker, one of them behind a link."""

    def __init__(self, link: Link) -> None:
        self.broker = MemoryBroker()
        self.heard: list[Incoming] = []
        self.others: list[MqttMessage] = []
        self.should_stop: Callable[[], bool] = lambda: False
        self.near = SlowLinkTransport(
            link, self._make, self.heard.append, WILL, seed=3, should_stop=lambda: self.should_stop()
        )
        self.far = MemoryTransport(self.broker, "far", self._take)
        self.far.connect()
        self.far.subscribe(["up/#"])
        self.near.connect()
        self.near.subscribe(["down/#"])
        if link.mean_seconds(100) < 60.0:
            assert self.near.drain(60.0)

    def _make(self, deliver: Deliver, will: Will) -> Transport:
        return MemoryTransport(self.broker, "near", deliver, will=will)

    def _take(self, incoming: Incoming) -> None:
        if isinstance(incoming, MqttMessage):
            self.others.append(incoming)
            incoming.ack()

    @property
    def messages(self) -> list[MqttMessage]:
        return [one for one in self.heard if isinstance(one, MqttMessage)]


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)
    assert condition()


def test_everything_arrives_in_order_in_both_directions() -> None:
    board = Board(Link(rate=1e6, latency=0.001))
    for number in range(20):
        assert board.near.publish(f"up/{number}", b"x" * number)
        board.far.publish(f"down/{number}", b"y")
    wait_for(lambda: len(board.others) == len(board.messages) == 20)
    assert [one.topic for one in board.others] == [f"up/{number}" for number in range(20)]
    assert [one.topic for one in board.messages] == [f"down/{number}" for number in range(20)]
    assert isinstance(board.heard[0], Connected)


def test_bytes_take_time_and_time_passes_faster_by_the_speedup(clock: Clock) -> None:
    link = Link(rate=100, speedup=50)
    assert link.seconds(1000) == pytest.approx(0.2)
    board = Board(link)
    clock.hold()
    board.near.publish("up/1", b"x" * 1000)
    clock.advance(0.2)
    assert not board.near.drain(0.0)  # some bytes are the topic
    assert board.others == []
    clock.advance(0.1)
    wait_for(lambda: board.near.drain(0.0))
    assert len(board.others) == 1


def test_chunks_are_lost_and_other_messages_are_not() -> None:
    board = Board(Link(loss=0.5))
    for number in range(200):
        board.near.publish("up/chunk", bytes([number]), header=b"h")
        board.near.publish("up/word", bytes([number]))
        board.far.publish("down/chunk", bytes([number]), header=b"h")
        board.far.publish("down/word", bytes([number]))
    words = list(range(200))
    wait_for(lambda: [one.payload[0] for one in board.others if one.topic == "up/word"] == words)
    wait_for(lambda: [one.payload[0] for one in board.messages if one.topic == "down/word"] == words)
    for got in (board.others, board.messages):
        assert 60 < sum(one.topic.endswith("chunk") for one in got) < 140
    session = board.broker.sessions["near"]
    for one in board.messages:
        one.ack()
    assert not session.unacknowledged  # the lost ones were acknowledged, or the broker would send them again


def test_a_message_of_many_packets_is_lost_with_any_of_them() -> None:
    link = Link(loss=0.2, mtu=100)
    assert [link.packets(size) for size in (1, 100, 101, 950)] == [1, 1, 2, 10]
    board = Board(link)
    for _ in range(100):
        board.near.publish("up/small", b"x", header=b"h")
        board.near.publish("up/large", b"x" * 900, header=b"h")
    assert board.near.drain(60.0)
    small, large = (sum(one.topic == f"up/{size}" for one in board.others) for size in ("small", "large"))
    assert small > 60 > 30 > large


def test_chunks_are_cut_so_that_they_fit_a_packet() -> None:
    assert Board(Link(mtu=222)).near.max_payload == 94
    assert Board(Link(mtu=51)).near.max_payload == 16
    assert Board(Link()).near.max_payload == MemoryTransport.max_payload


def test_a_link_with_a_window_loses_nothing_and_takes_longer() -> None:
    board = Board(Link(loss=0.5, window=3, mtu=100, timeout=0.0))
    for number in range(100):
        board.near.publish("up/chunk", bytes([number]), header=b"h")
        board.far.publish("down/chunk", bytes([number]), header=b"h")
    wait_for(lambda: [one.payload[0] for one in board.others] == list(range(100)))
    wait_for(lambda: [one.payload[0] for one in board.messages] == list(range(100)))
    assert board.near.max_payload == MemoryTransport.max_payload
    link = Link(rate=100.0, loss=0.2, mtu=100, window=3)
    assert link.mean_seconds(600) > Link(rate=100.0, loss=0.2, mtu=100).mean_seconds(600) > 6.0


def test_a_link_carries_only_while_it_is_open() -> None:
    link = Link(speedup=10.0, open=((2.0, 5.0), (8.0, 9.0)), period=20.0)
    ends = {(0.0, 0.1): 0.3, (0.3, 0.1): 0.4, (0.4, 0.2): 0.9, (0.6, 0.0): 0.8, (0.95, 0.4): 2.9}
    for (start, seconds), end in ends.items():
        assert link.end_of(start, seconds) == pytest.approx(end)
        assert link.end_of(start + 200.0, seconds) == pytest.approx(end + 200.0)
    assert link.mean_seconds(0) == 0.0
    assert Link(rate=1.0, open=((0.0, 5.0),), period=20.0).mean_seconds(3) == 12.0


@pytest.mark.parametrize(
    ("text", "periods"),
    [("speedup=100000,open=0:0.01,period=1", 10_000), ("speedup=1000000,open=0:0.1,period=1", 10_000)],
)
def test_the_end_is_found_at_once_in_unix_time_that_passes_fast(text: str, periods: int) -> None:
    """There, the seconds on the link are too many for a float to tell short open times apart."""
    link, start = parse_link(f"rate=50,{text}"), 1_795_000_000.123
    assert link.end_of(start, 1e-3) - start == pytest.approx(periods / link.speedup, rel=1e-3)


quarters = st.integers(0, 400).map(lambda number: number / 4)


@given(st.lists(quarters, min_size=2, max_size=6, unique=True), quarters, quarters, st.sampled_from([0.5, 1.0, 4.0]))
def test_the_end_is_that_of_a_walk_through_the_open_times(
    edges: list[float], start: float, seconds: float, speedup: float
) -> None:
    ordered = sorted(edges)
    times = tuple(zip(ordered[::2], ordered[1::2], strict=False))
    at, left = start * speedup, seconds * speedup
    walk = ((101.0 * number + first, 101.0 * number + last) for number in itertools.count() for first, last in times)
    for first, last in walk:
        at = max(at, first)
        if last > at and last - at >= left:
            break
        left -= max(0.0, last - at)
    assert Link(speedup=speedup, open=times, period=101.0).end_of(start, seconds) == (at + left) / speedup


@pytest.mark.parametrize("packets", [1, 4, 16])
@pytest.mark.parametrize("window", [3, 16])
def test_the_mean_time_is_that_of_drawn_transfers(packets: int, window: int) -> None:
    link, rng = Link(rate=1000.0, loss=0.2, mtu=100, window=window), random.Random(1)
    drawn = [draw_transfer(packets, 0.2, window, rng) for _ in range(4000)]
    seconds = [sent * 0.1 + timeouts * link.timeout for sent, timeouts in drawn]
    assert link.mean_seconds(100 * packets) == pytest.approx(sum(seconds) / len(seconds), rel=0.05)


def test_messages_wait_until_the_link_opens(clock: Clock) -> None:
    """The link is open for the last 0.1 s of every 0.4 s at the desk."""
    board = Board(Link(rate=1e6, speedup=1000.0, open=((300.0, 400.0),), period=400.0))
    clock.hold()
    for number, phase in enumerate((0.01, 0.15, 0.28, 0.31, 0.38)):
        clock.advance((phase - clock.time()) % 0.4)
        board.near.publish(f"up/{number}", b"x")
        if phase < 0.3:
            clock.advance(0.29 - phase)
            assert not board.near.drain(0.0)
        clock.advance(0.015)
        wait_for(lambda number=number: len(board.others) == number + 1)  # type: ignore[misc]


def test_after_the_farewell_nothing_is_sent() -> None:
    board = Board(Link(rate=1.0))
    board.near.publish("up/slow", b"x" * 1000)
    board.near.close(("up/bye", b"b"))
    assert [one.topic for one in board.others] == ["up/bye"]
    assert not board.near.publish("up/late", b"x")


def test_what_the_transport_refuses_is_told_to_the_next_who_publishes() -> None:
    """The link's thread continues; otherwise all later messages would be lost without an error."""
    board = Board(Link())
    inner = board.near._inner

    def refuse(*_: object, **__: object) -> bool:
        raise BrokerUnreachableError("the broker takes packets of 1000 bytes at most")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inner, "publish", refuse)
        assert board.near.publish("up/1", b"x" * 2000)
        wait_for(lambda: board.near._up.error is not None)
    for _ in range(2):
        with pytest.raises(BrokerUnreachableError, match="1000 bytes at most"):
            board.near.publish("up/1", b"x")
    with pytest.raises(BrokerUnreachableError, match="1000 bytes at most"):
        board.near.drain(60.0)
    board.far.publish("down/1", b"y")
    wait_for(lambda: len(board.messages) == 1)


def test_a_stop_ends_the_wait_for_a_slow_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit the queue would take days."""
    monkeypatch.setattr(slow_link, "QUEUED_BYTES", 10_000)
    board, stopped = Board(Link(rate=0.1)), threading.Event()
    board.should_stop = stopped.is_set
    assert board.near.publish("up/1", bytes(20_000))
    results = list[bool]()
    sender = threading.Thread(target=lambda: results.append(board.near.publish("up/2", b"x")), daemon=True)
    sender.start()
    assert results == []
    stopped.set()
    sender.join(60)
    assert results == [False]
    assert not board.near.drain(1000.0)


def test_whoever_publishes_waits_while_much_is_under_way(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """A slow link must not hold a whole model in memory."""
    monkeypatch.setattr(slow_link, "QUEUED_BYTES", 10_000)
    board = Board(Link(rate=1e5))
    most = 0
    clock.hold()  # the first messages stay under way
    for number in range(20):
        if number == 5:
            clock.release()
        assert board.near.publish("up/1", bytes([number]) * 2_000)
        most = max(most, board.near._up._bytes)
    assert 10_000 < most < 13_000
    assert board.near.drain(60.0)
    assert [one.payload[0] for one in board.others] == list(range(20))
