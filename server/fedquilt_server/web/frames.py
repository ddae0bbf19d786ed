"""Frames of the page: what it shows at one moment, and the events that lead from one frame to the next.

Each frame is made once and each step between two frames is encoded once, for all readers.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Final

from sse_starlette import ServerSentEvent

from fedquilt_common.learning_tasks.metrics import Metric
from fedquilt_server.status.problems import sort_worst_first
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.run_event import RunEvent
from fedquilt_server.status.snapshot import ENDED, BoardStatus, Snapshot, StatusStore
from fedquilt_server.web import view
from fedquilt_server.web.bars import Timeline, make_timeline, measure_height
from fedquilt_server.web.cells import BoardCells, format_cells
from fedquilt_server.web.curves import Curves, count_common, encode_json, make_curves
from fedquilt_server.web.fragments import BOARDS_SHOWN, EVENTS_SHOWN, ROUNDS_SHOWN, Renderer
from fedquilt_server.web.quilt import coverage_rows, has_sub_models

FRAME_SECONDS: Final = 0.25
"""Time between two frames. Changes within this time are sent as one."""
FRAMES_KEPT: Final = 16
"""Frames that a page that has just been loaded may still name."""
RETRY_MILLISECONDS: Final = 1000
_BARE: Final = ".bare"


@dataclass(frozen=True, eq=False)
class Frame:
    """What the page shows at one moment.

    Attributes:
        id: unique, even after a restart of the coordinator.
        parts: HTML of the small parts.
        boards: the cells of each board that is listed.
        quilt: grows whenever the coverage changes.
    """

    id: str
    snapshot: Snapshot
    summary: view.Summary
    columns: view.RoundColumns
    parts: Mapping[str, str]
    boards: Mapping[str, BoardCells]
    curves: Curves
    timeline: Timeline
    quilt: int

    @cached_property
    def bare(self) -> Frame:
        """The frame as a page shows it that has just been loaded: it has no timeline yet."""
        return replace(self, timeline=Timeline())


class FrameSource:
    """Makes the frames from the newest snapshot.

    Args:
        store: where the coordinator writes the snapshots.
        has_folder: whether the run has a folder: the page links to its files, and compares it with the runs beside it.
        in_library: whether the page is one of many, below a list of runs.
    """

    def __init__(self, store: StatusStore, *, has_folder: bool = False, in_library: bool = False) -> None:
        self._store = store
        self._has_folder = has_folder
        self._in_library = in_library
        self._renderer = Renderer()
        self._boot = secrets.token_hex(4)
        self._made = 0
        self._made_at = -FRAME_SECONDS
        self._frames: deque[Frame] = deque(maxlen=FRAMES_KEPT)
        self.encode = lru_cache(maxsize=FRAMES_KEPT)(self._encode)

    def current(self, *, newest: bool = False) -> Frame:
        """Return the latest frame. It is at most ``FRAME_SECONDS`` old; or not at all, with ``newest``."""
        last = self._frames[-1] if self._frames else None
        due = newest or time.monotonic() - self._made_at >= FRAME_SECONDS
        if last is None or (due and self._store.current is not last.snapshot):
            last = self._make(self._store.current, last)
            self._frames.append(last)
            self._made_at = time.monotonic()
        return last

    def find(self, id: str) -> Frame | None:
        """Return a frame of the last seconds; None if there is none with that id.

        Args:
            id: of the frame that a page shows; with ``_BARE``, the page has just been loaded.
        """
        frame = next((one for one in self._frames if one.id == id.removesuffix(_BARE)), None)
        return frame.bare if frame is not None and id.endswith(_BARE) else frame

    def page(self, *, control: bool = False) -> str:
        """Render the whole page; ``control``: with the forms that control the run."""
        frame = self.current(newest=True)
        s = frame.snapshot
        context = {
            "root": "../../" if self._in_library else "",
            "in_library": self._in_library,
            "now": time.time(),
            "has_folder": self._has_folder,
            "control": control and s.phase not in ENDED,
            "control_boards": [board.agent for board in s.boards[:BOARDS_SHOWN]],
            "parts": frame.parts,
            "frame": frame.id + _BARE,
            "s": s,
            "curves": frame.curves.text,
            "has_joules": frame.curves.knows("joules"),
            "timeline_height": measure_height(frame.timeline),
            "rows": s.history[: -ROUNDS_SHOWN - 1 : -1],
            "columns": frame.columns,
            "boards": frame.boards,
            "board_count": len(s.boards),
            "events": s.events[:EVENTS_SHOWN],
            "coverage": coverage_rows(s.coverage),
            "sub_models": has_sub_models(s.coverage),
            "replies": view.latest_replies(s.reply_rows),
        }
        return self._renderer.page(context)

    def _make(self, snapshot: Snapshot, last: Frame | None) -> Frame:
        self._made += 1
        before = last.snapshot if last else None
        same = last is not None and before is not None and last.snapshot.history is snapshot.history
        results = last.summary.results if last and same else view.summarise_results(snapshot.history)
        curves = last.curves if last and same else _draw(snapshot.history, results.metric, last)
        summary = view.summarise(snapshot, results)
        return Frame(
            id=f"{self._boot}.{self._made}",
            snapshot=snapshot,
            summary=summary,
            columns=view.round_columns(snapshot.history, results.metric),
            parts=self._renderer.parts(snapshot, summary),
            boards=_board_cells(snapshot.boards, last),
            curves=curves,
            timeline=make_timeline(snapshot),
            quilt=(last.quilt if last else 0) + int(before is None or before.coverage is not snapshot.coverage),
        )

    def _encode(self, before: Frame | None, now: Frame) -> bytes:
        """Encode the events that lead from one frame to another, or to a page that shows nothing yet."""
        events = [encode_event(name, data) for name, data in self._events(before, now)]
        return b"".join(events) + encode_event("frame", now.id, now.id)

    def _events(self, before: Frame | None, now: Frame) -> Iterator[tuple[str, str]]:
        for part, html in now.parts.items():
            if before is None or before.parts[part] != html:
                yield part, html
        yield from self._board_events(before, now)
        yield from self._round_events(before, now)
        yield from self._log_events(before, now)
        if before is None or before.curves is not now.curves:
            yield "curves", encode_json(now.curves.since(before.curves)) if before else now.curves.text
        if before is None or before.timeline != now.timeline:
            yield "timeline", encode_json(now.timeline.since(before.timeline if before else None))
        if before is None or before.quilt != now.quilt:
            yield "quilt", str(now.quilt)

    def _board_events(self, before: Frame | None, now: Frame) -> Iterator[tuple[str, str]]:
        """Yield rows for new boards, and the changed cells of the others; a board that is gone has no cells."""
        if before is None:
            yield "board-list", self._renderer.board_rows(now.boards)
            return
        known = before.boards
        if new := {agent: cells for agent, cells in now.boards.items() if agent not in known}:
            yield "board-rows", self._renderer.board_rows(new)
        changed = {a: _changed(known[a], cells) for a, cells in now.boards.items() if known.get(a, cells) != cells}
        gone = dict.fromkeys(known.keys() - now.boards.keys())
        if changed or gone:
            yield "boards", encode_json({**changed, **gone})

    def _round_events(self, before: Frame | None, now: Frame) -> Iterator[tuple[str, str]]:
        history = now.snapshot.history
        if before is not None and before.snapshot.history is history:
            return
        start = count_common(before.snapshot.history, history) if before else 0
        if before and start == len(before.snapshot.history) > 0 and before.columns == now.columns:
            if new := history[max(start, len(history) - ROUNDS_SHOWN) :]:
                yield "round-rows", self._renderer.round_rows(new[::-1], now.columns)
        elif before is None or start < max(len(history), len(before.snapshot.history)):
            yield "rounds", self._renderer.rounds(history[: -ROUNDS_SHOWN - 1 : -1], now.columns)

    def _log_events(self, before: Frame | None, now: Frame) -> Iterator[tuple[str, str]]:
        events = now.snapshot.events[:EVENTS_SHOWN]
        if before is None or (new := count_new(before.snapshot.events, events)) is None:
            yield "event-list", self._renderer.event_rows(events)
        elif new:
            yield "event-rows", self._renderer.event_rows(events[:new])


def _draw(history: Sequence[RoundResult], metric: Metric, last: Frame | None) -> Curves:
    return make_curves(history, metric, last.curves if last else None)


def count_new(before: Sequence[RunEvent], now: Sequence[RunEvent]) -> int | None:
    """Count the events before the first of ``before``, newest first; None if ``now`` does not continue ``before``."""
    if not before:
        return len(now)
    return next((i for i, event in enumerate(now) if event is before[0] or event == before[0]), None)


def _board_cells(boards: Sequence[BoardStatus], last: Frame | None) -> dict[str, BoardCells]:
    """Format the cells of the boards that are listed: the worst ones, if there are too many."""
    before = {one.agent: one for one in last.snapshot.boards} if last else {}
    known = last.boards if last else {}
    return {
        one.agent: known[one.agent] if before.get(one.agent) is one and one.agent in known else format_cells(one)
        for one in sort_worst_first(boards)[:BOARDS_SHOWN]
    }


def _changed(before: BoardCells, now: BoardCells) -> BoardCells:
    return {name: value for name, value in now.items() if before[name] != value}


def encode_event(name: str, data: str, id: str | None = None) -> bytes:
    """Encode one server-sent event.

    Args:
        id: a frame whose events have all been sent; after a lost connection, the browser asks for what came since.
    """
    retry = RETRY_MILLISECONDS if id else None
    return ServerSentEvent(data, event=name, id=id, retry=retry).encode()
