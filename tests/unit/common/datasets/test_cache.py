"""The cache of prepared data sets: the same samples as the loader's, decoded once, and never a half-finished entry."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.support.joined_parts import join_parts

from fedquilt_common.datasets import cache, prepared_files, sources
from fedquilt_common.datasets.cache import load_prepared
from fedquilt_common.datasets.parts import DatasetPart, PartedDataset
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.stored_samples import FileRows, StoredSamples, as_samples
from fedquilt_common.types import Dataset, Examples

PARTS = 5


def read_part(number: int, width: int = 3) -> DatasetPart:
    """One file of a data set of two splits."""
    x = (np.arange(4 * width, dtype=np.uint8) + 10 * number).reshape(4, width)
    if number == PARTS - 1:
        return DatasetPart("test", Examples(as_samples(x, 255.0), np.arange(4)))
    return DatasetPart(
        "train", Examples(as_samples(x, 255.0), np.arange(4) + number), np.full(4, number), f"part {number}"
    )


def wait_forever() -> DatasetPart:
    while True:
        time.sleep(1)


def parted(*readers: Callable[[], DatasetPart]) -> PartedDataset:
    return PartedDataset(
        "made", 9, readers or [functools.partial(read_part, n) for n in range(PARTS)], "made up", "classification"
    )


def whole() -> Dataset:
    return join_parts(parted())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "file.txt").write_text("1")
    return tmp_path / "made"


def fail_to_load() -> Dataset:
    raise AssertionError("the data set is prepared already")


def assert_same(found: Dataset, expected: Dataset) -> None:
    for mine, other in ((found.train, expected.train), (found.test, expected.test)):
        np.testing.assert_array_equal(mine.x, other.x)
        np.testing.assert_array_equal(mine.y, other.y)
        assert (mine.x.dtype, mine.y.dtype) == (other.x.dtype, other.y.dtype)
    assert found.subjects is not None
    assert expected.subjects is not None
    np.testing.assert_array_equal(found.subjects, expected.subjects)
    facts = [(one.name, one.classes, one.note, one.task) for one in (found, expected)]
    assert facts[0] == facts[1]


@pytest.mark.parametrize("load", [parted, whole])
def test_the_cache_gives_the_same_samples_as_the_loader(folder: Path, load: Callable[[], Dataset]) -> None:
    assert_same(load_prepared("made", folder, load), whole())
    again = load_prepared("made", folder, fail_to_load)
    assert_same(again, whole())
    assert isinstance(again.train.x, StoredSamples)
    assert isinstance(again.train.x.rows, FileRows)


def test_a_changed_file_or_loader_is_prepared_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_prepared("made", folder, parted)
    (folder / "file.txt").write_text("2")  # the same size
    with pytest.raises(AssertionError, match="prepared already"):
        load_prepared("made", folder, fail_to_load)
    (folder / "file.txt").write_text("1")
    load_prepared("made", folder, fail_to_load)
    monkeypatch.setattr(cache, "digest_loaders", lambda: "another version")
    with pytest.raises(AssertionError, match="prepared already"):
        load_prepared("made", folder, fail_to_load)


def test_a_touched_file_is_read_again_but_not_prepared_again(folder: Path) -> None:
    load_prepared("made", folder, parted)
    os.utime(folder / "file.txt", (1, 1))
    load_prepared("made", folder, fail_to_load)


def test_the_digest_is_remembered_only_for_settled_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = folder.parent / "memory"
    monkeypatch.setattr(sources, "_SETTLED_SECONDS", 1e6)
    first = sources.digest_sources(folder, memory)
    assert not memory.exists()  # a change in the same clock tick would be missed
    monkeypatch.setattr(sources, "_SETTLED_SECONDS", -1.0)
    assert sources.digest_sources(folder, memory) == first
    monkeypatch.setattr(sources, "digest_file", lambda path: pytest.fail(f"{path} is read again"))
    assert sources.digest_sources(folder, memory) == first


def test_two_entries_stay(folder: Path) -> None:
    for number in range(4):
        (folder / "file.txt").write_text(str(number))
        load_prepared("made", folder, parted)
        time.sleep(0.01)  # entries are kept by time of change
    entries = list((folder.parent / "cache").glob("made-*"))
    assert len(entries) == 2
    load_prepared("made", folder, fail_to_load)


@pytest.mark.parametrize("name", ["manifest.json", "train_x.bin", "subjects.bin"])
def test_a_damaged_entry_is_prepared_again(folder: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    load_prepared("made", folder, parted)
    (entry,) = (folder.parent / "cache").glob("made-*")
    (entry / name).write_bytes((entry / name).read_bytes()[:-1])
    assert_same(load_prepared("made", folder, parted), whole())
    assert "preparing the data set again" in caplog.text


def test_a_file_of_another_kind_is_named_and_leaves_nothing(folder: Path) -> None:
    readers = [functools.partial(read_part, 0), functools.partial(read_part, 1, 4)]
    with pytest.raises(DataUnavailableError, match=r"made: its samples are \|u1 of shape \[4\], those before them"):
        load_prepared("made", folder, lambda: parted(*readers))
    assert not list((folder.parent / "cache").glob("*made-*"))
    assert not list((folder.parent / "cache").glob(".made*"))


def test_a_data_set_without_test_samples_is_refused(folder: Path) -> None:
    with pytest.raises(DataUnavailableError, match="made: has no test samples"):
        load_prepared("made", folder, lambda: parted(functools.partial(read_part, 0)))


def test_without_a_folder_that_can_be_written(folder: Path) -> None:
    (folder.parent / "cache").write_text("a file")
    assert_same(load_prepared("made", folder, whole), whole())
    with pytest.raises(DataUnavailableError, match="set FEDQUILT_CACHE to a folder with room"):
        load_prepared("made", folder, parted)


def test_a_full_disk_leaves_no_entry(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write_nothing(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prepared_files, "write_durably", write_nothing)
    assert_same(load_prepared("made", folder, whole), whole())
    assert "No space left on device" in caplog.text
    assert not [path for path in (folder.parent / "cache").iterdir() if "made" in path.name]


KILLED = """
import sys
from pathlib import Path
from fedquilt_common.datasets.cache import load_prepared
from tests.unit.common.datasets.test_cache import parted, read_part, wait_forever
import functools
if __name__ == "__main__":
    load_prepared("made", Path(sys.argv[1]), lambda: parted(functools.partial(read_part, 0), wait_forever))
"""


def test_a_preparation_that_is_killed_is_not_finished(folder: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(folder)], start_new_session=True)
    draft = folder.parent / "cache" / ".made.new"
    try:
        while not draft.is_dir():
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert_same(load_prepared("made", folder, parted), whole())
    assert not draft.exists()


def test_one_of_several_processes_prepares(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.unit.common.datasets.test_cache import whole;"
        "from fedquilt_common.datasets.cache import load_prepared;"
        "print(len(load_prepared('made', Path(sys.argv[1]), lambda: (print('loads'), whole())[1]).train))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    outputs = [process.communicate(timeout=60)[0].split() for process in processes]
    assert sorted(len(output) for output in outputs) == [1, 1, 2]
    assert all(output[-1] == "16" for output in outputs)


def test_two_digests_of_the_same_files_at_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both write their result before either renames it."""
    barrier, rename = threading.Barrier(2), Path.replace

    def rename_together(path: Path, target: Path) -> Path:
        barrier.wait(60)
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", rename_together)
    monkeypatch.setattr(sources, "_SETTLED_SECONDS", -1.0)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: sources.digest_sources(folder, tmp_path / "memory"), range(2)))
    assert found[0] == found[1]
    assert [path.read_text() for path in (tmp_path / "memory").iterdir()] == found[:1]


def test_the_folder_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (cache.CACHE_VARIABLE, "CACHE_DIRECTORY", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/ann")
    assert cache.cache_folder() == Path("/home/ann/.cache/fedquilt")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache.cache_folder() == Path("/x/fedquilt")
    monkeypatch.setenv("CACHE_DIRECTORY", "/var/cache/fedquilt")
    assert cache.cache_folder() == Path("/var/cache/fedquilt")
    monkeypatch.setenv(cache.CACHE_VARIABLE, "/c")
    assert cache.cache_folder() == Path("/c")


def test_a_published_file_that_cannot_be_read_is_named(folder: Path) -> None:
    def load() -> Dataset:
        raise PermissionError(13, "Permission denied", str(folder / "file.txt"))

    with pytest.raises(DataUnavailableError, match=r"file.txt: Permission denied; make the file readable"):
        load_prepared("made", folder, load)
