"""An agent whose disk damages a file, or has no room for one."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fedquilt_client.worker_pool import WorkerPool
from fedquilt_common.errors import RunFolderError
from fedquilt_common.training_jobs import Job
from fedquilt_common.wire.codec import FileArrays

if TYPE_CHECKING:
    from tests.unit.client.conftest import Host, Kit, Peer

Wait = Callable[..., Any]


def same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def plus(step: float, kit: Kit) -> dict[str, Any]:
    return {name: x + np.float32(step) for name, x in FileArrays(kit.blob().path).items()}


def reply_files(peer: Peer) -> list[Path]:
    return list((peer.folder / "state").glob("runs/run-1/clients/*/reply-*"))


def test_a_stored_reply_that_is_damaged_is_trained_again(
    peer: Peer, host: Host, kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    peer.publish(peer.topics.run, kit.run())
    peer.open("run-1", 1, kit.blob(), [0])
    with host():
        peer.reply(0, 1, accept=False)
    before, peer.received = peer.chunks(0, 1), []
    (file,) = reply_files(peer)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    with host():
        peer.reply(0, 1)
    # train_seconds in the header differs, so the digests do, but not the arrays
    assert {header.index for header, _ in peer.chunks(0, 1)} == {header.index for header, _ in before}
    assert "its stored reply is damaged; training it again" in caplog.text


def test_a_damaged_memory_ends_the_agent_and_is_named(peer: Peer, host: Host, kit: Kit, wait_for: Wait) -> None:
    code = "ctx.memory['count'] = ctx.memory.get('count', task.arrays['bias'][:1] * 0) + 1"
    peer.publish(peer.topics.run, kit.run(algorithm={"name": kit.package("reminding", code)}))
    peer.open("run-1", 1, kit.blob(), [0])
    with host(allow_import=("reminding",)) as agent:
        peer.reply(0, 1)
        (memory,) = (peer.folder / "state").glob("runs/run-1/clients/0/memory-*")
        memory.write_bytes(memory.read_bytes()[:-1] + b"x")
        peer.open("run-1", 2, kit.blob(), [0], since={"0": (1, 0)})
        error = wait_for(lambda: agent.errors)[0]
        agent.errors.clear()
    assert isinstance(error, RunFolderError)
    assert str(error).startswith(f"{memory}, the private memory of client 0, is damaged: restore the file")


def test_a_full_disk_ends_the_agent_with_advice_and_nothing_is_lost(
    peer: Peer, host: Host, kit: Kit, wait_for: Wait
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    peer.publish(peer.topics.run, kit.run())
    peer.open("run-1", 1, kit.blob(), [0])
    with kit.monkeypatch.context() as patched:
        patched.setattr("fedquilt_client.records.write_durably", full)
        with host() as agent:
            error = wait_for(lambda: agent.errors)[0]
            agent.errors.clear()
    assert isinstance(error, RunFolderError)
    assert "No space left on device. Free disk space in" in str(error)
    with host():
        assert same(peer.reply(0, 1), plus(0.5, kit))


def test_a_damaged_patch_is_downloaded_again(
    peer: Peer, host: Host, kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    submit = WorkerPool.submit
    spoilt: list[Job] = []

    def spoil(pool: WorkerPool, job: Job) -> None:
        """Damage the first job's patch before its process reads it."""
        if not spoilt:
            spoilt.append(job)
            job.patches[0].path.write_bytes(b"rotten")
        submit(pool, job)

    kit.monkeypatch.setattr(WorkerPool, "submit", spoil)
    peer.publish(peer.topics.run, kit.run())
    peer.open("run-1", 1, kit.blob(), [0])
    with host():
        assert same(peer.reply(0, 1), plus(0.5, kit))
    assert "is damaged or missing: downloading it again" in caplog.text
