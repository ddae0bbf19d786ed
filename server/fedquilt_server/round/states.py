"""The states of a run and its legal transitions, as one table; ``docs/machine.md`` draws its diagram from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class RunState(Enum):
    """Where a run is: the machine is in exactly one of these states."""

    WAITING = "Waiting"
    """No exchange is open; the next round opens when enough clients are connected."""
    OPEN = "Open"
    """An exchange is open: its tasks are published, replies arrive."""
    CLOSED = "Closed"
    """A round is complete, but its checkpoint is not durable yet; the machine handles no events."""
    FINISHED = "Finished"
    """No further round opens: rounds or budget are used up, or too few clients have not declined."""


@dataclass(frozen=True)
class Transition:
    """One legal transition.

    Attributes:
        causes: names of the events, or of the call, that cause it.
        condition: when they do, in words.
        commands: names of the commands that it returns.
    """

    source: RunState
    target: RunState
    causes: tuple[str, ...]
    condition: str
    commands: tuple[str, ...]


_LIFE: Final = ("Joined", "Rejected", "Ticked", "Continued")
PROCEED: Final = "proceed"
"""The driver's call once the checkpoint of a round is durable, or ``restore``, which continues from one."""
TRANSITIONS: Final = (
    Transition(RunState.WAITING, RunState.OPEN, _LIFE, "enough clients are connected, not paused", ("Send",)),
    Transition(RunState.WAITING, RunState.CLOSED, (*_LIFE, "RoundRestarted"), "the round asks nobody", ("Checkpoint",)),
    Transition(RunState.OPEN, RunState.OPEN, ("Replied",), "replies are missing", ("Receipt",)),
    Transition(
        RunState.OPEN,
        RunState.OPEN,
        ("Replied", "Ticked"),
        "complete, the round has another exchange",
        ("Stop", "Send"),
    ),
    Transition(
        RunState.OPEN, RunState.OPEN, ("Replied", "Ticked"), "deadline without quorum, shortfall replace", ("Send",)
    ),
    Transition(RunState.OPEN, RunState.OPEN, ("Resumed", "CutOff"), "", ("Send",)),
    Transition(
        RunState.OPEN, RunState.OPEN, ("RoundRestarted",), "a reply on disk is damaged, a sum spoiled", ("Send",)
    ),
    Transition(RunState.WAITING, RunState.OPEN, ("RoundRestarted",), "the same in a recovery", ("Send",)),
    Transition(RunState.OPEN, RunState.CLOSED, ("RoundRestarted",), "the round then asks nobody", ("Checkpoint",)),
    Transition(RunState.OPEN, RunState.WAITING, ("RoundRestarted",), "without who spoiled a sum, too few others", ()),
    Transition(
        RunState.OPEN, RunState.CLOSED, ("Replied", "Ticked"), "complete, the round is over", ("Stop", "Checkpoint")
    ),
    Transition(
        RunState.OPEN,
        RunState.OPEN,
        ("Rejected",),
        "a client declines or fails: complete without it, or with others",
        ("Stop", "Send"),
    ),
    Transition(
        RunState.OPEN,
        RunState.CLOSED,
        ("Rejected",),
        "a client declines or fails: the round is over without it",
        ("Stop", "Checkpoint"),
    ),
    Transition(
        RunState.OPEN, RunState.WAITING, ("Rejected",), "all clients that were asked decline, too few others", ()
    ),
    Transition(RunState.OPEN, RunState.FINISHED, ("Rejected",), "every client has declined", ("Finish",)),
    Transition(RunState.WAITING, RunState.FINISHED, _LIFE, "every client has declined", ("Finish",)),
    Transition(RunState.CLOSED, RunState.OPEN, (PROCEED,), "a quorum is connected, not paused", ("Send",)),
    Transition(RunState.CLOSED, RunState.CLOSED, (PROCEED,), "the next round asks nobody", ("Checkpoint",)),
    Transition(RunState.CLOSED, RunState.WAITING, (PROCEED,), "too few clients are connected, or paused", ()),
    Transition(RunState.CLOSED, RunState.FINISHED, (PROCEED,), "no further round opens", ("Finish",)),
)


class IllegalTransitionError(RuntimeError):
    """The machine made a transition that its table lacks: a bug in fedquilt, not a user's mistake."""


def check_transition(source: RunState, cause: str, target: RunState) -> None:
    """Check a step of the machine against the table.

    In every state but CLOSED, an event may leave the state unchanged; it then changes only the machine's records.

    Raises:
        IllegalTransitionError: the table has no such transition.
    """
    legal = any((t.source, t.target) == (source, target) and cause in t.causes for t in TRANSITIONS)
    if not legal and (source is not target or source is RunState.CLOSED):
        raise IllegalTransitionError(
            f"{cause} led from {source.value} to {target.value}; the table has no such transition"
        )
