"""The screen of `fedquilt watch`: what fits, the most important parts first. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from rich.text import Text

from fedquilt_server.status.run_event import EventLevel, RunEvent
from fedquilt_server.status.run_lines import IMPORTANCE, choose_lines, digest_history, fit, run_lines, show_loss
from fedquilt_server.status.scores import Score, choose_metric, measured_scores
from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.watch.board_lines import board_lines
from fedquilt_server.watch.curves import draw_curve
from fedquilt_server.watch.state import WatchState

CURVE_LINES: Final = 4
LEAST_WITH_CURVES: Final = 16
"""Lines of the lowest terminal that shows curves."""
EVENTS_SHARE: Final = 3
"""One in this many of the lines that are left shows an event."""
EVENTS_WITHOUT_LIMIT: Final = 10
GAP: Final = 2
_LEVELS: Final[dict[EventLevel, str]] = {"info": "", "warning": "yellow", "error": "red"}


def screen_lines(
    state: WatchState, now: float, width: int, height: int | None, *, ascii_only: bool = False
) -> list[Text]:
    """Return the lines of the screen.

    Args:
        state: the run.
        now: Unix time in seconds.
        width: characters of a line.
        height: lines at most; None: no limit, so every board is shown.
        ascii_only: whether the terminal shows ASCII characters only.
    """
    head = _head(state, now, width, len(IMPORTANCE) if height is None else height - 1, ascii_only=ascii_only)
    curves = [] if height is not None and height < LEAST_WITH_CURVES else curve_lines(
        state.snapshot, width, ascii_only=ascii_only
    )  # fmt: skip
    left = None if height is None else height - len(head) - len(curves)
    events = event_lines(state.snapshot.events, width, EVENTS_WITHOUT_LIMIT if left is None else left // EVENTS_SHARE)
    boards = board_lines(state.snapshot.boards, now, width, None if left is None else left - len(events))
    lines = [*head, *curves, *boards, *events]
    return lines if height is None else lines[:height]


def _head(state: WatchState, now: float, width: int, height: int, *, ascii_only: bool) -> list[Text]:
    """Return the trouble, the run's lines and what the source does not report."""
    snapshot = state.snapshot
    trouble = [fit(f"{state.trouble}; trying again", width, "bold yellow")] if state.trouble else []
    if not snapshot.name and not snapshot.run:
        return [*trouble, fit(f"No run yet at {state.source}", width, "bold")]
    elapsed = now - snapshot.started_at if snapshot.started_at else None
    lines = run_lines(snapshot, digest_history(snapshot.history), now, elapsed, width, ascii_only=ascii_only)
    unknown = [fit(state.unknown, width, "dim")] if state.unknown else []
    return [*trouble, *choose_lines(lines, height - len(trouble)), *unknown]


def curve_lines(snapshot: Snapshot, width: int, *, ascii_only: bool = False) -> list[Text]:
    """Return the curves of the main score and of the loss, beside each other; nothing before the second round."""
    metric = choose_metric(snapshot.history)
    shown = [
        (metric.label, measured_scores(snapshot.history, metric.name)),
        ("loss", measured_scores(snapshot.history, "loss")),
    ]
    curves = [(name, scores) for name, scores in shown if len(scores) > 1]
    if not curves:
        return []
    size = (width - GAP * (len(curves) - 1)) // len(curves)
    blocks = [_curve(name, scores, size, ascii_only=ascii_only) for name, scores in curves]
    return [Text((" " * GAP).join(f"{part:<{size}}" for part in line), no_wrap=True) for line in zip(
        *blocks, strict=True
    )]  # fmt: skip


def _curve(name: str, scores: Sequence[Score], width: int, *, ascii_only: bool) -> list[str]:
    """Return a heading with the range of the values, and the curve."""
    values = [value for _, value in scores]
    heading = fit(f"{name} {show_loss(min(values))} to {show_loss(max(values))}, now {show_loss(values[-1])}", width)
    return [heading.plain, *draw_curve(values, width, CURVE_LINES, ascii_only=ascii_only)]


def event_lines(events: Sequence[RunEvent], width: int, height: int) -> list[Text]:
    """Return a heading and the latest events, the newest one first, in the time of this machine."""
    if not events or height < 2:
        return []
    lines = [fit(f"{clock(event.at)}  {describe_event(event)}", width, _LEVELS[event.level]) for event in events]
    return [Text("events", style="dim"), *lines[: height - 1]]


def describe_event(event: RunEvent) -> str:
    """Return an event as one sentence that names its board."""
    named = event.board is None or event.board in event.text
    return event.text if named else f"{event.board}: {event.text}"


def clock(at: float) -> str:
    """Format a Unix time as the time of day on this machine; dashes for a time that no clock shows."""
    try:
        return datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return "--:--:--"
