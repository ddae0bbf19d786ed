"""An agent whose disk damages a file, or has no room for one."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.agents import failures, notices, plus, same

from fedquilt_client.worker_pool import WorkerPool
from fedquilt_common.errors import RunFolderError
from fedquilt_common.training_jobs import Job
from fedquilt_common.wire.texts import shorten_text

if TYPE_CHECKING:
    from tests.unit.client.conftest import Host, Kit, Peer

Wait = Callable[..., Any]


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
    assert "its reply on disk is damaged; training it again" in caplog.text


COUNTING = "ctx.memory['count'] = ctx.memory.get('count', task.arrays['bias'][:1] * 0) + 1"


def memory_of(peer: Peer, client: int) -> Path:
    (file,) = (peer.folder / "state").glob(f"runs/run-1/clients/{client}/memory-*")
    return file


def test_a_damaged_memory_fails_its_client_only_and_is_named(peer: Peer, host: Host, kit: Kit, wait_for: Wait) -> None:
    peer.publish(peer.topics.run, kit.run(algorithm={"name": kit.package("reminding", COUNTING)}))
    peer.open("run-1", 1, kit.blob(), [0, 1])
    since = {"0": (1, 0), "1": (1, 0)}
    with host(allow_import=("reminding",)):
        peer.reply(0, 1)
        peer.reply(1, 1)
        memory = memory_of(peer, 0)
        whole = memory.read_bytes()
        memory.write_bytes(whole[:-1] + b"x")
        peer.open("run-1", 2, kit.blob(), [0, 1], since=since)
        failure = wait_for(lambda: failures(peer))[0]
        assert (failure.client, failure.round) == (0, 2)
        assert failure.reason.startswith(f"{memory}, the private memory of client 0, is damaged: restore the file")
        peer.reply(1, 2)
        memory.write_bytes(whole)
        peer.open("run-1", 2, kit.blob(), [0], since=since)
        peer.reply(0, 2)


def test_lost_memory_is_reported_once_for_all_clients(peer: Peer, host: Host, kit: Kit, wait_for: Wait) -> None:
    peer.publish(peer.topics.run, kit.run(algorithm={"name": kit.package("forgetful", COUNTING)}))
    peer.open("run-1", 8, kit.blob(), [0, 1], since={"0": (7, 0), "1": (6, 0)})
    with host(allow_import=("forgetful",)):
        peer.reply(0, 8)
        peer.reply(1, 8)
        found = wait_for(lambda: notices(peer))
    text = "the private memory of client 0 after round 7, client 1 after round 6 is missing; they train without it"
    assert [(notice.kind, notice.text.startswith(text)) for notice in found] == [("memory-lost", True)]


def test_a_lost_record_fails_its_client_only(peer: Peer, host: Host, kit: Kit, wait_for: Wait) -> None:
    peer.publish(peer.topics.run, kit.run(algorithm={"name": kit.package("recalling", COUNTING)}))
    peer.open("run-1", 1, kit.blob(), [0])
    with host(allow_import=("recalling",)):
        peer.reply(0, 1)
        memory = memory_of(peer, 0)
        (memory.parent / "committed.json").unlink()
        peer.open("run-1", 2, kit.blob(), [0, 1], since={"0": (1, 0)})
        assert "committed.json is missing or too old" in wait_for(lambda: failures(peer))[0].reason
        peer.reply(1, 2)
    assert memory.exists()


def test_damaged_memory_of_all_clients_ends_the_agent(peer: Peer, host: Host, kit: Kit, wait_for: Wait) -> None:
    peer.publish(peer.topics.run, kit.run(algorithm={"name": kit.package("knowing", COUNTING)}))
    peer.open("run-1", 1, kit.blob(), [0, 1])
    with host(allow_import=("knowing",)) as agent:
        peer.reply(0, 1)
        peer.reply(1, 1)
        for client in (0, 1):
            memory_of(peer, client).write_bytes(b"rotten")
        peer.open("run-1", 2, kit.blob(), [0], since={"0": (1, 0)})
        wait_for(lambda: failures(peer))
        peer.open("run-1", 2, kit.blob(), [1], since={"1": (1, 0)})
        error = wait_for(lambda: agent.errors)[0]
        agent.errors.clear()
    assert isinstance(error, RunFolderError)
    assert "the private memory of client 1, is damaged: restore the file" in str(error)
    assert [failure.client for failure in failures(peer)] == [0, 1]


def test_a_full_disk_ends_the_agent_with_advice_and_nothing_is_lost(
    peer: Peer, host: Host, kit: Kit, wait_for: Wait
) -> None:
    replace = Path.replace

    def full(path: Path, target: Path) -> Path:
        if target.name.startswith("reply-"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(path, target)

    peer.publish(peer.topics.run, kit.run())
    peer.open("run-1", 1, kit.blob(), [0])
    with kit.monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with host() as agent:
            error = wait_for(lambda: agent.errors)[0]
            agent.errors.clear()
    assert isinstance(error, RunFolderError)
    assert "No space left on device. Free disk space there" in str(error)
    (told,) = wait_for(lambda: notices(peer), "a notice")
    assert (told.kind, told.text) == ("ended", shorten_text(f"ends: {error}"))
    with host():
        assert same(peer.reply(0, 1), plus(0.5, kit))


def spoil_first_patch(kit: Kit) -> None:
    """Damage the first job's patch before its process reads it."""
    submit = WorkerPool.submit
    spoilt: list[Job] = []

    def spoil(pool: WorkerPool, job: Job) -> None:
        if not spoilt:
            spoilt.append(job)
            job.patches[0].path.write_bytes(b"rotten")
        submit(pool, job)

    kit.monkeypatch.setattr(WorkerPool, "submit", spoil)


def test_a_damaged_patch_is_downloaded_again(
    peer: Peer, host: Host, kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    spoil_first_patch(kit)
    peer.publish(peer.topics.run, kit.run())
    peer.open("run-1", 1, kit.blob(), [0])
    with host():
        assert same(peer.reply(0, 1), plus(0.5, kit))
    assert "is damaged: downloading it again" in caplog.text


def test_a_patch_that_many_clients_share_is_downloaded_again_once(
    peer: Peer, host: Host, kit: Kit, wait_for: Wait, caplog: pytest.LogCaptureFixture
) -> None:
    spoil_first_patch(kit)
    peer.publish(peer.topics.run, kit.run())
    peer.open("run-1", 1, kit.blob(), [0, 1, 2, 3])
    with host(clients=(0, 1, 2, 3)):
        clients = {0, 1, 2, 3}
        while clients:  # whichever is sent next
            client = next(iter(wait_for(lambda: {client for client in clients if peer.chunks(client, 1)})))
            assert same(peer.reply(client, 1), plus(0.5, kit))
            clients.remove(client)
    assert failures(peer) == []
    assert caplog.text.count("is damaged: downloading it again") == 1


def test_a_disk_that_damages_each_patch_is_reported_and_tried_again_with_the_next_manifest(
    peer: Peer, host: Host, kit: Kit, wait_for: Wait
) -> None:
    submit = WorkerPool.submit
    spoils = [True]

    def spoil(pool: WorkerPool, job: Job) -> None:
        if spoils[0]:
            job.patches[0].path.write_bytes(b"rotten")
        submit(pool, job)

    kit.monkeypatch.setattr(WorkerPool, "submit", spoil)
    peer.publish(peer.topics.run, kit.run())
    peer.open("run-1", 1, kit.blob(), [0])
    with host():
        assert "damaged a patch 3 times" in wait_for(lambda: failures(peer))[0].reason
        spoils[0] = False
        peer.open("run-1", 1, kit.blob(), [0])
        assert same(peer.reply(0, 1), plus(0.5, kit))
