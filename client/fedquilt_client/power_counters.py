"""Energy counters of Intel's and AMD's processors (RAPL), which the kernel shows in sysfs.

https://docs.kernel.org/power/powercap/powercap.html describes the files. The counters cover the processor and the
memory, not the rest of the machine. A package contains its sub-domains ``core`` and ``uncore``, so only packages and
``dram``, which no package contains, are summed. ``psys`` is left out: what it covers differs between machines.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedquilt_client.power import EnergySample, PowerReading, read_number, read_word
from fedquilt_common.wire.messages import SENSOR

log = logging.getLogger(__name__)

_ZONE: Final = re.compile(r"intel-rapl:\d+(:\d+)?")


@dataclass
class _RaplZone:
    """One counter. It restarts at 0 above ``span``; all numbers are microjoules."""

    file: Path
    span: float
    last: float
    total: float = 0.0

    def advance(self) -> bool:
        """Add what was used since the last reading; returns False if the counter cannot be read."""
        now = read_number(self.file)
        if now is None:
            return False
        self.total += now - self.last if now >= self.last else now - self.last + self.span
        self.last = now
        return True


class RaplSensor:
    """The sum of the processor's energy counters.

    Args:
        zones: counters that do not contain one another.
    """

    source = SENSOR

    def __init__(self, zones: list[_RaplZone]) -> None:
        self._zones = zones
        self.name = f"RAPL ({', '.join(read_word(zone.file.with_name('name')) for zone in zones)})"

    def read(self) -> PowerReading:
        """Read all counters; None if one cannot be read."""
        read = [zone.advance() for zone in self._zones]
        return EnergySample(sum(zone.total for zone in self._zones) / 1e6) if all(read) else None


def find_rapl(root: Path) -> RaplSensor | None:
    """Return the processor's energy; None if it is not measured or this user may not read it.

    Args:
        root: root of the file system that ``sys`` is read from.
    """
    files = list(_counters(root))
    zones = [_RaplZone(file, span, last) for file, span in files if (last := read_number(file)) is not None]
    if files and len(zones) < len(files):
        log.info("the processor counts its energy, but %s is not readable: see 'Energy' in docs/deploy.md", files[0][0])
        return None
    return RaplSensor(zones) if zones else None


def _counters(root: Path) -> Iterator[tuple[Path, float]]:
    """Yield each counter that no other one contains, and its range."""
    for zone in sorted((root / "sys/class/powercap").glob("intel-rapl:*")):
        found, name = _ZONE.fullmatch(zone.name), read_word(zone / "name")
        if found and (name == "dram" or (found[1] is None and name.startswith("package"))):
            yield zone / "energy_uj", read_number(zone / "max_energy_range_uj") or 0.0
