"""The board's profile and sensors: memory, cores, GPU, load, temperature. ``energy`` has its power."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from fedquilt_client.control_groups import ROOT, tightest_group
from fedquilt_common.doctor.pi_firmware import read_throttled
from fedquilt_common.process.cores import available_cores
from fedquilt_common.process.process_memory import resident_bytes
from fedquilt_common.wire.messages import ProfileMessage

_MODEL = Path("/proc/device-tree/model")
COLDEST: Final = -100.0
HOTTEST: Final = 200.0
"""Sensors that are not connected report temperatures outside of this range, in degrees Celsius."""


@dataclass(frozen=True)
class Vitals:
    """One reading of the board's sensors; None where the board has no such sensor.

    Attributes:
        memory_used: bytes in use on the board, or in the agent's control group with the least limit.
        memory_own: bytes that the agent and its training processes hold.
        load: processes that run or wait for a processor, as an average over one minute.
        temperature: of the hottest sensor, in degrees Celsius.
        throttled: bits of a Raspberry Pi's ``get_throttled``.
    """

    memory_used: int | None = None
    memory_own: int | None = None
    load: float | None = None
    temperature: float | None = None
    throttled: int | None = None


NO_VITALS = Vitals()


def board_profile(kind: str, memory: int | None, *, private: bool = False, root: Path = ROOT) -> ProfileMessage:
    """Return the profile that the agent reports for this board.

    Args:
        kind: the kind of board, as its owner names it.
        memory: the owner's limit in bytes; None: no limit. The profile has the least of this limit, the limit of the
            agent's control groups and the board's memory.
        private: report the kind only.
        root: root of the file system from which control groups are read.
    """
    if private:
        return ProfileMessage(kind=kind)
    tightest = tightest_group(root)
    return ProfileMessage(
        kind=kind,
        cores=available_cores(),
        memory=min(filter(None, (memory, tightest[0] if tightest else None, psutil.virtual_memory().total))),
        gpu="nvidia" if Path("/dev/nvhost-gpu").exists() or Path("/dev/nvidia0").exists() else "",
        machine=_machine(),
    )


def read_vitals(workers: Iterable[int] = (), root: Path = ROOT) -> Vitals:
    """Read the board's sensors.

    Args:
        workers: process ids of the training processes.
        root: as in ``board_profile``.
    """
    total = psutil.virtual_memory()
    tightest = tightest_group(root)
    used = tightest[1].usage if tightest and tightest[0] < total.total else None
    own = resident_bytes((os.getpid(), *workers))
    return Vitals(used or total.total - total.available, own, _load(), _temperature(), read_throttled())


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _machine() -> str:
    try:
        return _MODEL.read_text().strip("\0\n")
    except OSError:
        return platform.machine()


def _temperature() -> float | None:
    if not hasattr(psutil, "sensors_temperatures"):  # macOS
        return None
    celsius = [entry.current for entries in psutil.sensors_temperatures().values() for entry in entries]
    return max((value for value in celsius if COLDEST <= value <= HOTTEST), default=None)
