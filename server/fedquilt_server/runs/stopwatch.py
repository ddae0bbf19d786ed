"""Measurements of the open round: times, and the bytes of soft labels."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from fedquilt_common.types import ClientId, Precision
from fedquilt_common.wire.codec import wire_format
from fedquilt_server.round.events import Replied, Send
from fedquilt_server.runs.journal import Traffic

Part = Literal["sending", "evaluating"]


@dataclass
class LabelBytes:
    """Bytes of soft labels in the open round, by exchange and client.

    The journal's events determine them, so they are the same after a recovery.

    Attributes:
        down: bytes of a client's task, counted once for each exchange.
        up: bytes of the payloads in which its reply arrived.
    """

    down: dict[tuple[int, ClientId], int] = field(default_factory=dict)
    up: dict[tuple[int, ClientId], int] = field(default_factory=dict)

    def count_send(self, send: Send, precision: Precision) -> None:
        """Count the tasks of an exchange that opens or reopens."""
        for client, task in send.tasks.items():
            if task.labels:
                sizes = (wire_format(str(x.dtype), precision)[1].itemsize * x.size for x in task.arrays.values())
                self.down[send.exchange, client] = sum(sizes)

    def count_reply(self, event: Replied) -> None:
        """Count a reply if it carries soft labels."""
        if (event.exchange, event.client) in self.down:
            self.up[event.exchange, event.client] = event.payload

    def by_client(self) -> dict[str, dict[str, int]]:
        """Return the bytes of each client in both directions, over all exchanges."""
        return {
            str(client): {"down": _bytes_of(self.down, client), "up": _bytes_of(self.up, client)}
            for client in sorted({client for _, client in self.down})
        }


def _bytes_of(counts: Mapping[tuple[int, ClientId], int], client: ClientId) -> int:
    return sum(size for (_, other), size in counts.items() if other == client)


@dataclass
class Stopwatch:
    """Times of the open round in seconds; ``first_chunk`` and ``last_reply`` are Unix times.

    Attributes:
        traffic: bytes at the coordinator's socket when the round began.
    """

    traffic: Traffic
    labels: LabelBytes = field(default_factory=LabelBytes)
    sending: float = 0.0
    averaging: float = 0.0
    evaluating: float = 0.0
    first_chunk: float | None = None
    last_reply: float | None = None

    @contextmanager
    def time(self, part: Part) -> Iterator[None]:
        """Add the time spent inside to ``part``."""
        started = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, part, getattr(self, part) + time.perf_counter() - started)

    @property
    def receiving(self) -> float:
        """Seconds from the first chunk of the first reply to the last reply on disk."""
        if self.first_chunk is None or self.last_reply is None:
            return 0.0
        return max(0.0, self.last_reply - self.first_chunk)
