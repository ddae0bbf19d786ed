"""The energy of a board since the agent's start, and the share of each task: integrated from a sensor's readings.

``EnergyCount`` and ``TaskShares`` compute; their caller reads the clock. ``EnergyMeter`` reads the sensor in a thread
of its own, because a reading may take a while.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fedquilt_client.power import EnergySample, PowerReading, PowerSample, PowerSensor, is_power
from fedquilt_client.power_programs import PROGRAM_SECONDS, Stopped

log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 1.0
"""Shortest pause between two readings."""
IDLE_SECONDS: Final = 5.0
"""How much longer the pause is while no task runs."""
LONGEST_PAUSE: Final = 30.0
PAUSE_PER_COST: Final = 20.0
"""The pause is this many times as long as a reading takes, so that readings take at most 5 % of the time."""
FIRST_PAUSE: Final = 0.2
"""Pause before the second reading, which gives the first power of a sensor that counts energy."""
LONGEST_GAP: Final = 60.0
"""Nothing is integrated between two power readings that are further apart, in seconds."""
FindSensor = Callable[[Stopped], PowerSensor]


@dataclass(frozen=True)
class EnergyReading:
    """What is known about the board's power.

    Attributes:
        watts: the newest power; None if the newest reading failed.
        joules: energy since the start, up to now; None before the first reading.
        source: origin of the figures; empty without any.
    """

    watts: float | None = None
    joules: float | None = None
    source: str = ""


class EnergyCount:
    """Integrates readings: the area below the line through power samples, and the differences of energy samples."""

    def __init__(self) -> None:
        self.joules: float | None = None
        self.watts: float | None = None
        self._last: tuple[float, PowerSample | EnergySample] | None = None

    def add(self, reading: PowerReading, now: float) -> None:
        """Add a reading that was taken at ``now``, in monotonic seconds."""
        self.watts = None
        if reading is None or (isinstance(reading, PowerSample) and not is_power(reading.watts)):
            return
        before, self._last = self._last, (now, reading)
        self.joules = self.joules or 0.0
        if isinstance(reading, PowerSample):
            self.watts = reading.watts
        if before is not None and now > before[0]:
            self._add_interval(before[1], reading, now - before[0])

    def _add_interval(
        self, before: PowerSample | EnergySample, after: PowerSample | EnergySample, seconds: float
    ) -> None:
        if isinstance(before, PowerSample) and isinstance(after, PowerSample):
            watts = (before.watts + after.watts) / 2 if seconds <= LONGEST_GAP else 0.0
        elif isinstance(before, EnergySample) and isinstance(after, EnergySample):
            watts = (after.joules - before.joules) / seconds
            if not is_power(watts):  # the counter was reset
                return
            self.watts = watts
        else:
            return
        self.joules = (self.joules or 0.0) + watts * seconds

    def at(self, now: float) -> float | None:
        """Return the energy up to ``now``, with the newest power since the newest reading; None before the first."""
        if self._last is None or self.joules is None:
            return None
        seconds = min(max(0.0, now - self._last[0]), LONGEST_GAP)
        return self.joules + (self.watts or 0.0) * seconds


class TaskShares:
    """Divides the board's energy equally among the tasks that run at the same time."""

    def __init__(self) -> None:
        self._shares: dict[int, float] = {}
        self._settled: float | None = None

    def __len__(self) -> int:
        """Number of tasks that run."""
        return len(self._shares)

    def begin(self, task: int, total: float | None) -> None:
        """Start a task when the board's energy is ``total``; None if that is unknown."""
        self._settle(total)
        self._shares[task] = 0.0

    def share(self, task: int, total: float | None) -> float | None:
        """Return the share of a task up to now; None if the energy is unknown or the task does not run."""
        self._settle(total)
        return self._shares.get(task) if self._settled is not None else None

    def end(self, task: int, total: float | None) -> None:
        """End a task; it may have ended before."""
        self._settle(total)
        self._shares.pop(task, None)

    def _settle(self, total: float | None) -> None:
        if total is None:
            return
        if self._settled is not None and self._shares:
            part = max(0.0, total - self._settled) / len(self._shares)
            self._shares = {task: joules + part for task, joules in self._shares.items()}
            total = max(total, self._settled)  # an earlier total may have been extrapolated too far
        self._settled = total


class EnergyMeter:
    """Reads a sensor in a thread of its own, and counts the energy of the board and of its tasks.

    Args:
        find: returns the sensor; runs in the thread, because looking for one may take a while.
        clock: returns monotonic seconds.
    """

    def __init__(self, find: FindSensor, clock: Callable[[], float] = time.monotonic) -> None:
        self._find = find
        self._clock = clock
        self._count = EnergyCount()
        self._shares = TaskShares()
        self._source = ""
        self._highest = 0.0
        self._has_read = self._has_failed = self._stopped = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="energy", daemon=True)

    def start(self) -> None:
        """Start to read the sensor."""
        self._thread.start()

    def stop(self) -> None:
        """Stop to read the sensor; a program that reads a meter is killed."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(PROGRAM_SECONDS)  # a driver that hangs must not keep the agent

    @property
    def may_know(self) -> bool:
        """Whether the energy is known, or will be if the first reading gives a figure."""
        with self._changed:
            return not self._has_read or self._count.joules is not None

    @property
    def reading(self) -> EnergyReading:
        """The newest power, and the energy up to now."""
        with self._changed:
            return EnergyReading(self._count.watts, self._total(), self._source)

    def begin(self, task: int) -> float | None:
        """Start to count the energy of a task; returns its share of the board's power, None if that is unknown."""
        with self._changed:
            self._shares.begin(task, self._total())
            self._changed.notify_all()
            return None if self._count.watts is None else self._count.watts / len(self._shares)

    def share(self, task: int) -> float | None:
        """Return the energy of a task up to now, in joules; None if it is unknown."""
        with self._changed:
            return self._shares.share(task, self._total())

    def end(self, task: int) -> None:
        """Stop to count the energy of a task."""
        with self._changed:
            self._shares.end(task, self._total())

    def _total(self) -> float | None:
        """Return the energy up to now. It never decreases, also if the last power was too high for the time since."""
        total = self._count.at(self._clock())
        if total is not None:
            total = self._highest = max(total, self._highest)
        return total

    def _work(self) -> None:
        sensor = self._find(lambda: self._stopped)
        log.info("power figure: %s", sensor.name)
        pause = FIRST_PAUSE
        while not self._stopped:
            begun = self._clock()
            reading = self._read(sensor)
            now = self._clock()
            self._add(reading, now, sensor.source)
            self._rest(max(pause, min(PAUSE_PER_COST * (now - begun), LONGEST_PAUSE)))
            pause = PAUSE_SECONDS

    def _read(self, sensor: PowerSensor) -> PowerReading:
        """Return a reading; None if the sensor raises an error; the first one is logged."""
        try:
            return sensor.read()
        except Exception as error:  # the thread must go on, whatever a foreign package raises
            if not self._has_failed:
                self._has_failed = True
                text = f"{type(error).__name__}: {error}"
                log.warning("%s cannot be read: %s. Its power is unknown until it can", sensor.name, text)
            return None

    def _add(self, reading: PowerReading, now: float, source: str) -> None:
        with self._changed:
            self._has_read = True
            self._count.add(reading, now)
            if self._count.joules is not None:
                self._source = source

    def _rest(self, seconds: float) -> None:
        """Wait; longer while no task runs, and not once the meter stops."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped, seconds)
            if seconds >= PAUSE_SECONDS:
                self._changed.wait_for(lambda: self._stopped or bool(self._shares), IDLE_SECONDS)
