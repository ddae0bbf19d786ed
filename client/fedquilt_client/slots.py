"""Slots for agents that are started with the same command on one machine, as ``docker-compose --scale`` does.

Each agent takes one slot. As long as it runs, no other agent has the slot's clients, name and folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fedquilt_common.errors import ExperimentError, FolderInUseError
from fedquilt_common.files.locking import lock_folder


@dataclass(frozen=True)
class Slot:
    """One agent's part of the clients.

    Attributes:
        number: of the slot, from 0; the agent's name ends in it.
        clients: the clients that the agent hosts.
        state: the agent's state folder.
        lock: keep it open as long as the agent runs; closing it frees the slot.
    """

    number: int
    clients: tuple[int, ...]
    state: Path
    lock: IO[str]


def take_slot(state: Path, clients: Sequence[int], each: int) -> Slot:
    """Take the first free slot.

    A slot always has the same clients and folder. An agent that takes it after a restart finds its clients' memory.

    Args:
        state: the folder with the slots' folders.
        clients: the clients of all slots together.
        each: number of clients of a slot; the last slot can have fewer.

    Raises:
        ExperimentError: all slots are taken.
    """
    parts = [tuple(clients[first : first + each]) for first in range(0, len(clients), each)]
    for number, part in enumerate(parts):
        folder = state / f"slot-{number}"
        try:
            return Slot(number, part, folder, lock_folder(folder, 0.0, ".slot"))
        except FolderInUseError:
            continue
    raise ExperimentError(
        f"--each {each}: {len(parts)} agents host the {len(clients)} clients already; start fewer agents, or add "
        "clients to --clients"
    )
