"""Estimate how long a payload takes over LoRa: the air time of its packets, the pauses and the retries.

Air time: Semtech, "SX1272/3/6/7/8 LoRa Modem Designer's Guide", AN1200.13, 2013, sections 4 and 5. The pause after each
packet, its acknowledgement, windows and timeouts follow the FedAKD thesis (section 4.4, Table 4.4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedquilt_common.errors import ExperimentError
from fedquilt_common.wire.windowed_transfer import TIMEOUT, WINDOW, expected_tries, expected_waits

LARGEST_PACKET = 255
"""The largest packet of the radio in bytes."""
_SLOW_SYMBOL = 0.016


@dataclass(frozen=True)
class Lora:
    """The settings of the radio. The defaults are those of the thesis's Table 4.4.

    Args:
        spreading: spreading factor, 7 to 12.
        bandwidth: in Hz.
        coding: 1 to 4, for the coding rates 4/5 to 4/8.
        preamble: in symbols.
        payload: payload bytes per packet.
        overhead: further bytes per packet, which hold its number.
        pause: seconds after each packet. Its acknowledgement arrives in them, or takes longer.
        loss: share of packets, and of acknowledgements, that are lost; from 0 to 0.99.
        window: packets that are sent before the sender waits for their acknowledgements.
        timeout: seconds after a window until its packets without an acknowledgement are sent again.
        acknowledgement: bytes of an acknowledgement.

    Raises:
        ExperimentError: a setting is out of range.
    """

    spreading: int = 12
    bandwidth: float = 125_000.0
    coding: int = 1
    preamble: int = 7
    payload: int = 60
    overhead: int = 4
    pause: float = 3.0
    loss: float = 0.0
    window: int = WINDOW
    timeout: float = TIMEOUT
    acknowledgement: int = 4

    def __post_init__(self) -> None:
        checks = {
            "spreading": (self.spreading, 7, 12), "bandwidth": (self.bandwidth / 1000, 7.8, 500),
            "coding": (self.coding, 1, 4), "preamble": (self.preamble, 1, 65_535),
            "payload": (self.payload, 1, LARGEST_PACKET - self.overhead), "pause": (self.pause, 0, 86_400),
            "overhead": (self.overhead, 0, LARGEST_PACKET - 1), "loss": (self.loss, 0, 0.99),
            "window": (self.window, 1, 1000), "timeout": (self.timeout, 0, 86_400),
            "acknowledgement": (self.acknowledgement, 0, LARGEST_PACKET),
        }  # fmt: skip
        for name, (value, least, most) in checks.items():
            if not least <= value <= most:
                unit = " kHz" if name == "bandwidth" else ""
                raise ExperimentError(f"--{name} {value:g}: must be from {least:g} to {most:g}{unit}")

    @property
    def symbol(self) -> float:
        """Seconds per symbol."""
        return float(2**self.spreading / self.bandwidth)

    def air_time(self, size: int) -> float:
        """Return the air time in seconds of one packet of ``size`` bytes, with header and checksum."""
        slow = 2 if self.symbol > _SLOW_SYMBOL else 0
        bits = 8 * size - 4 * self.spreading + 28 + 16
        blocks = max(0, math.ceil(bits / (4 * (self.spreading - slow))))
        return (self.preamble + 4.25 + 8 + blocks * (self.coding + 4)) * self.symbol

    def packets(self, size: int) -> int:
        """Return the number of packets for a payload of ``size`` bytes."""
        return -(-size // self.payload)

    def seconds(self, size: int) -> float:
        """Return the mean time in seconds for a payload of ``size`` bytes, with acknowledgements and retries."""
        wait = max(self.pause, self.air_time(self.acknowledgement))
        tries = expected_tries(self.loss)
        timeouts = expected_waits(self.packets(size), self.loss, self.window)
        return self.air_seconds(size) + self.packets(size) * tries * wait + timeouts * self.timeout

    def air_seconds(self, size: int) -> float:
        """Return the mean air time in seconds of the packets of a payload of ``size`` bytes, with retries."""
        whole, rest = divmod(size, self.payload)
        last = self.air_time(rest + self.overhead) if rest else 0.0
        return (whole * self.air_time(self.payload + self.overhead) + last) * expected_tries(self.loss)

    def describe(self, size: int) -> dict[str, float]:
        """Return what ``fedquilt bench link`` reports for a payload of ``size`` bytes."""
        seconds = self.seconds(size)
        return {
            "bytes": size, "packets": self.packets(size), "seconds": seconds,
            "air_seconds": self.air_seconds(size),
            "bits_per_second": 8 * size / seconds if seconds else 0.0,
        }  # fmt: skip
