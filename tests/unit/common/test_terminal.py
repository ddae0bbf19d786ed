"""What a console prints is what somebody wrote."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedquilt_common.terminal import make_console
from fedquilt_server.status.console import print_message

PACKAGES = ("common", "server", "client")


def test_names_between_colons_are_no_emojis(capsys: pytest.CaptureFixture[str]) -> None:
    print_message("model.name = my_models:wave: too large")
    make_console().print("my_models:wave:", markup=False)
    captured = capsys.readouterr()
    assert captured.err == "model.name = my_models:wave: too large\n"
    assert captured.out == "my_models:wave:\n"


def test_every_console_is_of_that_kind() -> None:
    root = Path(__file__).parents[3]
    sources = [path for package in PACKAGES for path in (root / package).rglob("*.py") if path.name != "terminal.py"]
    assert len(sources) > 500
    assert [str(path) for path in sources if re.search(r"\bConsole\(", path.read_text("utf-8"))] == []
