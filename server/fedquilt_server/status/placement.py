"""Where the agents of a simulation on a cluster run: the file ``placement.json`` in the run folder."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedquilt_common.files.durable import write_atomically
from fedquilt_common.plurals import counted
from fedquilt_server.status.units import memory

PLACEMENTS: Final = "placement.json"

PlacementState = Literal["waiting", "starting", "running", "stopped"]


class Placement(BaseModel):
    """Where one agent runs, and what is reserved for it there. Memory in bytes."""

    model_config = ConfigDict(frozen=True)

    agent: str
    clients: list[int] = Field(default_factory=list)
    state: PlacementState = "waiting"
    node: str = Field(default="", description="the node's id in the cluster; empty while the agent waits for one")
    name: str = Field(default="", description="the node's name for people")
    address: str = Field(default="", description="the node's IP address")
    cpus: float = Field(default=0.0, description="processors that are reserved for the agent")
    memory: int = Field(default=0, description="memory that is reserved for it")
    gpus: float = Field(default=0.0, description="GPUs that are reserved for it")
    moves: int = Field(default=0, description="how often it was started on another node")
    restarts: int = Field(default=0, description="how often it was started again on its node")
    since: float = Field(default=0.0, description="Unix time since which the state is as it is")

    @property
    def reserved(self) -> str:
        """What is reserved for the agent, for people; empty without."""
        parts = [
            counted(self.cpus, "processor") if self.cpus else "",
            memory(self.memory) if self.memory else "",
            counted(self.gpus, "GPU") if self.gpus else "",
        ]
        return ", ".join(filter(None, parts))

    @property
    def summary(self) -> str:
        """Node, reservation and moves in one line for people."""
        where = f"on {self.name}" if self.name else f"{self.state} for a node"
        moved = f"moved {counted(self.moves, 'time')}" if self.moves else ""
        return "; ".join(filter(None, (where, self.reserved, moved)))


class Relocation(BaseModel):
    """What has happened to the placement of an agent or a node, for people. ``at`` is a Unix time."""

    model_config = ConfigDict(frozen=True)

    at: float
    agent: str | None = None
    text: str


class PlacementRecord(BaseModel):
    """All agents, and what has happened to their placement, oldest first."""

    model_config = ConfigDict(frozen=True)

    cluster: str = Field(default="", description="the cluster's address")
    placements: list[Placement] = Field(default_factory=list)
    relocations: list[Relocation] = Field(default_factory=list)

    def save(self, folder: Path) -> None:
        """Write the file of a run folder."""
        write_atomically(folder / PLACEMENTS, self.model_dump_json(indent=2) + "\n")


class PlacementReader:
    """Reads the file of a run folder again when it has changed.

    Args:
        folder: the run folder. What its file already holds is not reported.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / PLACEMENTS
        self._changed: tuple[int, int] | None = None
        self.record: PlacementRecord | None = None
        """The last content; None: there is none."""
        self._told = len(self.record.relocations) if self.refresh() and self.record else 0

    def refresh(self) -> bool:
        """Read the file if it has changed; returns whether there is new content."""
        with contextlib.suppress(OSError, ValidationError):
            facts = self._path.stat()
            changed = facts.st_mtime_ns, facts.st_ino
            if changed != self._changed:
                self.record = PlacementRecord.model_validate_json(self._path.read_bytes())
                self._changed = changed
                return True
        return False

    def take_news(self) -> list[Relocation]:
        """Return what has happened since the last call; the file only ever grows."""
        found = self.record.relocations if self.record else []
        news, self._told = found[self._told :], len(found)
        return news
