"""Power rails that the kernel shows in sysfs: the sensors of hwmon, and the INA3221 monitors of a Jetson.

https://docs.kernel.org/hwmon/sysfs-interface.html and https://docs.kernel.org/hwmon/ina3221.html describe the files.
Rails can feed one another. These rules keep a rail from counting twice:

- A rail whose label names the whole board stands alone. Only ``VDD_MUX`` of a TX1 or TX2 adds to it: this rail feeds
  the carrier board, in parallel to the module.
- Without such a rail, the rails are summed, except one that feeds from another one of them (``INSIDE``).
- A chip that measures a part of the board, such as a GPU, or that measures a battery or a port, is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedquilt_client.power import PowerReading, PowerSample, read_number, read_word
from fedquilt_common.wire.messages import SENSOR

MODULE_INPUTS: Final = frozenset({"VDD_IN", "POM_5V_IN", "5V_IN"})
"""Labels of the rail that feeds a whole Jetson module."""
CARRIER_INPUTS: Final = frozenset({"VDD_MUX"})
"""Labels of the rail that feeds the carrier board of a TX1 or TX2, in parallel to the module."""
INSIDE: Final = {"VDDQ_VDD2_1V8AO": "VIN_SYS_5V0"}
"""Rails of a Jetson AGX Orin that feed from another measured rail."""
TOTAL_LABELS: Final = frozenset({"power total", "total power", "total", "system", "vin", "vdd_in", "pom_5v_in"})
"""Labels of a hwmon channel that measures the whole board, in lower case."""
SYSTEM_CHIPS: Final = frozenset({"power_meter"})
"""Chips that measure the whole machine: ACPI's power meter."""
PARTS: Final = re.compile(
    r"amdgpu|nouveau|nvidia|i915|xe|fam15h_power|zenpower|zenergy|amd_energy|nvme|drivetemp|mlx\d|"
    r"BAT|AC|ADP|ucsi|.*battery|.*psy|tcpm"
)
"""Names of chips that measure a part of the board, a battery or a port that gives power to something else."""
_INA3221: Final = "ina3221"
_CHANNELS: Final = (1, 2, 3)
_MICRO: Final = 1e-6
_MILLI: Final = 1e-3


@dataclass(frozen=True)
class PowerRail:
    """A rail whose power is the product of numbers in files.

    Attributes:
        label: its name on the board; may be empty.
        files: the files of the numbers.
        unit: watts of a product of 1.
    """

    label: str
    files: tuple[Path, ...]
    unit: float

    def watts(self) -> float | None:
        """Read the rail; None if a file cannot be read."""
        numbers = [number for file in self.files if (number := read_number(file)) is not None]
        return math.prod(numbers) * self.unit if len(numbers) == len(self.files) else None


class RailSensor:
    """The sum of some rails.

    Args:
        name: of the chip or chips, for the log.
        rails: rails that do not feed one another.
    """

    source = SENSOR

    def __init__(self, name: str, rails: Iterable[PowerRail]) -> None:
        self._rails = tuple(rails)
        labels = ", ".join(rail.label for rail in self._rails if rail.label)
        self.name = f"{name} ({labels})" if labels else name

    def read(self) -> PowerReading:
        """Read all rails; None if one cannot be read."""
        found = [watts for rail in self._rails if (watts := rail.watts()) is not None]
        return PowerSample(sum(found)) if found and len(found) == len(self._rails) else None


def find_ina3221(root: Path) -> RailSensor | None:
    """Return the power of a Jetson from its INA3221 monitors; None if there are none.

    Args:
        root: root of the file system that ``sys`` is read from.
    """
    rails = choose_inputs([*_ina3221_rails(root), *_ina3221_rails_before_jetpack_5(root)])
    return RailSensor("INA3221", rails) if rails else None


def _ina3221_rails(root: Path) -> Iterator[PowerRail]:
    """Yield the channels of the kernel's driver: millivolts times milliamperes."""
    for chip in _hwmon_chips(root):
        if read_word(chip / "name") != _INA3221:
            continue
        for number in _CHANNELS:
            label = read_word(chip / f"in{number}_label")
            files = chip / f"in{number}_input", chip / f"curr{number}_input"
            used = all(file.exists() for file in files) and read_number(chip / f"in{number}_enable") != 0
            if used and label != "NC":
                yield PowerRail(label, files, _MICRO)


def _ina3221_rails_before_jetpack_5(root: Path) -> Iterator[PowerRail]:
    """Yield the channels of NVIDIA's earlier driver: milliwatts."""
    for file in sorted(root.glob("sys/bus/i2c/drivers/ina3221*/*/iio:device*/rail_name_*")):
        number, label = file.name.rpartition("_")[2], read_word(file)
        power = file.with_name(f"in_power{number}_input")
        if label != "NC" and power.exists():
            yield PowerRail(label, (power,), _MILLI)


def choose_inputs(rails: list[PowerRail]) -> list[PowerRail]:
    """Return the rails of a Jetson that together feed the whole board, or else all that do not feed one another."""
    if any(rail.label in MODULE_INPUTS for rail in rails):
        return [rail for rail in rails if rail.label in MODULE_INPUTS | CARRIER_INPUTS]
    labels = {rail.label for rail in rails}
    return [rail for rail in rails if INSIDE.get(rail.label) not in labels]


def find_hwmon(root: Path) -> RailSensor | None:
    """Return the board's power from the other sensors of hwmon; None if none measures it.

    Args:
        root: root of the file system that ``sys`` is read from.
    """
    chips: dict[str, list[PowerRail]] = {}
    for chip in _hwmon_chips(root):
        name = read_word(chip / "name")
        if name != _INA3221 and not PARTS.match(name) and (rails := list(_power_channels(chip))):
            if total := _total(name, rails):
                return RailSensor(name, [total])
            chips[f"{name} {chip.name}"] = rails
    rails = [rail for found in chips.values() for rail in found]
    names = ", ".join(name.rpartition(" ")[0] for name in chips)
    return RailSensor(names, rails) if rails else None


def _power_channels(chip: Path) -> Iterator[PowerRail]:
    """Yield each channel once: its present power, or its average where that is all there is."""
    numbers = {int(found[1]) for file in chip.glob("power*") if (found := _POWER_FILE.fullmatch(file.name))}
    for number in sorted(numbers):
        files = [file for end in ("input", "average") if (file := chip / f"power{number}_{end}").exists()]
        yield PowerRail(read_word(chip / f"power{number}_label"), (files[0],), _MICRO)


_POWER_FILE: Final = re.compile(r"power(\d+)_(?:input|average)")


def _total(chip: str, rails: list[PowerRail]) -> PowerRail | None:
    """Return the channel that measures the whole board, if the chip has one."""
    if chip in SYSTEM_CHIPS:
        return rails[0]
    return next((rail for rail in rails if rail.label.lower() in TOTAL_LABELS), None)


def _hwmon_chips(root: Path) -> list[Path]:
    """List the chips' folders in the order of their numbers."""
    folders = [path for path in (root / "sys/class/hwmon").glob("hwmon*") if path.name[5:].isdigit()]
    return sorted(folders, key=lambda path: int(path.name[5:]))
