"""The folder of an agent that hosts one client, and commits to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fedquilt_client.records import StoredReply, name_reply, read_record
from fedquilt_client.store import AgentStore, RunStore
from fedquilt_common.files.digests import digest_file
from fedquilt_common.types import ExchangeId
from fedquilt_common.wire.messages import RunMessage

CLIENT = 3
BEFORE = (0, 0)
"""The round before."""


def open_store(folder: Path, name: str = "run-1") -> RunStore:
    with closing_store(folder) as agent:
        return agent.open_run(RunMessage(run=name, experiment={}))


@contextlib.contextmanager
def closing_store(folder: Path) -> Iterator[AgentStore]:
    """Open the folder of an agent that is gone afterwards, dead or alive."""
    agent = AgentStore(folder)
    try:
        yield agent
    finally:
        agent.release()


def commit(
    store: RunStore, number: int, since: ExchangeId | None = BEFORE, *, memory: bool = True, text: str = "reply"
) -> StoredReply:
    """Commit round ``number`` as a worker and the agent do: drafts first."""
    since = (number - 1, 0) if since is BEFORE else since
    drafts = store.drafts(number)
    drafts.reply.write_text(f"{text} {number}")
    if memory:
        drafts.memory.write_text(f"memory {number}")
    digest = digest_file(drafts.reply, "xxh3")
    size = drafts.reply.stat().st_size
    task = f"task{number}"
    reply = StoredReply(store.run.run, CLIENT, number, 0, task, name_reply(number, 0, task, digest, 0), digest, size)
    return store.commit(reply, drafts, since, memory=digest_file(drafts.memory, "xxh3") if memory else None)


def known(store: RunStore, number: int) -> StoredReply | None:
    return store.reply(CLIENT, number, 0, f"task{number}")


def memory(store: RunStore, number: int) -> str | None:
    kept = store.memory(CLIENT, (number, 0))
    assert kept is None or kept.is_intact()
    return kept.path.read_text() if kept else None


def check_whole(store: RunStore) -> int:
    """Return the store's round, 2 or 3; its memory and replies must agree."""
    at = 3 if known(store, 3) else 2
    assert memory(store, at) == f"memory {at}"
    record = read_record(store.folder / "clients" / str(CLIENT))
    assert [memory.after for memory in record.memories] == [(1, 0), (2, 0), (3, 0)][at - 2 : at]
    reply = known(store, at)
    assert reply is not None
    blob = store.blob(reply)
    assert blob.path.read_text() == f"reply {at}"
    assert (digest_file(blob.path, "xxh3"), blob.path.stat().st_size) == (blob.digest, blob.size)
    return at
