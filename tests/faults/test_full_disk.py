"""The disk of the run folder is full or read-only at any moment: an error names the file, and the run resumes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fedquilt_common.errors import FedquiltError, RunFolderError

if TYPE_CHECKING:
    from tests.faults.conftest import Stage

MakeStage = Callable[..., "Stage"]
DISK = 2 << 20


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """Shorten the coordinator's wait for the next message: in these tests nobody sends while it waits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedquilt_server.coordinator.coordinator.STEP_SECONDS", 0.001)
        yield


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 2 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a file system, and not in every container")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def run(stage: Stage, turn: Callable[[], bool]) -> RunFolderError | None:
    """Start the coordinator, as the command line does; returns the error with which it ends."""
    end = time.monotonic() + 60

    def limited() -> bool:
        assert time.monotonic() < end, "the run hangs"
        return turn()

    try:
        coordinator = stage.coordinator()
        with stage.closing(coordinator):
            coordinator.execute(limited)
    except FedquiltError as error:
        return error if isinstance(error, RunFolderError) else pytest.fail(f"another error: {error}")
    return None


def is_named(error: RunFolderError, disk: Path) -> bool:
    text = str(error)
    return str(disk) in text and "ree disk space" in text and "run the same command again to resume" in text


def has_begun(stage: Stage) -> bool:
    return any(player.round is not None for player in stage.players.values())


def fill(disk: Path, free: int) -> None:
    """Leave so many bytes free."""
    with (disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(bytes(4096))
    os.truncate(disk / "ballast", max(0, (disk / "ballast").stat().st_size - free))


@pytest.mark.parametrize("from_start", [True, False])
def test_a_disk_that_fills_up(from_start: bool, disk: Path, make_stage: MakeStage, undisturbed: str) -> None:
    """With each amount of free space, up to one that is enough, the run ends with an error and resumes."""
    failed, free = 0, 0
    while True:
        stage = make_stage(disk.parent / f"stage-{free}")
        stage.folder = disk / "run"
        stage.arrive()
        if from_start:
            fill(disk, free)

        def turn(stage: Stage = stage, free: int = free) -> bool:
            stage.offer()
            if not (disk / "ballast").exists() and has_begun(stage):
                fill(disk, free)
            return False

        error = run(stage, turn)
        (disk / "ballast").unlink()
        if error is None:
            break
        failed += 1
        assert is_named(error, disk), error
        assert run(stage, stage.offer) is None, free
        assert stage.sha256 == undisturbed, free
        subprocess.run(["rm", "-r", str(stage.folder)], check=True)
        free += 8192
    assert stage.sha256 == undisturbed
    assert failed > 3


@pytest.mark.parametrize("replies", [False, True])
def test_a_read_only_disk(replies: bool, disk: Path, make_stage: MakeStage, undisturbed: str) -> None:
    """A new run, and one that has stopped with replies on disk."""
    stage = make_stage(disk.parent / "stage")
    stage.folder = disk / "run"
    stage.arrive()
    if replies:
        assert run(stage, lambda: stage.offer() or has_begun(stage)) is None
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    error = run(stage, stage.offer)
    assert error is not None
    assert is_named(error, disk), error
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    assert run(stage, stage.offer) is None
    assert stage.sha256 == undisturbed
