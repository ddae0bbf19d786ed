"""Publishes to nobody: a replay writes the patches and the manifest exactly as a coordinator does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.wire.topics import Topics
from fedquilt_server.coordinator.downlink import Downlink
from fedquilt_server.runs.blob_store import BlobStore
from fedquilt_server.runs.journal import Journal

_LARGEST: Final = 16 * 1024 * 1024


class SilentTransport:
    """A ``Transport`` without a broker: it drops what is published, and nothing arrives."""

    max_payload = _LARGEST
    bytes_sent = 0
    bytes_received = 0

    def connect(self) -> None:
        """Do nothing."""

    def publish(self, topic: str, payload: bytes, *, header: bytes = b"", retain: bool = False) -> bool:
        return True

    def drain(self, timeout: float) -> bool:
        return True

    def subscribe(self, filters: Iterable[str]) -> None:
        """Do nothing."""

    def unsubscribe(self, filters: Iterable[str]) -> None:
        """Do nothing."""

    def ignore(self, ignores: Callable[[str], bool]) -> None:
        """Do nothing."""

    def close(self, last: tuple[str, bytes] | None = None, *, end_session: bool = False) -> None:
        """Do nothing."""


@contextmanager
def open_downlink(experiment: Experiment, store: BlobStore, journal: Path) -> Iterator[Downlink]:
    """Open a downlink that writes what it publishes to ``store``.

    Args:
        experiment: gives the precision on the wire.
        store: the blobs of the replay.
        journal: a copy of the run's journal; the slots are noted in it.
    """
    with closing(Journal(journal)) as slots:
        yield Downlink(SilentTransport(), Topics("replay"), store, slots, experiment.wire.down, _LARGEST)
