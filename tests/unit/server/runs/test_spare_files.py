"""Spare files: a few large ones wait, the others are deleted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedquilt_server.runs import spare_files
from fedquilt_server.runs.spare_files import SpareFiles

LARGE = 1 << 20


def make(folder: Path, count: int, size: int = LARGE) -> list[Path]:
    paths = [folder / f"{size}-{number}" for number in range(count)]
    for path in paths:
        path.write_bytes(bytes(size))
    return paths


def test_a_few_large_files_wait(tmp_path: Path) -> None:
    spares = SpareFiles(tmp_path)
    spares.retire([*make(tmp_path, 20), *make(tmp_path, 2, LARGE - 1)])
    waiting = set(tmp_path.iterdir())
    assert len(waiting) == 16
    assert {path.stat().st_size for path in waiting} == {LARGE}
    assert {spares.take(LARGE) for _ in range(16)} == waiting
    assert spares.take(LARGE) is None


def test_the_closest_size_is_taken(tmp_path: Path) -> None:
    spares = SpareFiles(tmp_path)
    spares.retire([*make(tmp_path, 1), *make(tmp_path, 1, 3 * LARGE), *make(tmp_path, 1, 9 * LARGE)])
    taken = [spares.take(size) for size in (4 * LARGE, 4 * LARGE, 4 * LARGE)]
    assert [path.stat().st_size // LARGE for path in taken if path is not None] == [3, 1, 9]


def test_without_knowledge_of_what_is_in_use_all_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_files, "_PROCESS", tmp_path / "none")
    SpareFiles(tmp_path).retire(make(tmp_path, 2))
    assert not list(tmp_path.iterdir())


def test_an_open_file_and_a_mapped_one_keep_their_bytes(tmp_path: Path) -> None:
    spares, (read, mapped, free) = SpareFiles(tmp_path), make(tmp_path, 3)
    numbers = np.memmap(mapped, mode="r")
    with read.open("rb") as file:
        spares.retire([read, mapped, free])
        (spare,) = tmp_path.iterdir()
        assert spares.take(LARGE) == spare
        spare.write_bytes(b"\xff" * LARGE)
        assert file.read() == bytes(LARGE)
    assert not numbers.any()


def test_clearing_deletes_them(tmp_path: Path) -> None:
    spares = SpareFiles(tmp_path)
    spares.retire(make(tmp_path, 2))
    spares.clear()
    assert not list(tmp_path.iterdir())
    assert spares.take(LARGE) is None
