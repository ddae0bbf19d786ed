"""Time in which no coordinator ran is left out of every time on the page, and a note names it."""

from __future__ import annotations

import re

from tests.unit.server.web.test_web_view import row, snapshot, summary_of

from fedquilt_server.status.run_lines import digest_history
from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.web import view
from fedquilt_server.web.curves import split_seconds
from fedquilt_server.web.fragments import Renderer

KILLED = row(1, seconds=50.0, away_seconds=42.0, train_seconds=6.0, overhead_seconds=44.0)
QUIET = row(2, seconds=12.0, train_seconds=9.0, overhead_seconds=3.0)
NOTE = "the coordinator did not run in 42.0 s of the rounds; the times leave this out"


def show(given: Snapshot) -> dict[str, str]:
    return Renderer().parts(given, view.summarise(given, view.summarise_results(given.history)))


def words(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_tiles_and_total_leave_it_out() -> None:
    parts = show(snapshot(KILLED, QUIET, phase="finished"))
    assert "Time per round 10.0 s median; training took 75 % of 20.0 s in total" in words(parts["summary"])
    assert "finished after 20.0 s" in words(parts["status"])


def test_the_estimates_leave_it_out() -> None:
    assert summary_of(KILLED, QUIET, phase="training").seconds_left == 80.0
    assert digest_history([KILLED, QUIET]).seconds == 10.0


def test_the_table_leaves_it_out() -> None:
    columns = view.round_columns([KILLED], view.summarise_results([KILLED]).metric)
    cells = words(Renderer().round_rows([KILLED], columns))
    assert "8.00 s 6.00 s 2.00 s" in cells


def test_the_curve_of_the_waiting_leaves_it_out() -> None:
    assert split_seconds(KILLED)["waiting"] == 2.0


def test_training_that_went_on_alone_is_no_more_than_all_time() -> None:
    alone = row(1, seconds=50.0, away_seconds=42.0, train_seconds=40.0)
    assert summary_of(alone).results.times.training_share == 1.0
    assert alone.running_overhead_seconds == 0.0


def test_a_note_names_it_once() -> None:
    live, recorded = snapshot(KILLED), snapshot(KILLED, recorded=True, notes=[NOTE])
    assert words(show(live)["status"]).count(NOTE) == words(show(recorded)["status"]).count(NOTE) == 1
    assert "did not run" not in show(snapshot(QUIET))["status"]
