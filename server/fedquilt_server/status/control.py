"""What a person can ask of a run while it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Action = Literal["pause", "continue", "stop", "drop", "readmit"]


@dataclass(frozen=True)
class ControlRequest:
    """One request.

    Attributes:
        action: pause (the open round goes on, no other one opens) or continue; stop after the open round; drop a board
            (its clients are free for others, its replies do not count) or readmit it.
        board: the agent to drop or readmit; empty for the other actions.
    """

    action: Action
    board: str = ""
