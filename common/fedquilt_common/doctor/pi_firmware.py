"""What the firmware of a Raspberry Pi reports about voltage and throttling."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FIRMWARE: Final = Path("/sys/devices/platform/soc/soc:firmware/get_throttled")
SENSORS: Final = Path("/sys/class/hwmon")
THROTTLED: Final = {
    0: "the voltage is too low now", 1: "the clock frequency is limited now", 2: "it is throttled now",
    3: "it is at its temperature limit now", 16: "the voltage has been too low since the start",
    17: "the clock frequency has been limited since the start", 18: "it has been throttled since the start",
    19: "it has been at its temperature limit since the start",
}  # fmt: skip
"""Bits of the Raspberry Pi firmware's ``get_throttled``: those below 16 describe the present, the others the past."""


def describe_throttling(flags: int) -> list[str]:
    """List what the bits of ``get_throttled`` report; empty if all is well."""
    return [problem for bit, problem in THROTTLED.items() if flags >> bit & 1]


def read_throttled(firmware: Path = FIRMWARE, sensors: Path = SENSORS) -> int | None:
    """Return the bits of ``get_throttled``; None on other machines.

    A kernel without the file may still have the sensor ``rpi_volt``, which reports bit 0 only.
    """
    try:
        return int(firmware.read_text(), 16)
    except (OSError, ValueError):
        return _low_voltage(sensors)


def _low_voltage(sensors: Path) -> int | None:
    for name in sorted(sensors.glob("hwmon*/name")):
        try:
            if name.read_text().strip() == "rpi_volt":
                return int(name.with_name("in0_lcrit_alarm").read_text())
        except (OSError, ValueError):
            continue
    return None
