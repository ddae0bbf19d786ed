"""How long a payload takes on LoRa: the air time of a packet, and of as many as a payload needs.

Semtech, "SX1272/3/6/7/8 LoRa Modem Designer's Guide", AN1200.13, 2013, sections 4 and 5. What goes beside the air time
is the FedAKD thesis's: a pause after each packet, and packets that are lost are sent again (section 4.4, Table 4.4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedquilt_common.errors import ExperimentError

LARGEST_PACKET = 255
"""Bytes that the radio takes at a time."""
_SLOW_SYMBOL = 0.016


@dataclass(frozen=True)
class Lora:
    """The settings of the radio; the defaults are those of the thesis's Table 4.4.

    ``bandwidth`` in Hz; ``coding``: 1 to 4 for rates 4/5 to 4/8; ``preamble`` in symbols; ``payload``: bytes of a
    packet that are of use, ``overhead``: those that number it; ``pause`` in seconds after each packet; ``loss`` of
    packets.
    """

    spreading: int = 12
    bandwidth: float = 125_000.0
    coding: int = 1
    preamble: int = 7
    payload: int = 60
    overhead: int = 4
    pause: float = 3.0
    loss: float = 0.0

    def __post_init__(self) -> None:
        checks = {
            "spreading": (self.spreading, 7, 12), "bandwidth": (self.bandwidth / 1000, 7.8, 500),
            "coding": (self.coding, 1, 4), "preamble": (self.preamble, 1, 65_535),
            "payload": (self.payload, 1, LARGEST_PACKET - self.overhead), "pause": (self.pause, 0, 86_400),
            "overhead": (self.overhead, 0, LARGEST_PACKET - 1), "loss": (self.loss, 0, 0.99),
        }  # fmt: skip
        for name, (value, least, most) in checks.items():
            if not least <= value <= most:
                unit = " kHz" if name == "bandwidth" else ""
                raise ExperimentError(f"--{name} {value:g}: must be from {least:g} to {most:g}{unit}")

    @property
    def symbol(self) -> float:
        """Seconds of a symbol."""
        return float(2**self.spreading / self.bandwidth)

    def air_time(self, size: int) -> float:
        """Seconds for which a packet of ``size`` bytes is on the air, with a header and a checksum."""
        slow = 2 if self.symbol > _SLOW_SYMBOL else 0
        bits = 8 * size - 4 * self.spreading + 28 + 16
        blocks = max(0, math.ceil(bits / (4 * (self.spreading - slow))))
        return (self.preamble + 4.25 + 8 + blocks * (self.coding + 4)) * self.symbol

    def packets(self, size: int) -> int:
        """In how many a payload of ``size`` bytes goes."""
        return -(-size // self.payload)

    def seconds(self, size: int) -> float:
        """From the first packet of a payload of ``size`` bytes to the end of the last, with those sent again, on
        average."""
        return self.air_seconds(size) + self.packets(size) * self.pause / (1 - self.loss)

    def air_seconds(self, size: int) -> float:
        """Of these, those on the air."""
        whole, rest = divmod(size, self.payload)
        last = self.air_time(rest + self.overhead) if rest else 0.0
        return (whole * self.air_time(self.payload + self.overhead) + last) / (1 - self.loss)

    def described(self, size: int) -> dict[str, float]:
        """What ``fedquilt bench link`` says of a payload."""
        seconds = self.seconds(size)
        return {
            "bytes": size, "packets": self.packets(size), "seconds": seconds,
            "air_seconds": self.air_seconds(size),
            "bits_per_second": 8 * size / seconds if seconds else 0.0,
        }  # fmt: skip
