"""The ledger: a task spends once, whatever crashes; a damaged ledger is never taken for a shorter or an empty one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.durable import replace_durably
from fedquilt_common.privacy import samples_spent
from fedquilt_common.privacy.accountant import Charge
from fedquilt_common.privacy.ledger import LedgerEntry, append_entries, ledger_file, measure_ledgers, read_ledger
from fedquilt_common.privacy.noise_key import KEY_VARIABLE, open_key
from fedquilt_common.privacy.samples_spent import (
    digest_sample_ids,
    find_related,
    identify_samples,
    keep_samples,
    relate_ledgers,
)
from fedquilt_common.types import Examples


def entry(round: int = 1, run: str = "run", client: int = 0) -> LedgerEntry:
    return LedgerEntry(run, client, round, 0, f"{run} {client} {round}", Charge(1.1, 0.25, 4), 0.5 * round, 1e-5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    ledger = ledger_file(tmp_path, "digest")
    for round in (1, 2, 3):
        append_entries(ledger, [entry(round)])
    return ledger


def test_entries_come_back_in_order(path: Path) -> None:
    assert read_ledger(path) == [entry(1), entry(2), entry(3)]
    assert read_ledger(path.with_name("absent.jsonl")) == []


def test_a_repeated_training_spends_once(path: Path) -> None:
    before = path.read_bytes()
    append_entries(path, [entry(2), entry(1)])
    assert path.read_bytes() == before


def test_an_unfinished_line_does_not_count_and_is_replaced(path: Path) -> None:
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(whole[: -len(lines[2]) // 2])
    assert read_ledger(path) == [entry(1), entry(2)]
    append_entries(path, [entry(3)])
    assert path.read_bytes() == whole


@given(position=st.integers(0, 10**6), value=st.integers(0, 255))
def test_a_changed_byte_is_found(tmp_path_factory: pytest.TempPathFactory, position: int, value: int) -> None:
    path = ledger_file(tmp_path_factory.mktemp("ledger"), "digest")
    for round in (1, 2):
        append_entries(path, [entry(round)])
    content = bytearray(path.read_bytes())
    position %= len(content) - 1  # the last one is the end of the last line
    if content[position] == value:
        return
    content[position] = value
    path.write_bytes(content)
    with pytest.raises(RunFolderError, match=r"(?s)digest.jsonl:\d: .*Restore the file from a backup"):
        read_ledger(path)


def test_a_line_that_is_gone_is_found(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[2])
    with pytest.raises(RunFolderError, match=":2: does not have its checksum"):
        read_ledger(path)


def samples(*rows: float) -> Examples:
    return Examples(np.array(rows, np.float32).reshape(-1, 1), np.zeros(len(rows), np.int64))


def test_samples_keep_their_ledger_in_another_shard(tmp_path: Path) -> None:
    """Another partition, seed or a grown file starts no new account."""
    first, other, both = (identify_samples(samples(*rows)) for rows in ((1, 2), (3, 4), (2, 3, 5)))
    for ids, run in ((first, "a"), (other, "b")):
        append_entries(ledger_file(tmp_path, keep_samples(tmp_path, ids, own=False)), [entry(run=run)])
    assert find_related(tmp_path, first, own=False) == [digest_sample_ids(first)]
    assert set(find_related(tmp_path, both, own=False)) == {digest_sample_ids(ids) for ids in (first, other, both)}
    assert identify_samples(samples(2, 1)).tolist() == first.tolist()


def test_the_boards_own_samples_count_all_that_it_received_and_the_other_way_round(tmp_path: Path) -> None:
    """If only equal samples did, the epsilon would tell whether a sample that was sent is among the own ones."""
    received, own, other = (identify_samples(samples(*rows)) for rows in ((1, 2), (3, 4), (5,)))
    sent = keep_samples(tmp_path, received, own=False)
    mine, theirs = (keep_samples(tmp_path, ids, own=True) for ids in (own, other))
    assert find_related(tmp_path, received, own=False) == [sent, *sorted((mine, theirs))]
    assert find_related(tmp_path, own, own=True) == [mine, sent]
    assert find_related(tmp_path, received, own=True) == [f"own/{sent}", sent]
    assert relate_ledgers(tmp_path)[theirs] == [sent]


def test_the_folders_of_the_ledgers_are_for_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "privacy"
    keep_samples(folder, identify_samples(samples(1)), own=True)
    assert [place.stat().st_mode & 0o777 for place in (folder, folder / "own")] == [0o700, 0o700]


def test_lost_lists_of_samples_stop_training(tmp_path: Path) -> None:
    ids = identify_samples(samples(1, 2))
    digest = keep_samples(tmp_path, ids, own=False)
    append_entries(ledger_file(tmp_path, digest), [entry()])
    (tmp_path / f"{digest}.samples").write_bytes(b"other bytes")
    with pytest.raises(RunFolderError, match=r"\.samples: is missing or damaged"):
        find_related(tmp_path, identify_samples(samples(7)), own=False)


def test_two_processes_store_the_same_samples_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = identify_samples(samples(1, 2))

    def replace_after_the_other(draft: Path, path: Path) -> None:
        monkeypatch.setattr(samples_spent, "replace_durably", replace_durably)
        monkeypatch.setattr(os, "getpid", lambda: 0)
        keep_samples(tmp_path, ids, own=False)
        replace_durably(draft, path)

    monkeypatch.setattr(samples_spent, "replace_durably", replace_after_the_other)
    digest = keep_samples(tmp_path, ids, own=False)
    assert find_related(tmp_path, ids, own=False) == [digest]
    assert [path.name for path in tmp_path.iterdir()] == [f"{digest}.samples"]


def test_the_key_is_drawn_once_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    folder = tmp_path / "privacy"
    key = open_key(folder)
    assert open_key(folder) == key
    assert open_key(tmp_path / "other") != key
    assert (folder / "key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in folder.iterdir()] == ["key"]
    (folder / "key").write_text("short")
    with pytest.raises(RunFolderError, match="must be 64 hex digits"):
        open_key(folder)


def test_entries_are_json(path: Path) -> None:
    line = path.read_text().splitlines()[0].partition(" ")[2]
    assert LedgerEntry.decode(json.loads(line)) == entry(1)


def test_a_whole_line_without_its_end_is_damage(path: Path) -> None:
    """The end is written with the line, so only a damaged disk leaves this; the entry must not be forgotten."""
    content = path.read_bytes()
    for damaged in (content[:-1] + b"x", content[:-1]):
        path.write_bytes(damaged)
        with pytest.raises(RunFolderError, match="its last line has no end, but is whole"):
            read_ledger(path)


def test_samples_in_use_without_a_ledger_are_related(tmp_path: Path) -> None:
    """Two clients that train on the same samples at the same time see each other."""
    first, both = identify_samples(samples(1, 2)), identify_samples(samples(2, 3))
    digest = keep_samples(tmp_path, first, own=False)
    assert digest in find_related(tmp_path, both, own=False)
    assert measure_ledgers(tmp_path, [digest]) == {digest: 0}


def test_another_dtype_makes_no_other_sample() -> None:
    wide = Examples(np.array([[1.0], [2.0]], np.float64), np.zeros(2, np.int64))
    assert identify_samples(wide).tolist() == identify_samples(samples(1, 2)).tolist()
