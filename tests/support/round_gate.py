"""Holds a run in the middle of a round until its test lets it go on, on a machine of any speed."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from tests.support.runs import await_round

from fedquilt_common.algorithm_api import Reply, Task
from fedquilt_common.files.durable import write_atomically

POLL: Final = 0.01


class Installable(Protocol):
    """Changes what training processes do."""

    def install(self) -> None:
        """Change those that this process forks, or one that it forks: call it in a new process."""


@dataclass(frozen=True)
class RoundGate:
    """Lets some clients work on the rounds up to one: later rounds wait for their replies, while all processes go on.

    Args:
        path: a file of its own, which holds the number of that round.
        clients: the gate holds this many of the first clients; one of them must be in every round.
    """

    path: Path
    clients: int = 1

    def __post_init__(self) -> None:
        """Hold the first round."""
        self.open_until(0)

    def open_until(self, last: int) -> None:
        """Let the clients work on the rounds up to ``last``."""
        write_atomically(self.path, str(last))

    def open(self) -> None:
        """Let the clients work on all rounds."""
        self.open_until(sys.maxsize)

    def finish_round(self, folder: Path, last: int) -> None:
        """Wait until the run in a folder has finished its rounds up to ``last``; it is held in the next one."""
        self.open_until(last)
        await_round(folder, last)

    def install(self) -> None:
        """Make the training processes wait that this process forks, or one that it forks: call it in a new process."""
        from fedquilt_client.context import TaskContext

        do = TaskContext.do

        def wait_and_do(ctx: TaskContext, task: Task) -> Reply:
            while ctx.client < self.clients and ctx.round > int(self.path.read_text()):
                time.sleep(POLL)
            return do(ctx, task)

        TaskContext.do = wait_and_do  # type: ignore[method-assign,assignment] # another name than self
