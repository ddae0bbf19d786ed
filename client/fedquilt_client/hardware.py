"""What this board is and how it fares: memory, cores, GPU, temperature. Memory in bytes, temperature in Celsius."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import psutil

from fedquilt_common.wire.messages import ProfileMessage

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_CGROUP_USAGE = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")
_MODEL = Path("/proc/device-tree/model")


@dataclass(frozen=True)
class Vitals:
    """A reading; None where the board has no such sensor."""

    memory_used: int | None
    temperature: float | None
    power: float | None


NO_VITALS = Vitals(None, None, None)


def profile(kind: str, memory: int | None, *, private: bool = False) -> ProfileMessage:
    """This board; ``memory`` is a budget set by its owner, else what it has or its cgroup allows.

    A ``private`` one says its kind and nothing else.
    """
    if private:
        return ProfileMessage(kind=kind)
    return ProfileMessage(
        kind=kind,
        cores=_cores(),
        memory=min(filter(None, (memory, _first_number(_CGROUP_LIMITS), psutil.virtual_memory().total))),
        gpu="nvidia" if Path("/dev/nvhost-gpu").exists() or Path("/dev/nvidia0").exists() else "",
        machine=_machine(),
    )


def vitals() -> Vitals:
    """How the board fares now."""
    total = psutil.virtual_memory()
    limit = _first_number(_CGROUP_LIMITS)
    used = _first_number(_CGROUP_USAGE) if limit and limit < total.total else None
    return Vitals(used or total.total - total.available, _temperature(), _power())


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return psutil.cpu_count() or 1


def _machine() -> str:
    try:
        return _MODEL.read_text().strip("\0\n")
    except OSError:
        return platform.machine()


def _first_number(paths: tuple[str, ...]) -> int | None:
    for name in paths:
        try:
            return int(Path(name).read_text())
        except (OSError, ValueError):  # absent, or "max": no limit
            continue
    return None


def _temperature() -> float | None:
    if not hasattr(psutil, "sensors_temperatures"):  # macOS
        return None
    readings = [entry.current for entries in psutil.sensors_temperatures().values() for entry in entries]
    return max(readings, default=None)


def _power() -> float | None:
    """Watts from the first hwmon that reports them in microwatts (some Jetsons and mini PCs); None elsewhere."""
    for path in sorted(Path("/sys/class/hwmon").glob("hwmon*/power1_input")):
        microwatts = _first_number((str(path),))
        if microwatts is not None:
            return microwatts / 1e6
    return None
