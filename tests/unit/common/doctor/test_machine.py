"""The doctor's checks of the machine: its clock, a Pi, a Jetson, its disk and torch."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedquilt_common.doctor import machine
from fedquilt_common.doctor.check import grade
from fedquilt_common.doctor.training import check_torch
from fedquilt_common.wire.tls import NOT_BEFORE
from fedquilt_server.simulate.mosquitto import free_port

NOW = 1.8e9
"""What the clock of this machine shows to the check, in Unix time."""


@contextlib.contextmanager
def time_server(monkeypatch: pytest.MonkeyPatch, ahead: float, first: int = 0x24, stratum: int = 2) -> Iterator[int]:
    """A machine whose clock is ``ahead`` seconds ahead; no time passes."""
    monkeypatch.setattr(machine, "time", SimpleNamespace(time=lambda: NOW))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.bind(("127.0.0.1", 0))
        line.settimeout(60)

        def answer() -> None:
            with contextlib.suppress(OSError):
                _, who = line.recvfrom(512)
                now = NOW + ahead + 2_208_988_800
                stamp = struct.pack("!II", int(now), int(now % 1 * 2**32))
                line.sendto(bytes([first, stratum]) + bytes(38) + stamp, who)

        thread = threading.Thread(target=answer)
        thread.start()
        yield line.getsockname()[1]
        thread.join()


@pytest.mark.parametrize("ahead", [0.0, 7.5, -4000.0])
def test_how_far_the_clock_is_off(ahead: float, monkeypatch: pytest.MonkeyPatch) -> None:
    with time_server(monkeypatch, ahead) as port:
        skew = machine.ntp_skew("127.0.0.1", port, 60.0)
    assert skew is not None
    assert skew == pytest.approx(-ahead, abs=1e-3)


@pytest.mark.parametrize(("first", "stratum"), [(0x23, 2), (0x24, 0)])
def test_answers_that_tell_no_time(first: int, stratum: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with time_server(monkeypatch, 0.0, first, stratum) as port:
        assert machine.ntp_skew("127.0.0.1", port, 60.0) is None
    assert machine.ntp_skew("127.0.0.1", free_port(), 0.2) is None
    assert machine.ntp_skew("no-such-host.invalid") is None


@pytest.mark.parametrize(
    ("skew", "state", "words"),
    [
        (0.13, "ok", "0.1 s ahead of"), (-4.9, "ok", "4.9 s behind"), (5.1, "warn", "5.1 s ahead of"),
        (-4_503_600.4, "warn", "52 days, 3:00:00 behind"),
    ],
)  # fmt: skip
def test_what_is_said_of_a_clock(skew: float, state: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ntp_skew", lambda _: skew)
    found = machine.check_clock("lab")
    assert (found.state, found.said) == (state, f"this machine's clock is {words} that of lab")
    assert bool(found.advice) == (state != "ok")


def test_a_clock_before_all_certificates_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A board without a clock battery, whose system has no later date either."""
    monkeypatch.setattr(time, "time", lambda: NOT_BEFORE.timestamp() - 1)
    found = machine.check_clock(None)
    assert found.state == "fail"
    assert "no certificate was valid" in found.said


def test_a_clock_that_nobody_has_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_run_tool", lambda *_: "no")
    monkeypatch.setattr(machine, "SYNCHRONIZED", tmp_path / "synchronized")
    assert machine.check_clock(None).state == "warn"
    (tmp_path / "synchronized").touch()
    assert machine.check_clock(None).state == "ok"


def tool(folder: Path, name: str, prints: str, code: int = 0) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'E'\n{prints}\nE\nexit {code}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("prints", "state", "words"),
    [
        ("throttled=0x0", "ok", "fine"), ("throttled=0x50000", "warn", "voltage has been too low since the start"),
        ("throttled=0x50005", "fail", "voltage is too low now"), ("throttled=0x80008", "fail", "temperature limit now"),
        ("throttled=what", "warn", "the firmware reports"),
    ],
)  # fmt: skip
def test_a_raspberry_pi(prints: str, state: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, "vcgencmd", prints)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = machine.check_pi_power()
    assert found is not None
    assert (found.state, words in found.said) == (state, True)


def test_a_pi_without_its_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.check_pi_power() is None
    (tmp_path / "throttled").write_text("50000\n")
    monkeypatch.setattr(machine, "FIRMWARE", tmp_path / "throttled")
    found = machine.check_pi_power()
    assert found is not None
    assert found.state == "warn"


@pytest.mark.parametrize(("mode", "state"), [("MAXN", "ok"), ("MAXN_SUPER", "ok"), ("5W", "warn")])
def test_a_jetson(mode: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    tool(tmp_path, "nvpmodel", f"NV Power Mode: {mode}\n0", code=1)
    assert machine.check_jetson_power() is None
    tool(tmp_path, "nvpmodel", f"NV Power Mode: {mode}\n0")
    found = machine.check_jetson_power()
    assert found is not None
    assert (found.state, mode in found.said) == (state, True)


def test_room_and_grades(tmp_path: Path) -> None:
    found = machine.check_disk(tmp_path / "not" / "there")
    assert (found.name, "GiB free at" in found.said) == ("disk", True)
    assert not list(tmp_path.iterdir())
    assert [grade("x", value, 10, 5, "", "do").state for value in (11, 10, 9, 5, 4)] == [
        "ok", "ok", "warn", "warn", "fail",
    ]  # fmt: skip
    found = check_torch()
    assert found.state in ("ok", "warn")
    assert "fp32" in found.said


@pytest.mark.parametrize(
    ("error", "state", "said"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), "warn", "this user may not write in"),
        (OSError(errno.EROFS, "Read-only file system"), "fail", "cannot be written: Read-only file system"),
    ],
)
def test_a_state_folder_that_cannot_be_written(
    error: OSError, state: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_folder: Path) -> None:
        raise error

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    found = machine.check_disk(tmp_path)
    assert (found.name, found.state, said in found.said) == ("disk", state, True)


def test_a_state_folder_in_a_closed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(path: Path) -> bool:
        if path == tmp_path / "closed" / "state":
            raise PermissionError(errno.EACCES, "Permission denied")
        return path == tmp_path

    monkeypatch.setattr(Path, "exists", look)
    assert machine.check_disk(tmp_path / "closed" / "state").said.endswith(f"GiB free at {tmp_path}")


def test_a_state_folder_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = machine.check_disk(tmp_path / "file" / "state")
    assert (found.state, found.said) == ("fail", f"{tmp_path / 'file'} cannot be written: Not a directory")


def test_a_torch_that_cannot_be_loaded_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Jetson without one of NVIDIA's libraries raises such an error."""
    (tmp_path / "torch.py").write_text("raise ImportError('libcusparseLt.so.0: cannot open shared object file')\n")
    code = "from fedquilt_common.doctor.training import check_torch; print(check_torch())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )  # fmt: skip
    assert "state='fail', said='cannot be loaded: libcusparseLt" in done.stdout
