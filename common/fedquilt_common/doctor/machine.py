"""The machine itself: clock, disk, memory, torch, and what a Raspberry Pi and a Jetson say of their power."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

from fedquilt_common.doctor.check import Check, State, graded
from fedquilt_common.doctor.training import torch

SYNCHRONIZED: Final = Path("/run/systemd/timesync/synchronized")
FIRMWARE: Final = Path("/sys/devices/platform/soc/soc:firmware/get_throttled")
NTP_PORT: Final = 123
_NTP_EPOCH: Final = 2_208_988_800
_WARN_SKEW, _FAIL_SKEW = 2.0, 300.0
_GIB, _MIB = float(1 << 30), float(1 << 20)
_TOOL_SECONDS: Final = 10.0
THROTTLED: Final = {
    0: "the voltage is too low now", 1: "the clock is held down now", 2: "it is throttled now",
    3: "it is at its temperature limit now", 16: "the voltage was too low since the start",
    17: "the clock was held down since the start", 18: "it was throttled since the start",
    19: "it was at its temperature limit since the start",
}  # fmt: skip
"""Bits of the Raspberry Pi firmware's ``get_throttled``; those below 16 hold now."""


def machine_checks(state: Path, broker_host: str | None) -> list[Check]:
    """All of them; those of a Pi and a Jetson only where there is one."""
    found = [_python(), clock(broker_host), disk(state), memory(), torch(), power_of_pi(), power_of_jetson()]
    return [check for check in found if check is not None]


def _python() -> Check:
    return Check("Python", "ok", ".".join(map(str, sys.version_info[:3])))


def clock(host: str | None) -> Check:
    """Against the clock of the broker's machine, where it tells the time (NTP), else by what systemd says."""
    skew = ntp_skew(host) if host else None
    if skew is not None:
        advice = "Set the clock, or let it be set: `sudo timedatectl set-ntp true`"
        state = graded("clock", -abs(skew), -_WARN_SKEW, -_FAIL_SKEW, "", advice)
        return Check("clock", state.state, f"{abs(skew):.2f} s away from the clock of {host}", state.advice)
    if SYNCHRONIZED.exists() or _said("timedatectl", "show", "--property=NTPSynchronized", "--value") == "yes":
        return Check("clock", "ok", "set by NTP")
    return Check(
        "clock", "warn", f"nobody has set it; it says {time.strftime('%Y-%m-%d %H:%M:%S')}",
        "If that is wrong: a board without a network has no clock. `sudo timedatectl set-ntp true`, or `sudo date -s`",
    )  # fmt: skip


def ntp_skew(host: str, port: int = NTP_PORT, timeout: float = 1.0) -> float | None:
    """Seconds by which this machine's clock is ahead of that of ``host`` (SNTP, RFC 4330); None without an answer."""
    question = b"\x23" + bytes(47)  # version 4, client
    try:
        family, kind, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as line:
            line.settimeout(timeout)
            line.connect(place)
            sent = time.time()
            line.send(question)
            answer = line.recv(512)
            received = time.time()
    except OSError:
        return None
    if len(answer) < 48 or answer[0] & 7 != 4 or answer[1] == 0:  # not a server's, or one that does not know
        return None
    seconds, fraction = struct.unpack_from("!II", answer, 40)
    theirs: float = seconds - _NTP_EPOCH + fraction / 2**32
    return (sent + received) / 2 - theirs


def disk(state: Path) -> Check:
    place = next(path for path in (state, *state.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free / _GIB
    return graded(
        "disk", free, 1.0, 0.2, f"{free:.1f} GiB free at {place}", "Make room: data, models and replies need it"
    )


def memory() -> Check:
    free = psutil.virtual_memory().available / _MIB
    advice = "Stop what else runs, give the board a swap file, or let it train sub-models (AdaptiveFL)"
    return graded("memory", free, 350, 120, f"{free:.0f} MiB available", advice)


def power_of_pi() -> Check | None:
    """None elsewhere."""
    said = _said("vcgencmd", "get_throttled").rpartition("=")[2] or _text(FIRMWARE)
    if not said:
        return None
    try:
        flags = int(said, 16)
    except ValueError:
        return Check(
            "Raspberry Pi", "warn", f"the firmware says {said!r}", "Update the firmware: sudo apt full-upgrade"
        )
    told = [words for bit, words in THROTTLED.items() if flags >> bit & 1]
    now = any(flags >> bit & 1 for bit in range(4))
    advice = "Use the official power supply and a short cable; cool the board. Training is slower than it could be"
    state: State = "fail" if now else "warn" if told else "ok"
    return Check("Raspberry Pi", state, "; ".join(told) or "power and heat are fine", advice if told else "")


def power_of_jetson() -> Check | None:
    """None elsewhere."""
    said = _said("nvpmodel", "-q")
    mode = next((line.partition(":")[2].strip() for line in said.splitlines() if "Power Mode" in line), "")
    if not mode:
        return None
    best = mode.upper().startswith("MAXN")
    advice = "" if best else "For the full speed: `sudo nvpmodel -m 0`, and a supply that can give it"
    return Check("Jetson", "ok" if best else "warn", f"its power mode is {mode}", advice)


def _said(*command: str) -> str:
    """What a tool prints; nothing where it is not there, or fails."""
    program = shutil.which(command[0], path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin")
    if program is None:
        return ""
    run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run
    try:
        done = run([program, *command[1:]], capture_output=True, text=True, timeout=_TOOL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
