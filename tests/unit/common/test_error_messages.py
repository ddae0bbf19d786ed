"""An error that the command line prints is found again in a log."""

from __future__ import annotations

import pytest

from fedquilt_common.error_messages import last_error, print_error


def test_the_last_error_is_found_among_other_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("the first")
    print_error("the folder is full:\nsee its size")
    assert last_error(f"started\n{capsys.readouterr().err}") == "the folder is full:\nsee its size"


def test_an_error_controls_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("the run failed: client 0: \x1b]0;X\x07\nsee its log")
    assert capsys.readouterr().err == "fedquilt: the run failed: client 0:  ]0;X \nsee its log\n"


@pytest.mark.parametrize("text", ["", "started", "see fedquilt: no line begins with it"])
def test_no_error(text: str) -> None:
    assert last_error(text) == ""
