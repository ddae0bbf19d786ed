"""The properties of a simulated link between an agent and its broker, and their form as text."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fedquilt_common.errors import ExperimentError
from fedquilt_common.wire.windowed_transfer import TIMEOUT, expected_tries, expected_waits

BOUNDS: Final = {
    "rate": (0.1, 1e12), "latency": (0.0, 86_400.0), "loss": (0.0, 0.9), "mtu": (8.0, 1e9), "speedup": (1e-3, 1e6),
    "window": (1.0, 1000.0), "timeout": (0.0, 86_400.0), "period": (1.0, 1e7),
}  # fmt: skip
"""Least and most that each number of a link may be."""
CHUNK_OVERHEAD: Final = 128
"""Bytes of a packet reserved for a chunk's topic and header, which rarely take more."""
SMALLEST_LINK_PAYLOAD: Final = 16
"""Bytes of a chunk, at least, on a link with very small packets."""
SHORTEST_OPEN: Final = 0.01
"""Least seconds for which a link is open at a time."""
_WHOLE: Final = {"mtu": "a whole number of bytes", "window": "a whole number of packets"}
_FORM: Final = "rate=50,latency=1.5,loss=0.2,mtu=222,speedup=100"
_OPEN_FORM: Final = "open=0:30/90:120,period=600"

OpenTimes = tuple[tuple[float, float], ...]
"""Start and end of each time in which a link is open, in seconds from the start of a period; ascending."""


@dataclass(frozen=True)
class Link:
    """The properties of a link.

    Attributes:
        rate: bytes a second in each direction; None: unlimited.
        latency: seconds from sending to arrival.
        loss: fraction of the packets that do not arrive, 0 to 0.9.
        mtu: bytes of the largest packet; None: unlimited.
        speedup: seconds on the link for each second at the desk.
        window: packets that are sent before their acknowledgements are awaited. None: the link acknowledges nothing,
            and loses chunks.
        timeout: seconds after which packets without an acknowledgement are sent again.
        open: the times of each period in which the link carries anything; empty: always.
        period: seconds after which ``open`` repeats; None without ``open``.
    """

    rate: float | None = None
    latency: float = 0.0
    loss: float = 0.0
    mtu: int | None = None
    speedup: float = 1.0
    window: int | None = None
    timeout: float = TIMEOUT
    open: OpenTimes = ()
    period: float | None = None

    def packets(self, size: int) -> int:
        """Number of packets of a message of ``size`` bytes."""
        return max(1, -(-size // self.mtu)) if self.mtu else 1

    def seconds(self, size: int) -> float:
        """Seconds at the desk for which a message of ``size`` bytes occupies the link."""
        return size / self.rate / self.speedup if self.rate else 0.0

    def mean_seconds(self, size: int) -> float:
        """Seconds at the desk for which ``size`` bytes occupy the link on average, losses and closed times included."""
        closed = self.period / self._open_seconds if self.open and self.period else 1.0
        if self.window is None:
            return closed * self.seconds(size) / (1 - self.loss)
        waits = expected_waits(self.packets(size), self.loss, self.window) * self.timeout / self.speedup
        return closed * (self.seconds(size) * expected_tries(self.loss) + waits)

    @property
    def mean_latency(self) -> float:
        """Seconds at the desk from sending to arrival on average; losses cost it again, unless windows wait for it."""
        return self.latency / self.speedup / (1.0 if self.window else 1 - self.loss)

    @property
    def payload(self) -> int | None:
        """Bytes of a chunk that fits a packet; None: unlimited, even where the link itself repeats lost packets."""
        if self.mtu is None or self.window is not None:
            return None
        return max(SMALLEST_LINK_PAYLOAD, self.mtu - CHUNK_OVERHEAD)

    def end_of(self, start: float, seconds: float) -> float:
        """Return when a link that is free from ``start`` has been open for ``seconds`` seconds.

        Args:
            start: in seconds at the desk since a period began.
            seconds: at the desk, 0 or more.
        """
        if not self.open or not self.period:
            return start + seconds
        periods, rest = divmod(seconds * self.speedup, self._open_seconds)
        if periods and not rest:  # it ends with an open time, and does not wait for the next one
            periods, rest = periods - 1, self._open_seconds
        elapsed = self._walk(start * self.speedup % self.period, rest, self.period)
        return start + (periods * self.period + elapsed) / self.speedup

    @property
    def _open_seconds(self) -> float:
        """Seconds of a period in which the link is open."""
        return sum(end - start for start, end in self.open)

    def _walk(self, phase: float, wanted: float, period: float) -> float:
        """Return the seconds on the link from ``phase`` until it has been open for ``wanted``, at most a period's."""
        last = phase
        for first, last in self._times_after(phase, period):
            if last - first >= wanted:
                return first + wanted - phase
            wanted -= last - first
        return last - phase  # rounding alone is left of ``wanted``

    def _times_after(self, phase: float, period: float) -> Iterator[tuple[float, float]]:
        """Yield what is left after ``phase`` of the open times of two periods, in seconds on the link."""
        for base, (start, end) in itertools.product((0.0, period), self.open):
            if base + end > phase:
                yield max(phase, base + start), base + end

    def encode(self) -> str:
        """Encode as text for ``parse_link``."""
        fields: dict[str, float | None] = {
            "rate": self.rate, "latency": self.latency, "loss": self.loss, "mtu": self.mtu, "speedup": self.speedup,
            "window": self.window, "timeout": self.timeout if self.window else None, "period": self.period,
        }  # fmt: skip
        numbers = [f"{name}={value!r}" for name, value in fields.items() if value is not None]
        times = "/".join(f"{start!r}:{end!r}" for start, end in self.open)
        return ",".join([*numbers, *([f"open={times}"] if times else [])])


def open_problem(times: OpenTimes, period: float | None) -> str:
    """Return what is wrong with the open times of a link and their period; empty if nothing is."""
    if bool(times) != (period is not None):
        return "open and period need each other; give both, or none"
    if any(not (start >= 0 and end - start >= SHORTEST_OPEN) for start, end in times):
        return f"each time must have a start of 0 or more, and an end at least {SHORTEST_OPEN:g} seconds later"
    if any(before[1] > after[0] for before, after in itertools.pairwise(times)):
        return "the times must be in order and must not overlap"
    if times and period is not None and times[-1][1] > period:
        return f"the last time ends at {times[-1][1]:g}, after the period of {period:g} seconds"
    return ""


FROM_EXPERIMENT: Final = "experiment"
"""The value of an agent's ``--link`` that takes the link from the experiment."""


def parse_link(text: str) -> Link:
    """Parse a link such as ``rate=50,latency=1.5,loss=0.2,mtu=222,speedup=100``.

    A number that ``text`` leaves out has the default of ``Link``.

    Raises:
        ExperimentError: ``text`` has another form, or a number is out of bounds.
    """
    numbers, times = dict[str, float](), OpenTimes()
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if name == "open" and equals and not times:
            times = _parse_times(value, text)
            continue
        if not equals or name not in BOUNDS or name in numbers:
            raise ExperimentError(f"link {text!r}: write it as {_FORM}")
        numbers[name] = _parse_number(name, value, text)
    if problem := open_problem(times, numbers.get("period")):
        raise ExperimentError(f"link {text!r}: {problem}, such as {_OPEN_FORM}")
    whole = {name: int(numbers.pop(name)) for name in _WHOLE if name in numbers}
    return Link(**numbers, **whole, open=times)  # type: ignore[arg-type]  # mypy knows no names of a dictionary


def _parse_number(name: str, value: str, text: str) -> float:
    number = math.nan
    with contextlib.suppress(ValueError):
        number = float(value)
    least, most = BOUNDS[name]
    if not least <= number <= most:
        raise ExperimentError(f"link {text!r}: {name} must be a number from {least:g} to {most:g}")
    if name in _WHOLE and number != int(number):
        raise ExperimentError(f"link {text!r}: {name} must be {_WHOLE[name]}")
    return number


def _parse_times(value: str, text: str) -> OpenTimes:
    try:
        pairs = [tuple(map(float, part.split(":"))) for part in value.split("/")]
        return tuple((start, end) for start, end in pairs)
    except ValueError:
        raise ExperimentError(f"link {text!r}: write the open times as {_OPEN_FORM}") from None
