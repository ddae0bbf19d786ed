"""An estimate of a board's power from the load of its processor, for boards that measure nothing.

The power grows in a straight line with the load, from idle to all cores busy. The figures are from USB meters:
Raspberry Pi 3 and 4 from https://www.pidramble.com/wiki/benchmarks/power-consumption (``stress --cpu 4``); Raspberry
Pi 5 from https://github.com/iiab/iiab/issues/4050 (idle) and https://github.com/geerlingguy/sbc-reviews/issues/21
(busy). Those of an unknown machine are no more than an order of magnitude.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from fedquilt_client.power import EnergySample, PowerReading, read_word
from fedquilt_common.wire.messages import ESTIMATE


@dataclass(frozen=True)
class PowerModel:
    """Watts of a board that does nothing, and of one whose cores are all busy."""

    idle: float
    busy: float


_PI3B: Final = PowerModel(1.4, 3.7)
_PI3B_PLUS: Final = PowerModel(1.9, 5.1)
_PI4: Final = PowerModel(2.7, 6.4)
_PI5: Final = PowerModel(3.3, 7.9)
KINDS: Final = {"pi3b": _PI3B, "pi3b-plus": _PI3B_PLUS, "pi4": _PI4, "pi5": _PI5}
"""Models by the kind that the board's owner names."""
BOARDS: Final = {
    "Raspberry Pi 3 Model B Plus": _PI3B_PLUS, "Raspberry Pi 3 Model B": _PI3B, "Raspberry Pi 4": _PI4,
    "Raspberry Pi 5": _PI5,
}  # fmt: skip
"""Models by the beginning of the board's own name; the first one that fits counts."""
UNKNOWN_ARM: Final = _PI4
UNKNOWN_IDLE: Final = 10.0
UNKNOWN_PER_CORE: Final = 8.0
"""Watts of an unknown machine with another processor: idle, and for each busy core besides."""


def power_model(kind: str, board: str, machine: str, cores: int) -> PowerModel:
    """Return the model of a board.

    Args:
        kind: what the owner names it, such as pi4.
        board: its own name in the device tree; empty without one.
        machine: its architecture, such as aarch64.
        cores: number of its cores.
    """
    for name, model in BOARDS.items():
        if board.startswith(name):
            return model
    if kind in KINDS:
        return KINDS[kind]
    if machine.startswith(("aarch64", "arm")):
        return UNKNOWN_ARM
    return PowerModel(UNKNOWN_IDLE, UNKNOWN_IDLE + UNKNOWN_PER_CORE * cores)


class LoadEstimate:
    """The energy that a model gives for the processor's load since the first reading.

    Args:
        model: of the board.
        cpu_times: returns the seconds that the processors spent in each state.
        clock: returns monotonic seconds.
    """

    source = ESTIMATE

    def __init__(
        self,
        model: PowerModel,
        cpu_times: Callable[[], Any] = psutil.cpu_times,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._cpu_times = cpu_times
        self._clock = clock
        self._at = clock()
        self._busy, self._total = _busy_seconds(cpu_times())
        self._joules = 0.0
        self.name = f"an estimate from the processor's load, {model.idle:g} to {model.busy:g} W"

    def read(self) -> PowerReading:
        """Add the energy since the last reading."""
        now, (busy, total) = self._clock(), _busy_seconds(self._cpu_times())
        load = (busy - self._busy) / (total - self._total) if total > self._total else 0.0
        watts = self._model.idle + (self._model.busy - self._model.idle) * min(max(load, 0.0), 1.0)
        self._joules += watts * (now - self._at)
        self._at, self._busy, self._total = now, busy, total
        return EnergySample(self._joules)


def _busy_seconds(times: Any) -> tuple[float, float]:
    """Return the seconds in which the processors worked, and all their seconds."""
    fields = times._asdict()
    total = sum(fields.values()) - fields.get("guest", 0.0) - fields.get("guest_nice", 0.0)  # those are in user, too
    return total - fields["idle"] - fields.get("iowait", 0.0), total


def make_estimate(kind: str, root: Path) -> LoadEstimate:
    """Return the estimate for this machine.

    Args:
        kind: what the owner names it.
        root: root of the file system that ``proc`` is read from.
    """
    board = read_word(root / "proc/device-tree/model")
    return LoadEstimate(power_model(kind, board, platform.machine(), psutil.cpu_count() or 1))
