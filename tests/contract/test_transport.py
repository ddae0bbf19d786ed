"""The contract of ``Transport``, tested on each implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from fedquilt_common.wire.transport import Connected, Will

if TYPE_CHECKING:
    from tests.contract.conftest import Peer, Side

At = Callable[[str], str]


def test_connected_comes_first_and_tells_of_the_session(side: Side, at: At) -> None:
    for present in (False, True):
        peer = side.peer(at("me").replace("/", "-")).connect()
        assert peer.inbox.items == [Connected(present)]
        peer.transport.close()


def test_what_is_retained_comes_with_the_subscription(side: Side, at: At) -> None:
    sender, reader = side.peer().connect(), side.peer().connect()
    sender.publish(at("kept"), b"old", retain=True)
    sender.publish(at("kept"), b"new", header=b"h", retain=True)
    sender.publish(at("passing"), b"gone")
    reader.subscribe(at("#"))
    assert [(m.topic, m.payload, m.header, m.retained) for m in reader.messages] == [(at("kept"), b"new", b"h", True)]


def test_what_comes_live_is_not_marked_retained(side: Side, at: At) -> None:
    sender, reader = side.peer().connect(), side.peer().connect()
    reader.subscribe(at("#"))
    sender.publish(at("kept"), b"1", retain=True)
    sender.publish(at("passing"), b"2")
    reader.inbox.wait(lambda: len(reader.messages) == 2)
    assert [(m.payload, m.retained) for m in reader.messages] == [(b"1", False), (b"2", False)]


def test_a_new_subscription_brings_what_is_retained_anew(side: Side, at: At) -> None:
    """This is how an agent requests missing chunks."""
    peer = side.peer().connect()
    peer.publish(at("kept"), b"1", retain=True)
    peer.subscribe(at("+"))
    peer.transport.unsubscribe([at("+")])
    peer.subscribe(at("kept"))
    assert peer.payloads == [b"1", b"1"]


def test_an_empty_payload_clears_what_is_retained(side: Side, at: At) -> None:
    sender, early, late = (side.peer().connect() for _ in range(3))
    sender.publish(at("kept"), b"1", retain=True)
    early.subscribe(at("#"))
    sender.publish(at("kept"), b"", retain=True)
    early.inbox.wait(lambda: early.payloads == [b"1", b""])
    late.subscribe(at("#"))
    assert late.messages == []


def test_order_per_topic(side: Side, at: At) -> None:
    sender, reader = side.peer().connect(), side.peer().connect()
    reader.subscribe(at("+"))
    for i in range(60):
        assert sender.transport.publish(at(f"{i % 2}"), b"%d" % i)
    reader.inbox.wait(lambda: len(reader.messages) == 60)
    for parity in range(2):
        found = [int(m.payload) for m in reader.messages if m.topic == at(f"{parity}")]
        assert found == list(range(parity, 60, 2))


@pytest.mark.parametrize("header", [b"", b"\x00", bytes(range(256)), b"\x01" + bytes(48)])
def test_headers_and_payloads_pass_untouched(side: Side, at: At, header: bytes) -> None:
    sender, reader = side.peer().connect(), side.peer().connect()
    reader.subscribe(at("#"))
    sender.publish(at("x"), bytes(range(256)) * 40, header=header)
    reader.inbox.wait(lambda: reader.messages)
    assert (reader.messages[0].payload, reader.messages[0].header) == (bytes(range(256)) * 40, header)


FILTERS = {
    "a/b": {"a/b"},
    "+/b": {"a/b", "c/b"},
    "a/+": {"a/b", "a/c"},
    "a/+/d": {"a/b/d"},
    "a/#": {"a", "a/b", "a/c", "a/b/d"},
    "+": {"a"},
    "b": set(),
}


@pytest.mark.parametrize("wanted", FILTERS)
def test_filters(side: Side, at: At, wanted: str) -> None:
    sender, reader = side.peer().connect(), side.peer().connect()
    reader.subscribe(at(wanted), at("end"))
    for topic in ("a", "a/b", "a/c", "c/b", "a/b/d", "end"):
        sender.publish(at(topic))
    reader.inbox.wait(lambda: any(m.topic == at("end") for m in reader.messages))
    assert {m.topic for m in reader.messages} - {at("end")} == {at(topic) for topic in FILTERS[wanted]} - {at("end")}


def test_nothing_comes_after_unsubscribe(side: Side, at: At) -> None:
    sender, reader = side.peer().connect(), side.peer().connect()
    reader.subscribe(at("a"), at("b"))
    sender.publish(at("a"), b"1")
    reader.inbox.wait(lambda: reader.messages)
    reader.transport.unsubscribe([at("a")])
    reader.settle()
    sender.publish(at("a"), b"2")
    sender.publish(at("b"), b"3")
    reader.inbox.wait(lambda: len(reader.messages) > 1)
    assert reader.payloads == [b"1", b"3"]


def test_no_filters_are_no_mistake(side: Side) -> None:
    peer = side.peer().connect()
    peer.transport.subscribe([])
    peer.transport.unsubscribe([])
    peer.settle()
    assert peer.messages == []


def test_only_what_was_acknowledged_is_done_with(side: Side, at: At) -> None:
    name = at("reader").replace("/", "-")
    sender, reader = side.peer().connect(), side.peer(name, ack=False).connect()
    reader.subscribe(at("#"))
    for i in range(4):
        sender.publish(at("x"), b"%d" % i, header=b"h%d" % i)
    reader.inbox.wait(lambda: len(reader.messages) == 4)
    for message in (reader.messages[2], reader.messages[0]):
        message.ack()
    reader.settle()
    reader.transport.close()
    again = side.peer(name, ack=False).connect()
    again.settle()
    assert again.inbox.items[0] == Connected(session_present=True)
    assert [(m.payload, m.header) for m in again.messages] == [(b"1", b"h1"), (b"3", b"h3")]


def test_what_is_sent_while_one_is_away_is_kept(side: Side, at: At) -> None:
    name = at("reader").replace("/", "-")
    sender, reader = side.peer().connect(), side.peer(name).connect()
    reader.subscribe(at("#"))
    reader.transport.close()
    for i in range(30):
        sender.publish(at("x"), b"%d" % i)
    again = side.peer(name).connect()
    again.inbox.wait(lambda: len(again.messages) >= 30)
    assert again.payloads == [b"%d" % i for i in range(30)]


@pytest.mark.parametrize("end_session", [True, False])
def test_a_session_that_is_ended_is_not_kept(side: Side, at: At, end_session: bool) -> None:
    name = at("reader").replace("/", "-")
    sender, reader = side.peer().connect(), side.peer(name).connect()
    reader.subscribe(at("#"))
    reader.transport.close(end_session=end_session)
    sender.publish(at("x"), b"while away")
    again = side.peer(name).connect()
    again.settle()
    assert again.inbox.items[0] == Connected(session_present=not end_session)
    assert again.payloads == ([] if end_session else [b"while away"])


def watched(side: Side, at: At) -> tuple[Peer, Peer]:
    """Connect a peer that subscribes to everything, and a peer with a will."""
    watcher = side.peer().connect()
    watcher.subscribe(at("#"))
    return watcher, side.peer(will=Will(at("presence"), b"gone")).connect()


def test_the_will_is_published_and_retained_after_a_break(side: Side, at: At) -> None:
    watcher, peer = watched(side, at)
    peer.publish(at("presence"), b"here", retain=True)
    side.break_off(peer)
    watcher.inbox.wait(lambda: watcher.payloads == [b"here", b"gone"])
    late = side.peer().connect()
    late.subscribe(at("presence"))
    assert [(m.payload, m.retained) for m in late.messages] == [(b"gone", True)]


@pytest.mark.parametrize("last", [b"bye", None])
def test_who_leaves_orderly_leaves_no_will(side: Side, at: At, last: bytes | None) -> None:
    watcher, peer = watched(side, at)
    peer.publish(at("presence"), b"here", retain=True)
    peer.transport.close(last=None if last is None else (at("presence"), last))
    expected = [b"here"] if last is None else [b"here", last]
    side.peer().connect().publish(at("end"), b"end")
    watcher.inbox.wait(lambda: b"end" in watcher.payloads)
    assert watcher.payloads == [*expected, b"end"]
    late = side.peer().connect()
    late.subscribe(at("presence"))
    assert late.payloads == expected[-1:]


def test_publish_says_whether_there_is_a_connection(side: Side, at: At) -> None:
    watcher, peer = side.peer().connect(), side.peer()
    watcher.subscribe(at("#"))
    assert not peer.transport.publish(at("x"), b"before", retain=True)
    peer.connect()
    assert peer.transport.publish(at("x"), b"between")
    peer.transport.drain(60)
    peer.transport.close()
    assert not peer.transport.publish(at("x"), b"after")
    watcher.settle()
    assert watcher.payloads == [b"between"]


def test_drain_returns_once_all_is_at_the_broker(side: Side, at: At) -> None:
    sender, reader = side.peer().connect(), side.peer().connect()
    for i in range(100):
        assert sender.transport.publish(at(f"{i}"), b"x", retain=True)
    assert sender.transport.drain(60)
    reader.subscribe(at("#"))
    assert len(reader.messages) == 100


def test_the_largest_payload_passes(side: Side, at: At) -> None:
    sender, reader = side.peer().connect(), side.peer().connect()
    reader.subscribe(at("#"))
    largest = bytes(sender.transport.max_payload)
    sender.publish(at("x"), largest, header=bytes(49))
    reader.inbox.wait(lambda: reader.messages)
    assert reader.payloads == [largest]


def test_bytes_are_counted(side: Side, at: At) -> None:
    sender = side.peer().connect()
    before = sender.transport.bytes_sent
    sender.publish(at("x"), bytes(1000), header=bytes(49))
    assert sender.transport.bytes_sent - before >= len(at("x")) + 1049


def test_closing_twice_does_no_harm(side: Side) -> None:
    peer = side.peer().connect()
    peer.transport.close()
    peer.transport.close()
