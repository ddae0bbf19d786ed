"""The judge: one broken promise at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.soak.evidence import Evidence, find_errors
from tests.soak.oracle import Outcome, judge

REPLIES = tuple((round, 0, client, 10.0 + client, (("loss", 0.5),)) for round in (1, 2) for client in (0, 1))
ROWS = tuple({"round": round, "accuracy": 0.5, "clients": 2, "replies": 2} for round in (1, 2))
GOOD = Evidence((0,), "", 8.0, "abc", ROWS, REPLIES, frozenset({"run-1"}))


def problems(damaged: tuple[str, ...] = (), *, same_repliers: bool = True, **changes: Any) -> list[str]:
    return judge(Outcome(replace(GOOD, **changes), damaged, same_repliers=same_repliers), GOOD)


def test_nothing_is_wrong_with_the_undisturbed_run() -> None:
    assert problems() == []
    assert problems(codes=(-9, 143, 0)) == []
    assert problems(codes=(-9, 6), message="run holds a finished run: read its result.json") == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"codes": (-9, None), "seconds": 99.0}, "hangs: no end after 99 s"),
        ({"codes": (1,), "message": "first\nfedquilt: broken\n"}, "exit code 1: fedquilt: broken"),
        ({"codes": (6,), "message": "a file"}, "exit code 6: a file"),
        ({"sha256": "abd"}, "the model is abd, undisturbed abc"),
        ({"sha256": None}, "the model is None"),
        ({"replies": (*REPLIES, REPLIES[0])}, "client 0 counts 2 times in exchange 1.0"),
        ({"replies": REPLIES[1:]}, "other replies are journaled: \\[\\(1, 0, 0\\)\\]"),
        ({"replies": ((1, 0, 0, 99.0, ()), *REPLIES[1:])}, "weights or metrics"),
        ({"rows": ROWS[:1]}, "1 rounds, not 2"),
        ({"rows": ({**ROWS[0], "accuracy": 0.6}, ROWS[1])}, "round 1 accuracy: 0.6, not 0.5"),
        ({"rows": ({**ROWS[0], "replies": 3}, ROWS[1])}, "3 replies in the results, 2 journaled"),
        ({"runs": frozenset({"run-1", "run-2"})}, "started over: run-1, run-2"),
        ({"tracebacks": ("logs/pi.log: KeyError",)}, "a traceback in logs/pi.log: KeyError"),
        ({"unfinished": ("blobs/partial/x",)}, "unfinished file is left: blobs/partial/x"),
        ({"locked": (".lock",)}, "lock is still held: .lock"),
        ({"survivors": ("python -m worker",)}, "process is left: python -m worker"),
    ],
)
def test_each_broken_promise_is_found(changes: dict[str, Any], words: str) -> None:
    found = problems(**changes)
    assert found
    with pytest.raises(AssertionError, match=words):
        raise AssertionError("; ".join(found))


def test_a_damaged_file_may_end_the_run_if_the_message_names_it() -> None:
    ended: dict[str, Any] = {"codes": (-9, 6), "sha256": None, "rows": ROWS[:1], "message": "run/blobs/ab is damaged"}
    assert problems(("blobs/ab",), **ended) == []
    assert problems(("blobs/cd", "blobs/ab"), **ended) == []
    assert problems(("blobs/cd",), **ended) == ["exit code 6 without the name of a damaged file (blobs/cd)"]
    ended["message"] = "run/journal.sqlite is missing or empty"
    assert problems(("journal.sqlite-wal",), **ended) == []
    assert "traceback" in problems(("blobs/ab",), **ended, tracebacks=("x: y",))[0]


def test_other_repliers_give_another_model() -> None:
    fewer: dict[str, Any] = {"replies": REPLIES[1:], "rows": ({**ROWS[0], "replies": 1}, ROWS[1]), "sha256": "abd"}
    assert problems(same_repliers=False, **fewer) == []
    assert problems(same_repliers=False, sha256="abd") != []
    assert problems(same_repliers=True, **fewer) != []


def test_each_traceback_of_a_log_is_known_by_its_error() -> None:
    first = "Traceback (most recent call last):\n  File a, line 1\n    call()\nValueError: one\n"
    nested = "  + Exception Group Traceback (most recent call last):\n  |   File b\n  | KeyError: 'two'\n"
    log = f"a line\n{first}a later line\n{nested}\nround 8/8\nTraceback (most recent call last):\n"
    assert list(find_errors(log)) == ["ValueError: one", "KeyError: 'two'", "Traceback (most recent call last):"]
    assert list(find_errors("all is well\n")) == []
