"""The disk of a scenario: a small file system for the run folder, and damage to files while nothing runs."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.soak.federation import Federation, send
from tests.soak.scenario import Fault

SIZE: Final = "160m"
"""An agent refuses patches while less than 64 MiB are free."""
FILLER: Final = "filler"
UNTOUCHED: Final = re.compile(r"^logs/|^broker/|\.lock$|^pids\.json$|^boards\.csv$|^rounds\.csv$")
"""Files that hold nothing on which a restart relies."""
NAMES: Final = re.compile(r"[0-9a-f]{8,}|\d+")
DAMAGED: Final = 6
READ_ONLY_SECONDS: Final = 60.0
BUSY_SECONDS: Final = 5.0


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a small file system at a folder if this machine allows it; its files stay when it is gone."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _mount("-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder))
    except (subprocess.CalledProcessError, OSError):
        yield
        return
    try:
        yield
    finally:
        kept = folder.with_name(f"{folder.name}-kept")
        shutil.copytree(folder, kept)
        subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)
        folder.rmdir()
        kept.rename(folder)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


def fill(federation: Federation, fault: Fault) -> None:
    """Fill the disk for some seconds."""
    filler = federation.run / FILLER
    try:
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        time.sleep(fault.seconds)
    finally:
        with federation.paused:  # another fault may have made the disk read only
            filler.unlink(missing_ok=True)


def make_read_only(federation: Federation) -> str:
    """Run the command again while the disk is read only; returns what is wrong with its end.

    Raises:
        CalledProcessError: a file of the disk stays open, so it cannot become read only.
    """
    with federation.paused, resting(federation):
        _remount_read_only(federation.run)
        try:
            federation.start()
            code = federation.wait(READ_ONLY_SECONDS)
            federation.destroy()
        finally:
            _mount("-o", "remount,rw", str(federation.run))
    return "" if code == DAMAGED else f"on a read-only disk, exit code {code}: {federation.message()[-300:]}"


def _remount_read_only(folder: Path) -> None:
    """Try for some seconds: the test itself reads the journal at times."""
    end = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return _mount("-o", "remount,ro", str(folder))
        except subprocess.CalledProcessError:
            if time.monotonic() > end:
                raise
        time.sleep(0.02)


@contextlib.contextmanager
def resting(federation: Federation) -> Iterator[None]:
    """End all processes at once, as a power cut does."""
    send(federation.command.pid, signal.SIGKILL)
    for pid in federation.survivors():
        send(pid, signal.SIGKILL)
    federation.wait_gone()
    yield


def damage(federation: Federation, fault: Fault) -> str | None:
    """Damage one file while nothing runs; returns its name, or None if there is none, or the run has just ended."""
    with federation.paused, resting(federation):
        files = [] if federation.is_finished else files_of(federation.run, fault.target)
        chosen = choose(files, fault.number)
        if chosen is None:
            return None
        DAMAGES[fault.detail](federation.run / chosen, random.Random(fault.number))
        return chosen


def files_of(run: Path, target: str) -> list[str]:
    """Return the files of the run folder or of the agents' state folders, without those that do not matter."""
    names = [str(path.relative_to(run)) for path in sorted(run.rglob("*")) if path.is_file()]
    wanted = [name for name in names if name.startswith("agents/") == (target == "state")]
    return [name for name in wanted if not UNTOUCHED.search(name)]


def choose(names: list[str], number: int) -> str | None:
    """Choose a kind of file first, so that the many replies do not hide the journal."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(NAMES.sub("", name), []).append(name)
    if not kinds:
        return None
    kind = sorted(kinds)[number % len(kinds)]
    return kinds[kind][number % len(kinds[kind])]


def _flip(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)


def _truncate(path: Path, draw: random.Random) -> None:
    os.truncate(path, draw.randrange(max(1, path.stat().st_size)))


def _empty(path: Path, _draw: random.Random) -> None:
    os.truncate(path, 0)


def _delete(path: Path, _draw: random.Random) -> None:
    path.unlink()


DAMAGES: Final[Mapping[str, Callable[[Path, random.Random], None]]] = {
    "flip": _flip,
    "truncate": _truncate,
    "empty": _empty,
    "delete": _delete,
}
"""How a file is damaged: one bit flipped, cut at a random place, emptied, or deleted."""
