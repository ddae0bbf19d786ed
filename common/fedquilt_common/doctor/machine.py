"""Check the machine: clock, disk, memory, torch, and the power supply of a Raspberry Pi or a Jetson."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

from fedquilt_common.doctor.check import Check, Grade, grade
from fedquilt_common.doctor.clock import SET_CLOCK, grade_skew
from fedquilt_common.doctor.pi_firmware import FIRMWARE, describe_throttling
from fedquilt_common.doctor.training import check_torch
from fedquilt_common.wire.tls import NOT_BEFORE

SYNCHRONIZED: Final = Path("/run/systemd/timesync/synchronized")
NTP_PORT: Final = 123
_NTP_EPOCH: Final = 2_208_988_800
_GIB, _MIB = float(1 << 30), float(1 << 20)
_TOOL_SECONDS: Final = 10.0


def check_machine(state: Path, broker_host: str | None, *, trains: bool = True) -> list[Check]:
    """Run all checks of the machine.

    Args:
        state: the folder that needs room on the disk.
        broker_host: the machine whose clock to compare; None: unknown.
        trains: whether it needs torch, as a site's relay does not.
    """
    checks = [
        _check_python(),
        check_clock(broker_host),
        check_disk(state),
        check_memory(),
        check_torch() if trains else None,
        check_pi_power(),
        check_jetson_power(),
    ]
    return [check for check in checks if check is not None]


def _check_python() -> Check:
    return Check("Python", "ok", ".".join(map(str, sys.version_info[:3])))


def check_clock(host: str | None) -> Check:
    """Compare the clock with the broker's machine if it answers NTP; otherwise check that systemd has set it.

    A clock before the start of all certificates fails: TLS would reject the broker's certificate.
    """
    if time.time() < NOT_BEFORE.timestamp():
        said = f"shows {time.strftime('%Y-%m-%d %H:%M:%S')}, when no certificate was valid: TLS rejects the broker"
        return Check("clock", "fail", said, f"{SET_CLOCK}, or set it with `sudo date -s`")
    skew = ntp_skew(host) if host else None
    if skew is not None:
        return grade_skew("clock", skew, str(host))
    if SYNCHRONIZED.exists() or _run_tool("timedatectl", "show", "--property=NTPSynchronized", "--value") == "yes":
        return Check("clock", "ok", "set by NTP")
    return Check(
        "clock", "warn", f"is not set by NTP; it shows {time.strftime('%Y-%m-%d %H:%M:%S')}",
        f"If that is wrong: {SET_CLOCK}, or set it with `sudo date -s`",
    )  # fmt: skip


def ntp_skew(host: str, port: int = NTP_PORT, timeout: float = 1.0) -> float | None:
    """Seconds by which this machine's clock is ahead of that of ``host`` (SNTP, RFC 4330).

    Returns:
        None if ``host`` does not answer within ``timeout`` seconds, or does not have the time.
    """
    request = b"\x23" + bytes(47)  # version 4, client
    try:
        family, kind, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as line:
            line.settimeout(timeout)
            line.connect(place)
            sent = time.time()
            line.send(request)
            answer = line.recv(512)
            received = time.time()
    except OSError:
        return None
    if len(answer) < 48 or answer[0] & 7 != 4 or answer[1] == 0:  # not from a server, or its clock is not set
        return None
    seconds, fraction = struct.unpack_from("!II", answer, 40)
    theirs: float = seconds - _NTP_EPOCH + fraction / 2**32
    return (sent + received) / 2 - theirs


def check_disk(state: Path) -> Check:
    """Check that ``state`` can be written, and the free space of the disk that holds it, or will hold it."""
    place = next(path for path in (state, *state.absolute().parents) if _exists(path))
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except PermissionError:
        advice = f"Run this command as the agent's user, or let that user have it: `sudo install -d -o USER {state}`"
        return Check("disk", "warn", f"this user may not write in {place}", advice)
    except OSError as error:
        return Check("disk", "fail", f"{place} cannot be written: {error.strerror}", "Choose another state folder")
    free = shutil.disk_usage(place).free / _GIB
    advice = "Free some space for data, models and replies"
    return grade("disk", free, 1.0, 0.2, f"{free:.1f} GiB free at {place}", advice)


def _exists(path: Path) -> bool:
    """Whether a path exists, as far as this user may see."""
    try:
        return path.exists()
    except PermissionError:
        return False


def check_memory() -> Check:
    """Check the available memory."""
    free = psutil.virtual_memory().available / _MIB
    advice = "Stop other programs, add a swap file, or let the board train sub-models (AdaptiveFL)"
    return grade("memory", free, 350, 120, f"{free:.0f} MiB available", advice)


def check_pi_power() -> Check | None:
    """Check power supply and temperature of a Raspberry Pi; None on other machines."""
    output = _run_tool("vcgencmd", "get_throttled").rpartition("=")[2] or _read_text(FIRMWARE)
    if not output:
        return None
    try:
        flags = int(output, 16)
    except ValueError:
        return Check(
            "Raspberry Pi",
            "warn",
            f"the firmware reports {output!r}, which is not a number",
            "Update the firmware: sudo apt full-upgrade",
        )
    problems = describe_throttling(flags)
    now = any(flags >> bit & 1 for bit in range(4))
    advice = "Use the official power supply and a short cable, and cool the board; it trains below its full speed"
    state: Grade = "fail" if now else "warn" if problems else "ok"
    finding = "; ".join(problems) or "power and temperature are fine"
    return Check("Raspberry Pi", state, finding, advice if problems else "")


def check_jetson_power() -> Check | None:
    """Check the power mode of a Jetson; None on other machines."""
    output = _run_tool("nvpmodel", "-q")
    mode = next((line.partition(":")[2].strip() for line in output.splitlines() if "Power Mode" in line), "")
    if not mode:
        return None
    best = mode.upper().startswith("MAXN")
    advice = "" if best else "For full speed, run `sudo nvpmodel -m 0` and use a power supply that is strong enough"
    return Check("Jetson", "ok" if best else "warn", f"the power mode is {mode}", advice)


def _run_tool(*command: str) -> str:
    """Return what a tool prints; empty if it is missing or fails."""
    program = shutil.which(command[0], path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin")
    if program is None:
        return ""
    run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run
    try:
        done = run([program, *command[1:]], capture_output=True, text=True, timeout=_TOOL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _read_text(path: Path) -> str:
    """Return a file's text; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
