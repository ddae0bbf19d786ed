"""What happens to the agents' places, for people: in ``placement.json`` and in the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fedquilt_common.plurals import counted
from fedquilt_server.ray_cluster.library import Node
from fedquilt_server.status.placement import Placement, PlacementReader, PlacementRecord, Relocation

log = logging.getLogger(__name__)

MOST_NAMED: Final = 8


class Relocations:
    """Collects what happens and writes the file when it has changed.

    Args:
        cluster: address of the cluster.
        folder: the run folder.
        kept: what a dead node's agents keep or lose, as a sentence.
    """

    def __init__(self, cluster: str, folder: Path, kept: str) -> None:
        self._folder, self._kept = folder, kept
        before = PlacementReader(folder).record
        self._record = PlacementRecord(cluster=cluster, relocations=before.relocations if before else [])
        self._list = [*self._record.relocations]
        self._deaths = set[str]()

    def add(self, text: str, agent: str | None = None) -> None:
        """Note what has happened to an agent, or to several."""
        log.warning("%s", text if agent is None else f"{agent}: {text}")
        self._list.append(Relocation(at=time.time(), agent=agent, text=text))

    def add_death(self, node: Node, agents: Sequence[str]) -> None:
        """Note that a node has died, once."""
        if node.id in self._deaths:
            return
        self._deaths.add(node.id)
        if agents:
            count = f"Its {counted(len(agents), 'agent')} ({_list_names(agents)})"
            self.add(f"Node {node.name} of the Ray cluster died. {count} start on other nodes. {self._kept}")
        else:
            self.add(f"Node {node.name} of the Ray cluster died. It had no agents")

    def add_waiting(self, waiting: Sequence[Placement]) -> None:
        """Note that agents wait for nodes with room."""
        names = _list_names([f"{one.agent}: {one.reserved or 'no reservation'}" for one in waiting])
        what = "1 agent waits" if len(waiting) == 1 else f"{len(waiting)} agents wait"
        self.add(f"{what} for a node of the Ray cluster with room ({names}). Add a node, or free one")

    def save(self, placements: Sequence[Placement]) -> None:
        """Write the file, if anything has changed."""
        fresh = self._record.model_copy(update={"placements": list(placements), "relocations": [*self._list]})
        if fresh != self._record:
            self._record = fresh
            fresh.save(self._folder)


def _list_names(names: Sequence[str]) -> str:
    more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    return ", ".join([*names[:MOST_NAMED], *more])
