"""Sentences on a process that has ended."""

from __future__ import annotations

import sys

import pytest

from fedquilt_common.process.exits import describe_exit


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (7, "ended with exit code 7"),
        (-9, "was killed by SIGKILL (out of memory?)"),
        (-11, "was killed by SIGSEGV (Segmentation fault)"),
        (-40, "was killed by signal 40 (Real-time signal 6)"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="other systems number and describe signals differently")
def test_the_end_of_a_process_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words
