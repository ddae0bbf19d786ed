"""What a service reports to systemd, on a socket such as systemd's."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedquilt_common.process import watchdog
from fedquilt_common.process.watchdog import notify, report_liveness


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    place = str(tmp_path / "notify") if request.param == "path" else f"\0fedquilt-test-{tmp_path.name}"
    monkeypatch.setenv("NOTIFY_SOCKET", place.replace("\0", "@"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(place)
        line.settimeout(60)
        yield line


class Hanging:
    """The pulse of a process that hangs."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> str:
        self.looks += 1
        return "the same"

    def await_looks(self) -> None:
        """Wait until somebody has looked a few times more."""
        enough = self.looks + 5
        wait_for(lambda: self.looks >= enough)


def wait_for(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_up_alive_and_leaving(systemd: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "40000")
    turns = itertools.count()
    with report_liveness(lambda: next(turns)):
        assert [systemd.recv(100) for _ in range(4)] == [b"READY=1", *[b"WATCHDOG=1"] * 3]
    said = [systemd.recv(100)]
    while said[-1] != b"STOPPING=1":
        said.append(systemd.recv(100))
    assert set(said[:-1]) <= {b"WATCHDOG=1"}


def test_who_hangs_is_silent(systemd: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "40000")
    with report_liveness(pulse := Hanging()):
        pulse.await_looks()
    said = [systemd.recv(100) for _ in range(3)]
    assert said == [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]  # the first look is a change


def test_without_a_watchdog_there_are_no_beats(systemd: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    with report_liveness(time.monotonic):
        time.sleep(0.1)
    assert [systemd.recv(100) for _ in range(2)] == [b"READY=1", b"STOPPING=1"]


def test_a_file_stays_young_while_its_process_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive, turns = tmp_path / "alive", itertools.count()
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.setenv("FEDQUILT_ALIVE", str(alive))
    monkeypatch.setattr(watchdog, "ALIVE_SECONDS", 0.01)

    with report_liveness(lambda: next(turns)):
        wait_for(alive.exists)
        os.utime(alive, (0, 0))
        wait_for(lambda: alive.stat().st_mtime > 0)
    alive.unlink()
    with report_liveness(pulse := Hanging()):
        wait_for(alive.exists)  # the first look is a change
        os.utime(alive, (0, 0))
        pulse.await_looks()
    assert alive.stat().st_mtime == 0
    monkeypatch.setenv("FEDQUILT_ALIVE", str(tmp_path / "nowhere" / "alive"))
    with report_liveness(lambda: next(turns)):
        time.sleep(0.05)  # a warning of a thread that died would fail the test


def test_without_systemd_nothing_happens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    assert not notify("READY=1")
    with report_liveness(time.monotonic):
        pass
