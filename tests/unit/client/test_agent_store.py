"""What a board keeps: whatever is killed when, a client's memory and reply are both there or both not."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.agent_store import BEFORE, CLIENT, check_whole, closing_store, commit, known, memory, open_store

from fedquilt_client import store as module
from fedquilt_client.records import StoredReply
from fedquilt_client.store import AgentStore
from fedquilt_common.errors import FolderInUseError, RunFolderError
from fedquilt_common.files.digests import digest_file
from fedquilt_common.files.durable import write_durably
from fedquilt_common.files.locking import lock_folder
from fedquilt_common.wire.messages import RunMessage

if TYPE_CHECKING:
    from tests.unit.client.conftest import Kit


class PowerCutError(Exception):
    """The board is off from here on."""


class Disk:
    """Counts what reaches the disk, and cuts the power before or after step ``last``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, last: int, *, done: bool) -> None:
        self.steps = 0
        self._last, self._done = last, done
        for owner, name in ((Path, "replace"), (Path, "unlink"), (os, "fsync")):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, real: Any) -> Any:
        def step(*arguments: Any, **options: Any) -> Any:
            number, self.steps = self.steps, self.steps + 1
            if number > self._last or (number == self._last and not self._done):
                raise PowerCutError
            found = real(*arguments, **options)
            if number == self._last:
                raise PowerCutError
            return found

        return step


def next_boot(folder: Path) -> int:
    with closing_store(folder) as agent:
        return agent.next_boot()


def steps_of_a_commit(folder: Path) -> int:
    store = open_store(folder)
    commit(store, 1)
    commit(store, 2)
    with pytest.MonkeyPatch.context() as patched:
        disk = Disk(patched, 10**6, done=True)
        commit(store, 3)
    return disk.steps


def test_a_commit_is_all_or_nothing(tmp_path: Path) -> None:
    steps = steps_of_a_commit(tmp_path / "count")
    assert steps >= 5  # reply, memory, record and its folder to disk; old files away
    seen = set()
    for last in range(steps):
        for done in (False, True):
            folder = tmp_path / f"{last}-{done}"
            store = open_store(folder)
            commit(store, 1)
            commit(store, 2)
            with pytest.MonkeyPatch.context() as patched:
                Disk(patched, last, done=done)
                with pytest.raises(PowerCutError):
                    commit(store, 3)
            seen.add(check_whole(open_store(folder)))
            again = open_store(folder)
            commit(again, 3)
            assert check_whole(open_store(folder)) == 3
    assert seen == {2, 3}


def test_what_is_committed_was_synced_before_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    real_replace, real_fsync = Path.replace, os.fsync

    def replace(self: Path, target: Path) -> Path:
        order.append(f"name {Path(target).name}")
        return real_replace(self, target)

    def fsync(descriptor: int) -> None:
        order.append("sync folder" if Path(f"/proc/self/fd/{descriptor}").is_dir() else "sync file")
        real_fsync(descriptor)

    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(os, "fsync", fsync)
    write_durably(tmp_path / "file", "text")
    expected = ["sync file", "name file", "sync folder"]
    assert order == (expected if Path("/proc/self/fd").exists() else ["sync file", "name file", "sync file"])


def test_only_an_answer_to_the_same_question_is_found(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    reply = commit(store, 2)
    assert known(store, 2) == reply
    assert store.reply(CLIENT, 2, 0, "another task") is None
    assert store.reply(CLIENT, 2, 1, reply.task) is None
    assert store.reply(CLIENT, 3, 0, reply.task) is None
    assert store.reply(CLIENT + 1, 2, 0, reply.task) is None
    assert store.memory(CLIENT + 1, (2, 0)) is None


def test_memory_stays_when_a_task_does_not_touch_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    commit(store, 1)
    commit(store, 2, memory=False)
    commit(store, 9, (2, 0), memory=False)
    assert memory(open_store(tmp_path), 9) == "memory 1"


def test_a_reply_that_does_not_count_leaves_no_memory(tmp_path: Path) -> None:
    """Rounds 2 and 3 came too late: the coordinator still speaks of round 1."""
    store = open_store(tmp_path)
    commit(store, 1, None)
    commit(store, 2, (1, 0))
    commit(store, 3, (1, 0))
    assert memory(store, 1) == "memory 1"
    commit(store, 4, (1, 0), memory=False)
    assert memory(open_store(tmp_path), 4) == "memory 1"


def test_a_round_that_is_begun_again_begins_from_the_same_memory(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    commit(store, 1, None)
    commit(store, 2, (1, 0))
    second = StoredReply(store.run.run, CLIENT, 2, 1, "task", "reply-2.1-x", "0" * 64, 5)
    drafts = store.drafts(1)
    drafts.reply.write_text("reply")
    drafts.memory.write_text("memory 2.1")
    store.commit(second, drafts, (2, 0), memory=digest_file(drafts.memory, "xxh3"))
    found = {exchange: store.memory(CLIENT, exchange) for exchange in ((1, 0), (2, 0), (2, 1))}
    assert [kept and kept.path.read_text() for kept in found.values()] == ["memory 1", "memory 2", "memory 2.1"]
    commit(store, 2, (1, 0), text="again")
    assert memory(store, 1) == "memory 1"


def test_a_client_that_never_counted_starts_without_memory(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    commit(store, 1, None)
    assert store.memory(CLIENT, None) is None
    commit(store, 2, None, memory=False)
    assert memory(store, 2) is None


@pytest.mark.parametrize("kept", [True, False])
def test_memory_that_is_not_there_is_told_once_if_the_runs_clients_keep_any(tmp_path: Path, kept: bool) -> None:
    store = open_store(tmp_path)
    assert store.memory(CLIENT, (7, 0)) is None
    assert store.note_memory(kept=kept) == ({CLIENT: 7} if kept else {})
    assert not store.note_memory(kept=kept)
    commit(store, 1, None, memory=False)
    assert store.memory(CLIENT, (1, 0)) is None
    assert not store.note_memory(kept=kept)  # it is known that there is none


def test_an_older_copy_of_the_run_folder_is_not_continued_without_memory(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in (1, 2, 3, 4):
        commit(store, number, None if number == 1 else (number - 1, 0))
    assert memory(store, 3) == "memory 3"
    with pytest.raises(RunFolderError, match=r"after round 2, but this board is at round 4.* older copy"):
        store.memory(CLIENT, (2, 0))
    commit(store, 5, (4, 0), memory=False)
    assert store.memory(CLIENT, (9, 0)) is None  # another board has hosted the client since


def test_memory_that_was_missing_may_be_missing_again(tmp_path: Path) -> None:
    """The client's first reply here was late, so the next task starts from the same reply, which another board sent."""
    store = open_store(tmp_path)
    for number in (5, 6):
        assert store.memory(CLIENT, (4, 0)) is None
        commit(store, number, (4, 0))
    assert memory(store, 6) == "memory 6"
    with pytest.raises(RunFolderError, match="older copy"):
        store.memory(CLIENT, (3, 0))
    commit(store, 7, (6, 0))
    assert memory(store, 6) == "memory 6"


def test_old_files_go(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    replies = {number: commit(store, number) for number in range(1, 6)}
    names = {path.name for path in (store.folder / "clients" / str(CLIENT)).iterdir()}
    files = [store.memory(CLIENT, (number, 0)) for number in (4, 5)]
    assert names == {"committed.json", *(kept.path.name for kept in files if kept), replies[4].file, replies[5].file}
    assert None not in files
    assert list((store.folder / "drafts").iterdir()) == [store.spare]


def test_an_answer_to_a_second_question_in_an_exchange_replaces_the_first(tmp_path: Path) -> None:
    """There is one memory after an exchange, and it belongs to the second answer."""
    store = open_store(tmp_path)
    first = commit(store, 1)
    second = commit(store, 1, text="other")
    assert not store.blob(first).path.exists()
    assert store.blob(second).path.read_text() == "other 1"
    assert known(store, 1) == second


def test_a_reply_stays_only_with_the_memory_after_it(tmp_path: Path) -> None:
    """The coordinator's folder was restored: it asks for round 1 again, and then for all later ones."""
    store = open_store(tmp_path)
    for number in (1, 2, 3):
        commit(store, number, None if number == 1 else BEFORE)
    commit(store, 1, None)
    for number in (2, 3):
        assert known(store, number) is None
        commit(store, number)
    assert memory(store, 3) == "memory 3"


def test_a_client_without_memory_keeps_the_reply_of_the_last_round(tmp_path: Path) -> None:
    """It may still be on its way when the next one is committed, whatever counts."""
    store = open_store(tmp_path)
    for number in (1, 2, 3):
        commit(store, number, None, memory=False)
    assert [known(store, number) is not None for number in (1, 2, 3)] == [False, True, True]


def test_two_jobs_for_one_task_write_to_different_files(tmp_path: Path) -> None:
    """A cancelled job may still write while the next one for its client and exchange is committed."""
    store = open_store(tmp_path)
    one, two = store.drafts(1), store.drafts(2)
    assert len({one.reply, one.memory, two.reply, two.memory}) == 4


def test_drafts_of_a_process_that_was_killed_go(tmp_path: Path) -> None:
    draft = open_store(tmp_path).drafts(1).reply
    draft.write_text("half")
    open_store(tmp_path)
    assert not draft.exists()


def test_boot_grows_whatever_the_clock_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(time=lambda: 3.0)
    monkeypatch.setattr(module, "time", clock)
    boots = [next_boot(tmp_path) for _ in range(3)]
    clock.time = lambda: 1.7e9
    boots += [next_boot(tmp_path) for _ in range(2)]
    clock.time = lambda: 0.0
    boots += [next_boot(tmp_path) for _ in range(2)]
    assert boots == [3, 4, 5, 1_700_000_000, 1_700_000_001, 1_700_000_002, 1_700_000_003]
    (tmp_path / "boot").write_text("torn\0")
    clock.time = lambda: 1.8e9
    assert next_boot(tmp_path) == 1_800_000_000
    (tmp_path / "boot").write_text("9" * 30)
    assert next_boot(tmp_path) == 1_800_000_000


def test_a_boot_that_loses_power_is_not_given_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: 0.0))
    assert next_boot(tmp_path) == 1
    for last in range(3):
        with pytest.MonkeyPatch.context() as patched:
            Disk(patched, last, done=True)
            with pytest.raises(PowerCutError):
                next_boot(tmp_path)
    assert next_boot(tmp_path) >= 2


def test_a_folder_has_one_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "lock_folder", functools.partial(lock_folder, wait=0.0))
    with closing_store(tmp_path), pytest.raises(FolderInUseError, match=f"process {os.getpid()} on .* uses"):
        AgentStore(tmp_path)
    assert next_boot(tmp_path) > 0


def test_a_stopped_agent_leaves_no_drafts_even_if_it_never_heard_that_its_run_is_over(tmp_path: Path) -> None:
    with closing_store(tmp_path) as agent:
        store = agent.open_run(RunMessage(run="run-1", experiment={}))
        for number in range(1, 4):
            commit(store, number)
        store.drafts(4).reply.write_text("half")
        assert store.spare.exists()
    assert not list((store.folder / "drafts").iterdir())
    assert known(store, 3) is not None


def test_an_old_run_leaves_its_memory_only(tmp_path: Path) -> None:
    old = open_store(tmp_path, "old")
    commit(old, 1)
    old.patch("a" * 64).write_text("patch")
    old.drafts(1).reply.write_text("draft")
    new = open_store(tmp_path, "new")
    assert not old.patches.exists()
    assert not (old.folder / "drafts").exists()
    assert memory(old, 1) == "memory 1"
    assert memory(new, 1) is None
    assert memory(open_store(tmp_path, "old"), 1) == "memory 1"


def test_the_same_run_opened_again_has_its_replies_but_fetches_its_patches_anew(tmp_path: Path) -> None:
    """A patch that a power cut spoilt must not be trained on; the broker has it."""
    first = open_store(tmp_path)
    first.patch("a" * 64).write_text("patch")
    commit(first, 1)
    again = open_store(tmp_path)
    assert not again.patch("a" * 64).exists()
    assert known(again, 1) is not None
    assert RunMessage.model_validate_json(again.message.read_text()).run == "run-1"


def test_patches_are_kept_while_wanted(tmp_path: Path, kit: Kit) -> None:
    store = open_store(tmp_path)
    wanted, other = "a" * 64, "b" * 64
    for name in (wanted, f"{wanted}.part", other, f"{other}.part"):
        (store.patches / name).write_text(name)
    store.keep_patches({wanted})
    assert {path.name for path in store.patches.iterdir()} == {wanted, f"{wanted}.part"}


def test_a_run_that_is_over_leaves_private_memory_only(tmp_path: Path) -> None:
    old = open_store(tmp_path, "run-1")
    commit(old, 1)
    commit(old, 2)
    old.patch("a" * 64).write_text("patch")
    with closing_store(tmp_path) as agent:
        agent.end_run("run-1")
        agent.end_run("never-here")
    assert not list(old.folder.glob("clients/*/reply-*"))
    assert not old.patches.exists()
    assert memory(old, 2) == "memory 2"


def test_a_run_that_is_over_leaves_nothing_where_no_client_has_private_memory(tmp_path: Path) -> None:
    """A board that takes part in many runs would gather a folder of each."""
    old = open_store(tmp_path, "run-1")
    commit(old, 1, memory=False)
    with closing_store(tmp_path) as agent:
        agent.end_run("run-1")
        assert not old.folder.exists()
        agent.end_run("run-1")


def test_an_interrupted_run_keeps_its_replies_for_when_it_is_resumed(tmp_path: Path) -> None:
    reply = commit(open_store(tmp_path, "run-1"), 1)
    open_store(tmp_path, "run-2")
    again = open_store(tmp_path, "run-1")
    assert known(again, 1) == reply
    assert again.blob(reply).path.read_text() == "reply 1"
