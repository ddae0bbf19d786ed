"""The bars of the timeline: when each client received, trained, sent and waited in the latest exchanges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fedquilt_server.status.reply_row import ReplyRow
from fedquilt_server.status.snapshot import ENDED, Snapshot
from fedquilt_server.status.units import is_number

Bar = tuple[str, str, int | None, int | None, int | None, int | None, str]
"""Key of the exchange, agent, client; milliseconds of training, milliseconds from the opening until the first chunk
arrived and until the reply was on disk; outcome."""
ExchangeTimes = tuple[int, int, float, float | None]
"""Round, exchange, when it opened, when it closed."""
MOST_BARS: Final = 4000


@dataclass(frozen=True)
class Timeline:
    """The bars and the exchanges by key. ``awaited`` holds, for each agent, the clients that have not replied."""

    exchanges: Mapping[str, ExchangeTimes] = field(default_factory=dict)
    bars: Mapping[str, Bar] = field(default_factory=dict)
    awaited: Mapping[str, list[int]] = field(default_factory=dict)

    def since(self, before: Timeline | None) -> dict[str, object]:
        """Return what ``before`` lacks. ``fresh`` means that what the page has is no longer valid."""
        known = before or Timeline()
        return {
            "fresh": before is None,
            "exchanges": changed_entries(known.exchanges, self.exchanges),
            "bars": changed_entries(known.bars, self.bars),
            "awaited": self.awaited,
        }


def changed_entries(before: Mapping[str, object], now: Mapping[str, object]) -> dict[str, object]:
    """Return the entries that are new or differ."""
    return {key: value for key, value in now.items() if before.get(key) != value}


def make_timeline(snapshot: Snapshot) -> Timeline:
    """Return the timeline of the replies that the snapshot holds, and of the open exchange."""
    exchanges: dict[str, ExchangeTimes] = {}
    bars: dict[str, Bar] = {}
    for row in snapshot.reply_rows[-MOST_BARS:]:
        if is_time(row.opened_at) and row.opened_at is not None and row.client is not None:
            key = _exchange_key(*row.place)
            exchanges[key] = (*row.place, row.opened_at, _time_or_none(row.closed_at))
            bars[f"{key}.{row.client}.{row.outcome}.{row.agent}"] = _bar(key, row)
    awaited = _awaited_by_agent(snapshot)
    if awaited and snapshot.opened_at:
        key = _exchange_key(snapshot.round, snapshot.exchange)
        exchanges[key] = (snapshot.round, snapshot.exchange, snapshot.opened_at, None)
    return Timeline(exchanges, bars, awaited)


def measure_height(timeline: Timeline) -> int:
    """Return the height in pixels of the timeline's box, as ``timeline.js`` draws it; 0 without an exchange.

    The page keeps this height free until its script has drawn, so that nothing below it moves.
    """
    lanes: dict[str, set[int | None]] = {agent: set(clients) for agent, clients in timeline.awaited.items()}
    for _, agent, client, *_ in timeline.bars.values():
        lanes.setdefault(agent, set()).add(client)
    if not timeline.exchanges or not lanes:
        return 0
    roomy = min(16.0, 240 / sum(map(len, lanes.values())))
    rows = sum(max(19.0, max(5.0, roomy, 16 / len(clients)) * len(clients) + 4) for clients in lanes.values())
    return round(min(250.0, 20 + rows)) + (14 if len(timeline.exchanges) > 3 else 2)


def split_reply(row: ReplyRow) -> dict[str, float | None]:
    """Split the time of a reply into seconds of receiving, training, sending and waiting; None if not known.

    The page's script computes the same from a ``Bar``: both count whole milliseconds since the exchange opened.
    """
    train, began, arrived = _reply_times(row)
    closed = _since_opening(row, row.closed_at)
    return {
        "receive": _span(train, began),
        "train": _span(0, train),
        "send": _span(began, arrived),
        "wait": _span(arrived, closed),
    }


def _span(start: int | None, end: int | None) -> float | None:
    """Return the seconds between two times in milliseconds, 0 if they are in the wrong order."""
    return None if start is None or end is None else max(0, end - start) / 1000


def _reply_times(row: ReplyRow) -> tuple[int | None, int | None, int | None]:
    """Return the milliseconds of training, and those from the opening until the reply began and until it arrived."""
    train = row.train_seconds
    trained = _milliseconds(train) if train is not None and is_time(train) else None
    return trained, _since_opening(row, row.began_at), _since_opening(row, row.arrived_at)


def _since_opening(row: ReplyRow, at: float | None) -> int | None:
    if row.opened_at is None or at is None or not (is_time(row.opened_at) and is_time(at)):
        return None
    return _milliseconds(at - row.opened_at)


def _milliseconds(seconds: float) -> int:
    """Round as JavaScript does, a half up; 0 for a negative time."""
    return max(0, math.floor(1000 * seconds + 0.5))


def _exchange_key(round: int, exchange: int | None) -> str:
    return f"{round}.{exchange or 0}"


def _bar(key: str, row: ReplyRow) -> Bar:
    return (key, row.agent, row.client, *_reply_times(row), row.outcome)


def is_time(at: float | None) -> bool:
    """Return whether ``at`` is a Unix time of this era."""
    return at is not None and is_number(at) and 0 <= at < 1e11


def _time_or_none(at: float | None) -> float | None:
    return at if is_time(at) else None


def _awaited_by_agent(s: Snapshot) -> dict[str, list[int]]:
    """Return the clients of the open exchange that have not replied, by the agent that hosts them."""
    if s.phase in ENDED or s.phase == "waiting" or not is_time(s.opened_at):
        return {}
    awaited, found = set(s.awaited), {}
    for board in sorted(s.boards, key=lambda one: not one.online):
        if mine := sorted(awaited.intersection(board.clients)):
            found[board.agent] = mine
            awaited -= set(mine)
    return found
