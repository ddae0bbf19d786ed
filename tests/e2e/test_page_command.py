"""``fedquilt page`` as a person runs it: a process, its address, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.example_library import rounds, write_example
from tests.support.runs import FEDQUILT
from tests.support.warm import ForkedProgram

from fedquilt_common.errors import RunFolderError
from fedquilt_server.runs.page_address import TOKEN_VARIABLE

SQLITE_FILES = ("-shm", "-wal")
"""Ends of the names of files that SQLite adds when it reads."""


def run_page(*options: str, token: str = "") -> subprocess.Popen[str]:
    environment = {**os.environ, TOKEN_VARIABLE: token}
    return ForkedProgram([*FEDQUILT, "page", *options], stderr=subprocess.PIPE, text=True, env=environment)


@contextmanager
def serving(*options: str, token: str = "") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command; yields the process and its first message."""
    with run_page(*options, "--port", "0", token=token) as process:
        assert process.stderr is not None
        try:
            yield process, process.stderr.readline()
        finally:
            process.kill()


def get(address: str, **options: Any) -> httpx.Response:
    return httpx.get(address, timeout=60, **options)


def address_in(message: str) -> str:
    found = re.search(r"http://127\.0\.0\.1:\d+/", message)
    assert found, message
    return found[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("page") / "runs"
    write_example(runs / "first", 2, 2, rounds(3, 0.9, 4))
    write_example(runs / "second", 1, 2, rounds(4, 0.8, 4), algorithm="fedprox")
    return runs


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_page_is_served_until_ctrl_c(number: signal.Signals, folder: Path) -> None:
    with serving(str(folder)) as (process, message):
        assert message.startswith(f"The page of 2 runs in {folder} is at http://127.0.0.1:")
        address = address_in(message)
        assert [run["id"] for run in get(f"{address}api/v1/runs").json()] == ["first", "second"]
        assert get(f"{address}runs/second/api/v1/snapshot").json()["algorithm"] == "fedprox"
        assert "Scores and costs" in get(f"{address}compare?run=first&run=second").text
        process.send_signal(number)
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_nothing_in_the_folder_changes(folder: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        files = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(SQLITE_FILES))
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in files}

    before = state()
    with serving(str(folder)) as (_, message):
        for path in ("", "runs/first/", "runs/first/api/v1/model", "compare?run=first&run=second"):
            get(address_in(message) + path)
    assert state() == before


def test_beyond_this_machine_it_needs_a_token(folder: Path) -> None:
    with run_page(str(folder), "--host", "0.0.0.0") as process:  # noqa: S104
        _, message = process.communicate(timeout=60)
        assert process.returncode == 2
        assert f"set {TOKEN_VARIABLE}" in message
    with serving(str(folder), "--host", "0.0.0.0", token="x" * 16) as (_, message):  # noqa: S104
        address = address_in(message)
        assert get(address).status_code == 401
        assert get(address, headers={"Authorization": f"Bearer {'x' * 16}"}).status_code == 200
    with serving(str(folder), "--host", "0.0.0.0", "--public-page") as (_, message):  # noqa: S104
        assert get(address_in(message)).status_code == 200


def test_a_folder_that_is_missing_is_a_clear_error(tmp_path: Path) -> None:
    with run_page(str(tmp_path / "nothing")) as process:
        _, message = process.communicate(timeout=60)
        assert process.returncode == RunFolderError.exit_code
        assert message.startswith(f"fedquilt: {tmp_path / 'nothing'}: there is no such folder")


def test_it_needs_no_torch(folder: Path) -> None:
    code = "import fedquilt_server.web.cli, sys; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == "False\n"
