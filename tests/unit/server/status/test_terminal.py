"""Terminal output without a live block: progress lines, rejections and waiting messages."""

from __future__ import annotations

import errno
import gc
import io
import sys
import threading
import time

import pytest

from fedquilt_server.status import console
from fedquilt_server.status.console import print_message
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.snapshot import RejectedReply, RunPhase, Snapshot, StatusStore
from fedquilt_server.status.terminal import ProgressDisplay
from fedquilt_server.status.wait_reporter import WaitReporter


def make_rejection(at: float, client: int | None, reason: str) -> RejectedReply:
    return RejectedReply(at=at, agent="pi-1", client=client, round=2, reason=reason)


def test_refusals_are_told_once_each_and_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    """A round may wait for a client that fails. The terminal must show why."""
    first, second = make_rejection(10.0, 3, "the client failed: no memory"), make_rejection(11.0, None, "not JSON")
    with ProgressDisplay("http://page", 5, 0.0) as progress:
        for rejections in ([], [first], [second, first], [second, first]):
            progress.show(Snapshot(rounds=5, rejections=rejections))
    lines = capsys.readouterr().err.splitlines()
    assert lines[1:] == ["round 2: pi-1, client 3: the client failed: no memory", "round 2: pi-1: not JSON"]


@pytest.mark.parametrize(
    ("phase", "before", "after", "words"),
    [
        ("waiting", 4.9, 5.0, "Waiting for clients 4\N{EN DASH}6, 9 to connect"),
        ("training", 59.9, 60.0, "Waiting for clients 4\N{EN DASH}6, 9 to reply in round 3"),
    ],
)
def test_a_run_that_waits_says_for_whom_and_says_it_once(
    phase: RunPhase, before: float, after: float, words: str
) -> None:
    reporter, now = WaitReporter(), Snapshot(round=3, phase=phase, awaited=[4, 5, 6, 9], broker_connected=True)
    assert [reporter.check(now, at) for at in (0.0, before, after, 1000.0)] == ["", "", words, ""]
    fewer = now.model_copy(update={"awaited": [9]})
    again = [reporter.check(fewer, at) for at in (1001.0, 2000.0)]
    assert again == ["", "Waiting for client 9 to connect" if phase == "waiting" else ""]
    next_round = now.model_copy(update={"round": 4})
    assert [bool(reporter.check(next_round, at)) for at in (3000.0, 4000.0)] == [False, True]


@pytest.mark.parametrize(
    "changes", [{"awaited": []}, {"phase": "finished"}, {"phase": "evaluating"}, {"broker_connected": False}]
)
def test_nobody_is_waited_for(changes: dict[str, object]) -> None:
    snapshot = Snapshot(round=3, phase="waiting", awaited=[1], broker_connected=True).model_copy(update=changes)
    reporter = WaitReporter()
    assert [reporter.check(snapshot, at) for at in (0.0, 5000.0)] == ["", ""]


def test_what_is_followed_is_shown_to_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    zeros = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
    rows = [RoundResult.model_validate({**zeros, "accuracy": 0.25 * number, "round": number}) for number in (1, 2, 3)]
    store = StatusStore(Snapshot(rounds=3, history=rows[:1]))
    with ProgressDisplay("", 3, 0.0) as progress:
        progress.skip_rounds(1)
        progress.show(Snapshot(rounds=3))  # before the coordinator has read the rounds that are finished
        with progress.follow(lambda: store.current):
            store.update(history=rows[:2])
            printed, end = "", time.monotonic() + 60
            while not printed and time.monotonic() < end:
                time.sleep(0.05)
                printed = capsys.readouterr().err
            store.update(history=rows)
    assert printed == "round 2/3: accuracy 0.5000, 0.00 s\n"
    assert capsys.readouterr().err == "round 3/3: accuracy 0.7500, 0.00 s\n"


def test_the_rounds_of_a_failed_run_are_printed_once_and_a_terminals_block_stays(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    zeros = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
    rows = [RoundResult.model_validate({**zeros, "accuracy": 0.5, "round": number}) for number in (1, 2)]
    with ProgressDisplay("", 3, 0.0) as progress:
        progress.show(Snapshot(rounds=3, history=rows[:1]))
        progress.print_missing(rows)
    assert capsys.readouterr().err.splitlines() == [f"round {n}/3: accuracy 0.5000, 0.00 s" for n in (1, 2)]
    monkeypatch.setattr("fedquilt_server.status.terminal.is_live", lambda: True)
    with ProgressDisplay("", 3, 0.0) as progress:
        progress.print_missing(rows)
    assert "round 2/3: accuracy" not in capsys.readouterr().err


def test_a_pipe_gets_each_stage_each_warning_and_the_request_to_stop_once(capsys: pytest.CaptureFixture[str]) -> None:
    stop = threading.Event()
    with ProgressDisplay("", 3, 0.0, stop.is_set) as progress:
        progress.stage("Starting a broker")
        for warning in ("the loss is 1e9", "the loss is 1e10"):
            progress.show(Snapshot(rounds=3, phase="training", warning=warning))
        stop.set()
        end, printed = time.monotonic() + 60, ""
        while "Stopping" not in printed and time.monotonic() < end:
            time.sleep(0.05)
            printed += capsys.readouterr().err
    assert (printed + capsys.readouterr().err).splitlines() == [
        "Starting a broker", "Warning: the loss is 1e9", "Stopping; press Ctrl-C again to end at once",
    ]  # fmt: skip


def test_both_accuracies_stand_in_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    zeros = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
    scores = {"accuracy": 0.5, "global_accuracy": 0.5, "personal_accuracy": 0.75, "loss": 1.0}
    row = RoundResult.model_validate({**zeros, **scores, "round": 1})
    with ProgressDisplay("http://page", 1, 0.0) as progress:
        progress.show(Snapshot(rounds=1, history=[row]))
    assert "round 1/1: accuracy 0.5000 global, 0.7500 personal, 0.00 s" in capsys.readouterr().err


# --- nobody reads --------------------------------------------------------------------------------------------


class Gone(io.StringIO):
    """A terminal or pipe whose reader has left."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error

    def flush(self) -> None:
        raise self.error


@pytest.mark.parametrize("error", [BrokenPipeError(errno.EPIPE, "pipe"), OSError(errno.EIO, "terminal")])
def test_a_run_goes_on_without_a_reader(error: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Gone(error))
    with ProgressDisplay("http://page/", 2, 0.0) as progress:
        progress.show(Snapshot(phase="training", rounds=2))
        print_message("a word")


def test_a_run_goes_on_without_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    print_message("a word")
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    with ProgressDisplay("", 2, 0.0):
        print_message("a word")


def test_the_interpreter_ends_without_a_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 clears a module's functions before it deletes the stream. Warnings are errors here."""
    stream = console.StandardError()
    monkeypatch.setattr(console, "_standard_error", None)
    del stream
    gc.collect()
