"""Several agents that are started alike on one machine, as ``docker-compose --scale`` does: each takes a slot, and with
it clients, a name and a folder that no other has while it lives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fedquilt_common.errors import ExperimentError, FolderInUseError
from fedquilt_common.files.locking import lock_folder


@dataclass(frozen=True)
class Slot:
    """``lock`` must be kept for as long as the agent lives."""

    number: int
    clients: tuple[int, ...]
    state: Path
    lock: IO[str]


def take_slot(state: Path, clients: Sequence[int], each: int) -> Slot:
    """The first that is free of those below ``state``, with ``each`` of the clients (the last one may have fewer).

    A slot's clients and folder stay together: whoever takes it after a restart finds what they have kept. Raises
    ExperimentError where all are taken.
    """
    shares = [tuple(clients[first : first + each]) for first in range(0, len(clients), each)]
    for number, share in enumerate(shares):
        place = state / f"slot-{number}"
        try:
            return Slot(number, share, place, lock_folder(place, 0.0, ".slot"))
        except FolderInUseError:
            continue
    raise ExperimentError(
        f"--each {each}: the {len(clients)} clients are shared out among {len(shares)} agents already; start fewer, or "
        "give them more --clients"
    )
