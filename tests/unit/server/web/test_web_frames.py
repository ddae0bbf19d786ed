"""What readers of the page's stream receive: everything once, and then only what changed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from html import unescape
from typing import Any

import pytest

from fedquilt_common.learning_tasks.metrics import ACCURACY
from fedquilt_server.status.coverage import Coverage, LayerCoverage
from fedquilt_server.status.reply_row import ReplyRow
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.run_event import RunEvent
from fedquilt_server.status.snapshot import BoardStatus, Snapshot, StatusStore
from fedquilt_server.web import frames
from fedquilt_server.web.bars import make_timeline
from fedquilt_server.web.curves import BUCKETS, COLUMNS, RAW_POINTS, make_curves, split_seconds
from fedquilt_server.web.fragments import EVENTS_SHOWN, ROUNDS_SHOWN
from fedquilt_server.web.frames import FRAME_SECONDS, FrameSource
from fedquilt_server.web.quilt import coverage_rows, thin_coverage
from fedquilt_server.web.stream import HEARTBEAT_SECONDS, Reader

EVERYTHING = {
    "status",
    "waiting",
    "summary",
    "privacy",
    "board-list",
    "rounds",
    "event-list",
    "curves",
    "timeline",
    "quilt",
    "frame",
}


def row(number: int, **known: Any) -> RoundResult:
    zeros = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
    return RoundResult.model_validate({**zeros, "round": number, **known})


def board(agent: str, **known: Any) -> BoardStatus:
    return BoardStatus.model_validate({"agent": agent, "last_seen": 5.0, **known})


class Page:
    """A reader of a store whose frames are always the newest."""

    def __init__(self, **known: Any) -> None:
        self.store = StatusStore(Snapshot.model_validate({"rounds": 10, **known}))
        self.source = FrameSource(self.store)
        self.reader = Reader(self.source)

    def update(self, at: float = 0.0, **changes: Any) -> dict[str, str]:
        """Change the snapshot, and return the reader's events but for the name of the frame."""
        if changes:
            self.store.update(**changes)
        events = parse_events(self.reader.events(at, newest=True))
        return {name: data for name, data in events.items() if name not in ("frame", "clock")}


def parse_events(stream: bytes) -> dict[str, str]:
    """Return the data of each event by its name."""
    found: dict[str, str] = {}
    for block in stream.decode().split("\r\n\r\n")[:-1]:
        fields = [line.partition(": ") for line in block.split("\r\n")]
        (name,) = (value for field, _, value in fields if field == "event")
        found[name] = "\n".join(value for field, _, value in fields if field == "data")
    return found


# Readers


def test_a_new_reader_receives_everything() -> None:
    page = Page()
    assert set(parse_events(page.reader.events(1.0))) == {"clock", *EVERYTHING}


def test_nothing_new_sends_only_the_heartbeat() -> None:
    page = Page()
    page.reader.events(0.0)
    assert page.reader.events(HEARTBEAT_SECONDS / 2) == b""
    assert set(parse_events(page.reader.events(HEARTBEAT_SECONDS))) == {"clock"}


def test_all_readers_share_the_frames_and_their_bytes() -> None:
    page = Page(boards=[board("a")])
    other = Reader(page.source)
    assert page.reader.events(0.0)[-500:] == other.events(0.0)[-500:]
    page.store.update(boards=[board("a", load=2.0)])
    page.source.current(newest=True)
    made = page.source.encode.cache_info().misses
    assert page.reader.events(1.0) == other.events(1.0)
    assert page.source.encode.cache_info().misses == made + 1


def test_a_slow_reader_receives_the_newest_state_once() -> None:
    page = Page(boards=[board("a")])
    page.update()
    for load in range(50):
        page.store.update(boards=[board("a", load=load)])
        page.source.current(newest=True)
    assert json.loads(page.update()["boards"]) == {"a": {"load": "49.00"}}


def test_frames_are_made_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "FRAME_SECONDS", 1e6)
    page = Page()
    first = page.source.current()
    page.store.update(round=3)
    assert page.source.current() is first
    monkeypatch.setattr(frames, "FRAME_SECONDS", 0.0)
    assert page.source.current() is not first
    monkeypatch.setattr(frames, "FRAME_SECONDS", 1e6)
    page.store.update(round=4)
    assert page.source.current(newest=True).snapshot.round == 4
    assert FRAME_SECONDS >= 0.25


# Boards, rounds and events


def test_only_changed_cells_are_sent() -> None:
    page = Page(boards=[board("a", temperature=50.0), board("b", temperature=60.0)])
    assert page.update()["board-list"].count("<tr") == 2
    sent = page.update(boards=[board("a", temperature=50.0), board("b", temperature=61.0, last_seen=7.2)])
    assert set(sent) == {"boards"}
    assert json.loads(sent["boards"]) == {"b": {"temperature": "61.0\N{NO-BREAK SPACE}°C", "seen": 7}}


def test_new_and_lost_boards_are_sent_alone() -> None:
    page = Page(boards=[board("a"), board("b")])
    page.update()
    sent = page.update(boards=[board("b"), board("<c>")])
    assert sent["board-rows"].count("<tr") == 1
    assert 'data-agent="&lt;c&gt;"' in sent["board-rows"]
    assert json.loads(sent["boards"]) == {"a": None}


def test_only_the_worst_of_very_many_boards_are_listed() -> None:
    many = [board(f"a{n}") for n in range(450)] + [board("sick", health="silent")]
    shown = Page(boards=many)
    assert shown.update()["board-list"].count("<tr") == 400
    assert 'data-agent="sick"' in shown.source.page()
    assert "400 boards in the worst state" in shown.source.page()


def test_a_new_round_is_one_row() -> None:
    page, rows = Page(history=[row(1)]), [row(1), row(2)]
    assert page.update()["rounds"].count("<tr") == 2
    sent = page.update(history=rows)
    assert sent["round-rows"].count("<tr") == 1
    assert ">2<" in sent["round-rows"]
    assert "rounds" not in sent
    assert page.update(history=[*rows, row(3, label_bytes_up=5, label_bytes_down=5)])["rounds"].count("<tr") == 4
    assert page.update(history=[row(1)])["rounds"].count("<tr") == 2


def test_a_reader_that_missed_many_rounds_receives_the_latest() -> None:
    page, rows = Page(history=[row(1)]), [row(number) for number in range(1, 101)]
    page.reader.events(0.0, newest=True)
    page.store.update(history=[page.store.current.history[0], *rows[1:]])
    assert page.update()["round-rows"].count("<tr") == ROUNDS_SHOWN


def test_a_new_event_is_one_row() -> None:
    first = RunEvent(at=1.0, kind="started", text="it starts")
    second = RunEvent(at=2.0, kind="joined", board="a", text="<b>")
    page = Page(events=[first])
    assert page.update()["event-list"].count("<li") == 1
    sent = page.update(events=[second, first])
    assert sent["event-rows"].count("<li") == 1
    assert "&lt;b&gt;" in sent["event-rows"]
    assert page.update(events=[RunEvent(at=9.0, kind="started", text="anew")])["event-list"].count("<li") == 1


def test_no_more_events_are_sent_than_the_page_shows() -> None:
    page = Page(events=[])
    page.update()
    many = [RunEvent(at=float(n), kind="late", text=str(n)) for n in range(500, 0, -1)]
    assert page.update(events=many)["event-rows"].count("<li") == EVENTS_SHOWN


# Curves


def points_of(page: Page, history: list[RoundResult]) -> Mapping[str, Any]:
    points: Mapping[str, Any] = json.loads(page.update(history=history)["curves"])
    return points


def test_curves_are_continued_or_begun_again() -> None:
    page, rows = Page(), [row(1, accuracy=0.1), row(2, loss=math.nan)]
    page.update()
    points = [points_of(page, history) for history in (rows[:1], rows, [row(1, accuracy=0.9)])]
    assert [(p["start"], p["round"], p["value"]) for p in points] == [
        (0, [1], [0.1]),
        (1, [2], [None]),
        (0, [1], [0.9]),
    ]
    assert points[1]["loss"] == [None]


def test_a_curve_knows_bytes_and_seconds_since_the_start() -> None:
    curves = make_curves([row(1, bytes_down=10, bytes_up=5, seconds=2.0), row(2, bytes_up=1, seconds=0.5)], ACCURACY)
    sent = curves.since(None)
    assert (sent["bytes"], sent["seconds"]) == ([15.0, 16.0], [2.0, 2.5])


def test_the_parts_of_a_round_add_up() -> None:
    times = {"sending_seconds": 1.0, "averaging_seconds": 0.5, "evaluate_seconds": 0.25}
    parts = split_seconds(row(1, seconds=10.0, train_seconds=6.0, **times))
    assert parts == {"sending": 1.0, "training": 6.0, "waiting": 2.25, "averaging": 0.75}
    assert split_seconds(row(1, seconds=3.0, train_seconds=6.0))["waiting"] == 0.0


def test_long_curves_are_thinned_but_keep_their_extremes() -> None:
    rows = [row(n, accuracy=n / 20000, loss=1.0) for n in range(1, 10_001)]
    rows[4321] = row(4322, accuracy=0.999, loss=77.0)
    curves = make_curves(rows, ACCURACY)
    assert len(curves.points) < 14 * BUCKETS + 2 * RAW_POINTS
    rounds, losses = ([point[COLUMNS.index(name)] or 0 for point in curves.points] for name in ("round", "loss"))
    assert 77.0 in losses
    assert rounds == sorted(rounds)
    assert rounds[-1] == 10_000


def test_the_page_brings_its_curves_so_that_they_do_not_wait_for_the_stream() -> None:
    page = Page(history=[row(1, accuracy=0.5), row(2, accuracy=math.nan)], reply_rows=[reply(1)])
    html = page.source.page()
    found = re.search(r'data-curves="(.*?)"', html)
    assert found is not None
    assert json.loads(unescape(found[1])) == make_curves(page.store.current.history, ACCURACY).since(None)
    frame = html.partition("events?frame=")[2].partition('"')[0]
    sent = parse_events(Reader(page.source, frame).events(0.0))
    assert "timeline" in sent
    assert "curves" not in sent


def test_pages_that_open_at_the_same_frame_share_the_bytes() -> None:
    page = Page(history=[row(1)])
    frame = page.source.page().partition("events?frame=")[2].partition('"')[0]
    Reader(page.source, frame).events(0.0)
    made = page.source.encode.cache_info().misses
    Reader(page.source, frame).events(0.0)
    assert page.source.encode.cache_info().misses == made


def test_a_page_of_another_coordinator_keeps_what_it_shows_until_the_run_is_loaded() -> None:
    page = Page()
    reader = Reader(page.source, "of-another-coordinator.1")
    assert set(parse_events(reader.events(1.0))) == {"starting"}
    assert reader.events(2.0) == b""
    page.store.update(run="r")
    page.source.current(newest=True)
    assert {"clock", *EVERYTHING} <= set(parse_events(reader.events(9.0)))


@pytest.mark.parametrize("known", [{"phase": "failed"}, {"run": "r"}])
def test_a_page_of_another_coordinator_receives_everything_otherwise(known: dict[str, Any]) -> None:
    sent = parse_events(Reader(Page(**known).source, "of-another-coordinator.1").events(1.0))
    assert set(sent) == {"clock", *EVERYTHING}


def test_a_new_round_of_a_long_run_adds_one_point() -> None:
    rows = [row(n, accuracy=n / 20000) for n in range(1, 5002)]
    before = make_curves(rows[:-1], ACCURACY)
    after = make_curves(rows, ACCURACY, before)
    assert after.points == make_curves(rows, ACCURACY).points
    sent = after.since(before)
    assert (sent["round"], sent["start"]) == ([5001], len(before.points))
    assert set(sent) == {"start", "measure", "title", "share", *COLUMNS}


# Timeline


def reply(client: int | None, **known: Any) -> ReplyRow:
    done = {"round": 3, "exchange": 0, "outcome": "accepted", "opened_at": 100.0}
    return ReplyRow.model_validate({**done, "client": client, "agent": f"pi-{client}", **known})


def test_the_timeline_sends_new_bars_and_the_end_of_an_exchange() -> None:
    times = {"train_seconds": 2.0, "began_at": 103.0, "arrived_at": 104.5}
    page = Page(
        phase="training",
        round=3,
        opened_at=100.0,
        awaited=[1, 2],
        boards=[board("pi-1", clients=[1]), board("pi-2", clients=[2])],
    )
    first = json.loads(page.update()["timeline"])
    assert (first["fresh"], first["bars"], first["awaited"]) == (True, {}, {"pi-1": [1], "pi-2": [2]})
    assert first["exchanges"] == {"3.0": [3, 0, 100.0, None]}
    second = json.loads(page.update(reply_rows=[reply(1, **times)], awaited=[2])["timeline"])
    assert second["bars"] == {"3.0.1.accepted.pi-1": ["3.0", "pi-1", 1, 2000, 3000, 4500, "accepted"]}
    assert (second["exchanges"], second["awaited"]) == ({}, {"pi-2": [2]})
    closed = [reply(1, **times, closed_at=110.0), reply(2, outcome="missing", closed_at=110.0)]
    third = json.loads(page.update(reply_rows=closed, awaited=[], phase="averaging")["timeline"])
    assert third["exchanges"] == {"3.0": [3, 0, 100.0, 110.0]}
    assert list(third["bars"].values()) == [["3.0", "pi-2", 2, None, None, None, "missing"]]


def test_a_reply_to_an_earlier_task_is_drawn_in_the_round_in_which_it_counts() -> None:
    times = {"began_at": 102.0, "arrived_at": 103.0, "closed_at": 104.0, "train_seconds": 9.0}
    drawn = make_timeline(Snapshot(reply_rows=[reply(1, round=1, counted_round=3, counted_exchange=0, **times)]))
    assert drawn.exchanges == {"3.0": (3, 0, 100.0, 104.0)}
    assert list(drawn.bars.values()) == [("3.0", "pi-1", 1, 9000, 2000, 3000, "accepted")]


def test_a_bar_has_no_training_if_the_reply_names_none() -> None:
    drawn = make_timeline(Snapshot(reply_rows=[reply(1, began_at=102.0, arrived_at=103.0, closed_at=104.0)]))
    assert list(drawn.bars.values()) == [("3.0", "pi-1", 1, None, 2000, 3000, "accepted")]


@pytest.mark.parametrize("value", [math.nan, math.inf, -1e300, 1e300, None])
def test_a_reply_with_strange_times_breaks_no_timeline(value: float | None) -> None:
    rows = [
        reply(1, opened_at=value),
        reply(2, began_at=value, arrived_at=value, closed_at=value, train_seconds=value),
        reply(None),
    ]
    drawn = make_timeline(Snapshot(reply_rows=rows, opened_at=value, phase="training", awaited=[4]))
    json.dumps(drawn.since(None), allow_nan=False)
    assert len(drawn.bars) == 1


# Quilt


def quilt() -> Coverage:
    layer = LayerCoverage(
        name="conv1", counts=[4, 4, 2, 2, 0, 0], latest=[0, 1, 1, 0, 0, 0], boards={"a": 1.0, "b": 0.5}
    )
    return Coverage(rounds=4, layers=[layer])


def test_the_stream_only_reports_that_there_is_a_newer_coverage() -> None:
    page = Page()
    assert page.update()["quilt"] == "1"
    assert page.update(coverage=quilt()) == {"quilt": "2"}
    assert page.update(round=2).keys() == {"status"}


def test_thinned_channels_keep_whether_they_were_trained() -> None:
    (layer,) = thin_coverage(quilt(), 3).layers
    assert (layer.counts, layer.latest) == ([4, 2, 0], [1, 1, 0])
    assert Coverage.model_validate(thin_coverage(quilt(), 100).model_dump()) == quilt()
    assert (
        thin_coverage(Coverage(rounds=0, layers=[LayerCoverage(name="x", counts=[], latest=[])]), 5).layers[0].counts
        == []
    )


def test_thinned_channels_keep_the_shares_of_all() -> None:
    layer = LayerCoverage(name="conv1", counts=[1] * 511 + [0], latest=[1] + [0] * 511, boards={"a": 511 / 512})
    (thin,) = thin_coverage(Coverage(rounds=1, layers=[layer]), 128).layers
    assert (len(thin.counts), thin.channels, min(thin.counts)) == (128, 512, 1)
    assert (thin.trained, thin.trained_latest, thin.least, thin.most) == (511 / 512, 1 / 512, 0, 1)
    assert thin.boards["a"] < 1


def test_a_layer_with_an_untrained_channel_is_not_whole() -> None:
    layer = LayerCoverage(name="conv1", counts=[1] * 511 + [0], latest=[1] + [0] * 511, boards={"a": 511 / 512})
    (one,) = coverage_rows(Coverage(rounds=1, layers=[layer]))
    assert (one.trained, one.latest, one.share) == ("99.8 %", "0.2 %", "99.8 %")


def test_the_table_of_the_quilt() -> None:
    (one,) = coverage_rows(quilt())
    assert (one.channels, one.trained, one.least, one.most, one.latest, one.share) == (
        "6",
        "67 %",
        "0",
        "4",
        "33 %",
        "75 %",
    )
