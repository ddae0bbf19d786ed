"""What is retained at the broker: each patch once, slots used again, and nothing at the end, whatever happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.memory_transport import MemoryBroker, MemoryTransport

from fedquilt_common.algorithm_api import Task
from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.digests import digest_bytes
from fedquilt_common.types import Arrays, Precision
from fedquilt_common.wire.chunks import ChunkHeader
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_server.coordinator.downlink import Downlink
from fedquilt_server.coordinator.publications import plan_publications
from fedquilt_server.round.events import Send
from fedquilt_server.runs.blob_store import BlobStore
from fedquilt_server.runs.journal import Journal

CHUNK = 1024
TOPICS = Topics("lab")


def model(numbers: int, value: float = 1.0) -> Arrays:
    return {"w": np.full(numbers, value, np.float32)}


class Bench:
    """A downlink with all that it stands on; ``restart`` is another process on the same folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker = MemoryBroker()
        self.published: list[str] = []
        self.journal = Journal(folder / "journal.sqlite")
        self.store = BlobStore(folder / "blobs")
        self.downlink = self.make()

    def make(self, precision: Precision = "fp32") -> Downlink:
        self.transport = MemoryTransport(self.broker, "coordinator", lambda _: None)
        self.transport.connect()
        publish = self.broker.publish

        def noted(topic: str, payload: bytes, header: bytes, retain: bool) -> None:
            assert retain
            self.published.append(topic.removeprefix("fedquilt/v1/lab/"))
            publish(topic, payload, header, retain)

        self.transport._broker = MemoryBroker(self.broker.retained, self.broker.sessions)
        self.transport._broker.publish = noted  # type: ignore[method-assign]
        return Downlink(self.transport, TOPICS, self.store, self.journal, precision, CHUNK)

    def restart(self) -> None:
        self.journal.close()
        self.journal = Journal(self.folder / "journal.sqlite")
        self.downlink = self.make()

    def send(self, number: int, **tasks: Arrays) -> RoundMessage:
        """Tasks ``c0``, ``c1``... of round ``number``."""
        self.published.clear()
        asked = {int(name[1:]): Task("train", arrays) for name, arrays in tasks.items()}
        return self.downlink.publish("run-1", Send(number, 0, asked, 5.0), plan_publications(asked))

    @property
    def retained(self) -> list[str]:
        return sorted(topic.removeprefix("fedquilt/v1/lab/") for topic in self.broker.retained)

    def content(self, slot: int) -> bytes:
        found = []
        for topic, (payload, header) in self.broker.retained.items():
            if topic.startswith(f"fedquilt/v1/lab/slices/{slot}/"):
                found.append((ChunkHeader.decode(header), payload))
        assert len({head.digest for head, _ in found}) == 1
        assert len(found) == found[0][0].count
        return b"".join(payload for _, payload in sorted(found, key=lambda pair: pair[0].index))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.journal.close()


def slices(slot: int, chunks: int) -> list[str]:
    return [f"slices/{slot}/{chunk}" for chunk in range(chunks)]


def test_one_model_is_published_once_for_any_number_of_clients_and_the_manifest_comes_last(bench: Bench) -> None:
    arrays = model(700)
    message = bench.send(1, **{f"c{client}": arrays for client in range(100)})
    assert bench.published == [*slices(0, 3), "round"]
    (patch,) = message.patches
    (task,) = message.tasks
    assert (task.clients, task.patches, patch.slot) == (list(range(100)), [0], 0)
    content = bench.content(0)
    assert (digest_bytes(content, "xxh3"), len(content)) == (patch.digest, patch.size)
    kept = RoundMessage.model_validate_json(bench.broker.retained[TOPICS.round][0])
    assert kept == message
    assert (kept.run, kept.round, kept.exchange, kept.deadline) == ("run-1", 1, 0, 5.0)
    assert bench.downlink.digests == {patch.digest}


def test_what_is_already_there_is_not_sent_again(bench: Bench) -> None:
    bench.send(1, c0=model(700))
    bench.send(2, c0=model(700))
    assert bench.published == ["round"]
    bench.send(3, c0=model(700, 2.0))
    assert bench.published == [*slices(0, 3), "round"]


def test_slots_are_used_again_and_what_is_too_much_is_cleared(bench: Bench) -> None:
    bench.send(1, c0=model(700), c1=model(400, 2.0))
    assert bench.retained == ["round", *slices(0, 3), *slices(1, 2)]
    closed = model(700, 3.0)
    saved = bench.store.put(closed)
    bench.downlink.remember(closed, saved)
    message = bench.send(2, c0=model(100, 3.0))
    assert bench.retained == ["round", *slices(0, 1)]
    assert digest_bytes(bench.content(0), "xxh3") == message.patches[0].digest
    assert bench.downlink.digests == {message.patches[0].digest, saved.digest}
    bench.send(3, c0=model(700, 4.0))
    assert bench.retained == ["round", *slices(0, 3)]


def test_a_task_without_arrays_needs_no_slot(bench: Bench) -> None:
    bench.send(1, c0=model(700))
    message = bench.send(2, c0={})
    assert (bench.retained, message.patches, message.tasks[0].patches) == (["round"], [], [])


def test_everything_again_for_a_broker_that_forgot(bench: Bench) -> None:
    bench.send(1, c0=model(700), c1=model(100, 2.0))
    before = dict(bench.broker.retained)
    bench.broker.retained.clear()
    bench.downlink.publish_again()
    assert bench.broker.retained == before


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"x"), lambda path: path.unlink()])
def test_a_damaged_patch_is_written_again_before_it_is_published_again(
    bench: Bench, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    message = bench.send(1, c0=model(700), c1=model(100, 2.0))
    before = dict(bench.broker.retained)
    bench.broker.retained.clear()
    damage(bench.store.path(message.patches[1].digest))
    bench.downlink.publish_again()
    assert bench.broker.retained == before
    assert f"{message.patches[1].digest} " in caplog.text
    assert "writing it again" in caplog.text


def test_a_damaged_state_is_never_published_again(bench: Bench) -> None:
    """Its arrays are read from the damaged file itself, so nothing intact is left."""
    blob = bench.store.put(model(700))
    arrays = bench.store.arrays(blob.digest)
    bench.downlink.remember(arrays, blob)
    bench.send(1, c0=arrays)
    content = bytearray(blob.path.read_bytes())
    content[-1] ^= 1
    blob.path.write_bytes(content)
    with pytest.raises(RunFolderError, match=f"{blob.digest} is damaged.*Restore the file from a backup"):
        bench.downlink.publish_again()


def test_nothing_open_means_nothing_to_publish_again(bench: Bench) -> None:
    bench.downlink.publish_again()
    assert bench.published == []


@pytest.mark.parametrize("restarts", [False, True])
def test_clear_leaves_nothing(bench: Bench, restarts: bool) -> None:
    bench.send(1, c0=model(700), c1=model(700, 2.0))
    bench.send(2, c0=model(100, 3.0))
    bench.send(3, c0=model(700, 4.0), c1=model(100, 5.0))
    if restarts:
        bench.restart()
    bench.downlink.clear()
    assert bench.retained == []
    bench.published.clear()
    bench.downlink.publish_again()
    assert bench.published == []


def test_after_a_restart_what_an_earlier_process_left_is_cleared(bench: Bench) -> None:
    bench.send(1, c0=model(700), c1=model(400, 2.0))
    bench.restart()
    bench.send(2, c0=model(100, 3.0))
    assert bench.retained == ["round", *slices(0, 1)]


def test_a_connection_lost_while_slots_shrink_leaves_nothing_behind(bench: Bench) -> None:
    bench.send(1, c0=model(700), c1=model(400, 2.0))
    bench.transport.break_off()
    bench.send(2, c0=model(100, 3.0))
    assert bench.retained == ["round", *slices(0, 3), *slices(1, 2)]
    bench.transport.connect()
    bench.downlink.publish_again()
    assert bench.retained == ["round", *slices(0, 1)]


def test_a_process_killed_before_the_broker_has_the_surplus_cleared_leaves_nothing_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.send(1, c0=model(700), c1=model(400, 2.0))
    bench.downlink.confirm()
    with monkeypatch.context() as patch:  # handed over, and still under way when the process ends
        patch.setattr(bench.transport, "publish", lambda *_, **__: True)
        bench.send(2, c0=model(100, 3.0))
    bench.restart()
    bench.downlink.clear()
    assert bench.retained == []


def test_what_the_broker_has_cleared_is_not_cleared_again(bench: Bench) -> None:
    bench.send(1, c0=model(700))
    bench.send(2, c0=model(100, 3.0))
    bench.downlink.confirm()
    bench.restart()
    bench.published.clear()
    bench.downlink.clear()
    assert bench.published == [*slices(0, 1), "round"]


def test_a_process_killed_while_slots_shrink_leaves_nothing_behind(bench: Bench) -> None:
    """The journal must not say that chunks are gone before they are."""
    bench.send(1, c0=model(700))
    bench.transport.break_off()
    bench.send(2, c0=model(100, 3.0))
    bench.restart()
    bench.downlink.clear()
    assert bench.retained == []


def test_a_state_that_lies_on_disk_is_not_written_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = model(700)
    blob = bench.store.put(arrays)
    bench.downlink.remember(arrays, blob)
    monkeypatch.setattr(bench.store, "put", _never)
    assert bench.send(1, c0=arrays).patches[0].digest == blob.digest


def _never(*_: object) -> None:
    raise AssertionError("written again")


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_narrow_wire_gets_its_own_blob(bench: Bench, precision: Precision) -> None:
    arrays = model(700)
    blob = bench.store.put(arrays)
    bench.downlink = bench.make(precision)
    message = bench.send(1, c0=arrays)
    assert message.patches[0].size < blob.size * 0.6
    assert digest_bytes(bench.content(0), "xxh3") == message.patches[0].digest


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_arrays_of_finished_rounds_are_let_go(bench: Bench, precision: Precision) -> None:
    bench.downlink = bench.make(precision)
    for number in range(1, 6):
        arrays = model(10, number)
        bench.send(number, c0=arrays)
        bench.downlink.remember(arrays, bench.store.put(arrays))
    assert len(bench.downlink._written) <= 1


def test_a_small_packet_of_the_broker_makes_small_chunks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.transport, "max_payload", 300)
    bench.send(1, c0=model(700))
    sizes = [len(payload) for topic, (payload, _) in bench.broker.retained.items() if "slices" in topic]
    assert max(sizes) <= 300
    assert sum(sizes) == len(bench.content(0))
