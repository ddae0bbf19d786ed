"""What a narrow and lossy link is like: its numbers, and how they are written."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final

from fedquilt_common.errors import ExperimentError


@dataclass(frozen=True)
class Link:
    """``rate`` in bytes a second, None without bound; ``latency`` in seconds; ``loss`` of packets from 0 to 1;
    ``mtu`` in bytes, None without bound. Time passes ``speedup`` times as fast as it does there."""

    rate: float | None = None
    latency: float = 0.0
    loss: float = 0.0
    mtu: int | None = None
    speedup: float = 1.0

    def packets(self, size: int) -> int:
        """In how many a message of ``size`` bytes goes."""
        return max(1, -(-size // self.mtu)) if self.mtu else 1

    def seconds(self, size: int) -> float:
        """For which it keeps the line busy, at the desk."""
        return size / self.rate / self.speedup if self.rate else 0.0

    @property
    def payload(self) -> int | None:
        """Bytes of a chunk that fits a packet; None where packets have no bound."""
        return None if self.mtu is None else max(SMALLEST_PAYLOAD, self.mtu - ROOM)

    def encode(self) -> str:
        """As ``parse_link`` reads it."""
        fields = {
            "rate": self.rate,
            "latency": self.latency,
            "loss": self.loss,
            "mtu": self.mtu,
            "speedup": self.speedup,
        }
        return ",".join(f"{name}={value!r}" for name, value in fields.items() if value is not None)


def parse_link(text: str) -> Link:
    """``rate=50,latency=1.5,loss=0.2,mtu=222,speedup=100`` -> Link; what is not said is without bound, or 0.

    Raises ExperimentError for anything else.
    """
    given: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name not in BOUNDS or name in given:
            raise ExperimentError(f"link {text!r}: write it as rate=50,latency=1.5,loss=0.2,mtu=222,speedup=100")
        with contextlib.suppress(ValueError):
            given[name] = float(value)
        least, most = BOUNDS[name]
        if not least <= given.get(name, float("nan")) <= most:
            raise ExperimentError(f"link {text!r}: {name} must be a number from {least:g} to {most:g}")
    mtu = given.pop("mtu", None)
    if mtu is not None and mtu != int(mtu):
        raise ExperimentError(f"link {text!r}: mtu must be a whole number of bytes")
    return Link(**given, mtu=None if mtu is None else int(mtu))


ROOM: Final = 128
"""Bytes of a packet that topic and header of a chunk take, at most as a rule."""
SMALLEST_PAYLOAD: Final = 16
BOUNDS: Final = {
    "rate": (0.1, 1e12), "latency": (0.0, 86_400.0), "loss": (0.0, 0.9), "mtu": (8.0, 1e9), "speedup": (1e-3, 1e6),
}  # fmt: skip
