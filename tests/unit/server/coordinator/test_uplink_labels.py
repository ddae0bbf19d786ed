"""Replies of soft labels: of another shape, class count or public set, not finite, too accurate; and bare ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fedquilt_common.algorithm_api import Task
from fedquilt_common.wire.chunks import Blob, ChunkHeader, read_chunk
from fedquilt_common.wire.codec import write_arrays
from fedquilt_common.wire.messages import REPLY_KEY, SUM_KEY, ReplyHeader
from fedquilt_common.wire.round_messages import RoundMessage, TaskMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import MqttMessage, Transport
from fedquilt_server.coordinator import partial_sums
from fedquilt_server.coordinator.claims import all_free
from fedquilt_server.coordinator.expected_replies import expected_replies, task_layouts
from fedquilt_server.coordinator.rate_limit import RateLimit
from fedquilt_server.coordinator.receipts import ReceiptPublisher
from fedquilt_server.coordinator.refusals import Refusals
from fedquilt_server.coordinator.site_relays import SiteRelays
from fedquilt_server.coordinator.uplink import Uplink
from fedquilt_server.round.events import Event, Rejected, Replied
from fedquilt_server.round.machine import Machine
from fedquilt_server.runs import reply_files
from fedquilt_server.runs.blob_store import BlobStore
from fedquilt_server.runs.journal import Traffic
from fedquilt_server.runs.reply_files import ReplyPlace, reply_name
from fedquilt_server.runs.run import ActiveRun
from fedquilt_server.runs.stopwatch import Stopwatch

PUBLIC = "ab" * 32
TASK = Task(
    "score",
    expect={"codes": (10, 6), "range": (2, 6)},
    dtypes={"codes": "uint8"},
    metrics={"accuracy": (0.0, 1.0)},
    labels=True,
)
MESSAGE = RoundMessage(
    run="run", round=1, exchange=0,
    tasks=[TaskMessage(clients=[0], kind="score", patches=[], labels=True)],
)  # fmt: skip
GOOD: dict[str, Any] = {"codes": np.zeros((10, 6), np.uint8), "range": np.zeros((2, 6), np.float32)}


class Inbox:
    """Takes what the uplink publishes; only ``publish`` is asked for."""

    def publish(self, topic: str, payload: bytes) -> bool:
        return True


def charge_nothing(agent: str, units: float) -> None:
    """Only an invalid partial sum costs units here."""


def open_uplink(
    folder: Path, task: Task, record: Callable[[Event], None], charge: Callable[[str, float], None] = charge_nothing
) -> Uplink:
    """An uplink of agent ``pi``, which hosts client 0, in the exchange of ``MESSAGE``."""
    blobs = BlobStore(folder / "run")
    run = SimpleNamespace(
        folder=SimpleNamespace(blobs=blobs, run="run"),
        machine=SimpleNamespace(host_of={0: "pi"}),
        watch=Stopwatch(Traffic()),
    )
    receipts = ReceiptPublisher(cast(Transport, Inbox()), Topics("lab"), "run")

    def record_all(replies: Sequence[Replied]) -> None:
        for reply in replies:
            record(reply)

    relays = SiteRelays(cast(Machine, run.machine), all_free)
    uplink = Uplink(cast(ActiveRun, run), receipts, Refusals(RateLimit(), record), record_all, relays, charge)
    uplink.open(expected_replies(MESSAGE, {0: task}, task_layouts({0: task}, "fp32"), PUBLIC))
    return uplink


def send_chunks(
    uplink: Uplink,
    blob: Blob,
    chunk: int = 1 << 20,
    spoil: Callable[[ChunkHeader], ChunkHeader] = lambda header: header,
    first: int = 0,
    most: int | None = None,
) -> None:
    """Send chunks of at most ``chunk`` bytes, from the number ``first`` on, at most ``most``."""
    with blob.path.open("rb") as file:
        for one in blob.headers(chunk, first, most):
            topic = Topics("lab").reply_chunk("pi", 0, 1, 0, one.index)
            payload = read_chunk(file.fileno(), one, blob.head)
            message = MqttMessage(topic, payload, spoil(one).encode(), False, lambda: None)
            uplink.take(Topics("lab").parse(topic), message)


def write_reply(
    path: Path, arrays: Mapping[str, Any] = GOOD, accuracy: float = 0.5, public: str | None = PUBLIC
) -> Blob:
    header = ReplyHeader(
        run="run", round=1, exchange=0, client=0, task=MESSAGE.fingerprint(MESSAGE.tasks[0], 0), weight=1.0,
        metrics={"accuracy": accuracy}, public=public,
    )  # fmt: skip
    return write_arrays(path, arrays, "fp32", {REPLY_KEY: header.model_dump_json()}, labels=True)


def send(
    folder: Path,
    arrays: Mapping[str, Any],
    accuracy: float = 0.5,
    public: str | None = PUBLIC,
    task: Task = TASK,
    chunk: int = 1 << 20,
    spoil: Callable[[ChunkHeader], ChunkHeader] = lambda header: header,
    after: Callable[[BlobStore, Replied], object] = lambda store, event: None,
) -> Event:
    """Send all chunks of a reply as they travel; returns the event that follows from the last one.

    Args:
        after: called with the coordinator's store and an accepted reply.
    """
    blob = write_reply(folder / "reply", arrays, accuracy, public)
    events: list[Event] = []
    uplink = open_uplink(folder, task, events.append)
    send_chunks(uplink, blob, chunk, spoil)
    uplink.flush()
    (event,) = events
    if isinstance(event, Replied):
        after(uplink._blobs, event)
    uplink._blobs.replies.end_segment()
    return event


def accepted(event: Event) -> Replied:
    assert isinstance(event, Replied)
    return event


def place_of(folder: Path, event: Replied) -> ReplyPlace:
    return BlobStore(folder / "run").replies.find(reply_name(0, 1, 0, event.digest))


def test_a_reply_of_several_chunks_is_not_hashed_again_for_the_average(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def average(store: BlobStore, event: Replied) -> None:
        monkeypatch.setattr(reply_files, "digest_file", lambda _: pytest.fail("the reply was hashed again"))
        (arrays,) = store.load_replies([event])
        assert arrays["codes"].shape == (10, 6)

    accepted(send(tmp_path, GOOD, chunk=40, after=average))


@pytest.mark.parametrize("chunk", [1 << 20, 40, 9])
def test_payloads_hold_the_numbers_and_nothing_else(chunk: int, tmp_path: Path) -> None:
    event = accepted(send(tmp_path, GOOD, chunk=chunk))
    assert (event.payload, event.metrics) == (60 + 48, {"accuracy": 0.5})
    place = place_of(tmp_path, event)
    found = place.arrays()
    assert {name: found[name].tolist() for name in found} == {name: x.tolist() for name, x in GOOD.items()}
    content = place.path.read_bytes() if place.size is None else place.read()
    assert content == (tmp_path / "reply").read_bytes()


def test_a_reply_without_arrays_has_an_empty_payload(tmp_path: Path) -> None:
    task = Task("digest", expect={}, labels=True)
    event = accepted(send(tmp_path, {}, task=task))
    assert event.payload == 0
    assert len(place_of(tmp_path, event).arrays()) == 0


@pytest.mark.parametrize(
    ("arrays", "more", "words"),
    [
        ({**GOOD, "codes": np.zeros((9, 6), np.uint8)}, {}, r"'codes' has shape \(9, 6\) instead of \(10, 6\)"),
        ({"codes": np.zeros((10, 7), np.uint8), "range": np.zeros((2, 7), np.float32)}, {}, "instead of"),
        (
            {**GOOD, "codes": np.zeros((10, 6), np.float32)},
            {},
            "dtype float32 instead of uint8; name its dtype in Task.dtypes",
        ),
        ({"codes": GOOD["codes"]}, {}, "the reply lacks arrays that its task expects"),
        ({**GOOD, "range": np.full((2, 6), np.nan, np.float32)}, {}, "not finite"),
        ({**GOOD, "range": np.full((2, 6), np.inf, np.float32)}, {}, "not finite"),
        (GOOD, {"accuracy": 1.01}, "'accuracy' is 1.01; it must be between 0 and 1"),
        (GOOD, {"accuracy": -0.5}, "between 0 and 1"),
        (GOOD, {"public": "cd" * 32}, "are of public set cdcdcdcdcdcd; the coordinator's is abababababab"),
        (GOOD, {"public": None}, "do not name their public set"),
    ],
)
def test_what_is_wrong_with_labels_is_said(
    arrays: dict[str, Any], more: dict[str, Any], words: str, tmp_path: Path
) -> None:
    event = send(tmp_path, arrays, **more)
    assert isinstance(event, Rejected)
    assert re.search(words, event.reason)
    assert not list((tmp_path / "run" / "replies").iterdir())  # nothing of it stays


def test_a_head_that_was_changed_on_the_way_is_found_out(tmp_path: Path) -> None:
    def spoil(header: ChunkHeader) -> ChunkHeader:
        head = header.head.replace(b'weight\\":1.0', b'weight\\":9.0')
        assert head != header.head
        return ChunkHeader(header.digest, header.index, header.count, header.size, head)

    event = send(tmp_path, GOOD, spoil=spoil)
    assert isinstance(event, Rejected)
    assert "announced digest" in event.reason


def test_the_sender_of_an_invalid_partial_sum_pays_for_the_time_that_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small sum can take seconds to inflate, in which the coordinator does nothing else."""
    moments = iter([100.0, 105.0])
    monkeypatch.setattr(partial_sums, "time", SimpleNamespace(perf_counter=lambda: next(moments)))
    charged, events = list[tuple[str, float]](), list[Event]()
    uplink = open_uplink(tmp_path, TASK, events.append, lambda agent, units: charged.append((agent, units)))
    send_chunks(uplink, write_arrays(tmp_path / "reply", GOOD, None, {SUM_KEY: "{}"}))
    assert [type(event) for event in events] == [Rejected]
    ((agent, units),) = charged
    assert agent == "pi"
    assert units == pytest.approx(50_000)
