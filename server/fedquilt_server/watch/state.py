"""What `fedquilt watch` holds of a run at one moment, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fedquilt_server.status.snapshot import Snapshot


@dataclass(frozen=True)
class WatchState:
    """One state of a run.

    Attributes:
        snapshot: the run.
        source: where it comes from, such as the page's address.
        trouble: why there is nothing newer; empty while there is a connection.
        unknown: what the source does not report, as one sentence; empty if it reports everything.
    """

    snapshot: Snapshot
    source: str
    trouble: str = ""
    unknown: str = ""


class WatchSource(Protocol):
    """A source of states, open during its ``with`` block."""

    def __enter__(self) -> WatchSource:
        """Connect."""
        ...

    def __exit__(self, *_: object) -> None:
        """Disconnect."""

    def next(self, timeout: float) -> WatchState | None:
        """Return the next state; None if nothing has changed within ``timeout`` seconds.

        Raises:
            FedquiltError: there is nothing to watch, and trying again would not help.
        """
        ...

    @property
    def complete(self) -> bool:
        """Whether the last state holds all that the source has to report now."""
        ...
