"""Chooses the source of a board's power figure: its owner's meter, else its sensors, else an estimate."""

from __future__ import annotations

from pathlib import Path

from fedquilt_client.power import EnergySample, PowerReading, PowerSample, PowerSensor
from fedquilt_client.power_counters import find_rapl
from fedquilt_client.power_estimate import make_estimate
from fedquilt_client.power_programs import Stopped, find_jtop, find_pmic
from fedquilt_client.power_rails import find_hwmon, find_ina3221
from fedquilt_common.wire.messages import ESTIMATE


class SharedSensor:
    """An equal part of a sensor's figures, for agents that share a machine: their sum is what the sensor shows.

    Args:
        sensor: of the whole machine.
        agents: agents on the machine.
    """

    source = ESTIMATE

    def __init__(self, sensor: PowerSensor, agents: int) -> None:
        self.name = f"1/{agents} of {sensor.name}"
        self._sensor, self._agents = sensor, agents

    def read(self) -> PowerReading:
        """Read the sensor, and return this agent's part."""
        match self._sensor.read():
            case PowerSample(watts):
                return PowerSample(watts / self._agents)
            case EnergySample(joules):
                return EnergySample(joules / self._agents)
        return None


def choose_sensor(
    kind: str, meter: PowerSensor | None, stopped: Stopped, root: Path = Path("/"), agents: int = 1
) -> PowerSensor:
    """Return the best source of this board's power figure.

    A sensor of the whole board comes before one that measures less of it.

    Args:
        kind: what the owner names the board.
        meter: the owner's own; None without one.
        stopped: a program that runs is killed when it returns True.
        root: root of the file system that ``proc`` and ``sys`` are read from.
        agents: agents on this machine; each gets an equal part.
    """
    sensor = _choose_whole(kind, meter, stopped, root)
    return sensor if agents == 1 else SharedSensor(sensor, agents)


def _choose_whole(kind: str, meter: PowerSensor | None, stopped: Stopped, root: Path) -> PowerSensor:
    if meter is not None:
        return meter
    for found in (find_ina3221(root), find_hwmon(root)):
        if found is not None and found.read() is not None:
            return found
    return find_jtop() or find_pmic(stopped) or find_rapl(root) or make_estimate(kind, root)
