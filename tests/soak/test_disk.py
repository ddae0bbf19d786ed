"""Damage to files, and the small disk."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.soak.disk import DAMAGES, choose, files_of, small_disk

CONTENT = bytes(range(100))


@pytest.mark.parametrize("how", DAMAGES)
def test_each_way_changes_the_file(how: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(CONTENT)
    DAMAGES[how](file, random.Random(1))
    assert not file.exists() or file.read_bytes() != CONTENT
    assert file.exists() == (how != "delete")


def test_a_flip_changes_one_bit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(CONTENT)
    DAMAGES["flip"](file, random.Random(1))
    bits = [(a ^ b).bit_count() for a, b in zip(CONTENT, file.read_bytes(), strict=True)]
    assert sum(bits) == 1


def test_only_files_that_matter_are_chosen_and_each_kind_equally(tmp_path: Path) -> None:
    names = ["journal.sqlite", "logs/broker.log", ".lock", "pids.json", "agents/pi-0/boot"]
    names += [f"blobs/replies/{client}-1.0-{'ab' * 32}" for client in range(20)]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert files_of(tmp_path, "state") == ["agents/pi-0/boot"]
    of_run = files_of(tmp_path, "run")
    assert sorted(of_run) == sorted([names[0], *names[5:]])
    chosen = [choose(of_run, number) for number in range(100)]
    assert chosen.count("journal.sqlite") == 50
    assert len(set(chosen)) > 10
    assert choose([], 3) is None


def test_files_stay_when_the_small_disk_is_gone(tmp_path: Path) -> None:
    place = tmp_path / "run"
    with small_disk(place):
        (place / "file").write_bytes(CONTENT)
    assert not place.is_mount()
    assert (place / "file").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
