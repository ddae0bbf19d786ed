"""The live block on real terminals: it fits any width, keeps its counts, and changes in place."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest
from tests.support.screens import Screen, on_screen

from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.snapshot import BoardStatus, RejectedReply, Snapshot

ZEROS = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
HISTORY = [
    RoundResult.model_validate({**ZEROS, "round": n, "accuracy": 0.9 - n / 100, "loss": 0.5, "seconds": 1.5})
    for n in range(1, 12)
]
NOW = Snapshot(
    name="digits", run="digits-1", algorithm="fedavg", dataset="digits", phase="training", broker_connected=True,
    round=12, rounds=20, tasks=80, replies=33, awaited=[*range(1, 60, 2), *range(60, 77)], history=HISTORY,
    boards=[BoardStatus(agent="pi-3", health="silent", reason="it promised a message every 5 s"),
            BoardStatus(agent="pi-4", online=False)],
)  # fmt: skip


def type_in(screen: Screen, *lines: str) -> None:
    stdin: Any = screen.process.stdin
    stdin.write("".join(f"{line}\n" for line in lines).encode())
    stdin.flush()


def display(columns: int, rows: int, **environment: str) -> Any:
    return on_screen("tests.support.shown_progress", columns=columns, rows=rows, stdin=subprocess.PIPE, **environment)


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (60, 24), (200, 50)])
def test_one_block_that_fits(columns: int, rows: int) -> None:
    with display(columns, rows) as screen:
        type_in(screen, "Starting a broker")
        screen.wait_for(lambda text: "Starting a broker (" in text)
        type_in(screen, NOW.model_copy(update={"replies": 7}).model_dump_json())
        screen.wait_for(lambda text: " 7/80 replies" in text)
        type_in(screen, NOW.model_dump_json())
        screen.wait_for(lambda text: "33/80 replies" in text and text.endswith("to reply"))
        page, title, *block = screen.lines
        assert (page, title) == ("Status page: http://127.0.0.1:8080/", "digits: fedavg on digits")
        assert len(block) == 5
        assert re.fullmatch(r"Round 12/20 ━+─+ +training, 33/80 replies", block[0])
        assert len(block[0]) == columns
        assert re.match(r"\d+ s elapsed, about 14 s left, median round 1\.50 s", block[1])
        assert block[2] == "accuracy 0.7900 (best 0.8900 in round 1), loss 0.5000"
        assert block[3].startswith("Warning: pi-4 is offline")
        assert re.match(r"Waiting for clients 1, 3, 5, .* and \d+ more to reply$", block[4]) or columns == 200
        type_in(screen, "finish")
        assert screen.finish() == 0
        assert screen.lines == [page, "the summary"]


def test_a_low_terminal_shows_what_matters_most() -> None:
    with display(60, 4) as screen:
        type_in(screen, NOW.model_dump_json())
        screen.wait_for(lambda text: "33/80 replies" in text and "Warning" in text)
        assert [line.split()[0] for line in screen.lines][-3:] == ["Round", "accuracy", "Warning:"]


def test_a_request_to_stop_is_answered_while_the_program_is_busy() -> None:
    with display(80, 24) as screen:
        type_in(screen, NOW.model_dump_json(), "stop")
        screen.wait_for(lambda text: "Stopping; press Ctrl-C again to end at once" in text)


def test_what_agents_report_cannot_control_the_terminal() -> None:
    nasty = "\x1b[2J\x1b]0;title\x07\nfedquilt: done"
    rejection = RejectedReply(at=1.0, agent="pi-1", client=3, round=2, reason=nasty)
    board = BoardStatus(agent="pi-1", health="silent", reason=nasty)
    shown = NOW.model_copy(update={"rejections": [rejection], "boards": [board]})
    with display(80, 24) as screen:
        type_in(screen, shown.model_dump_json())
        screen.wait_for(lambda text: "Warning: pi-1 is silent:" in text and text.endswith("to reply"))
        assert "round 2: pi-1, client 3:  [2J ]0;title" in screen.text
        assert not {b"\x1b[2J", b"\x1b]0"} & set(re.findall(rb"\x1b\[2J|\x1b\]0", screen.raw))


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_no_colours(environment: dict[str, str]) -> None:
    with display(80, 24, **environment) as screen:
        type_in(screen, NOW.model_dump_json())
        screen.wait_for(lambda text: "0.7900" in text)
        type_in(screen, "finish")
        assert screen.finish() == 0
        assert re.search(rb"\x1b\[[0-9;]*3[0-9]m", screen.raw) is None
        assert (b"\x1b" in screen.raw) == (environment != {"TERM": "dumb"})
