"""The pipe to a training process that does not read yet."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedquilt_client.worker_process import LONG_LINE, WRITER, WorkerProcess


@pytest.fixture
def process() -> Iterator[tuple[WorkerProcess, int]]:
    """A process that has not begun to read, and the end of the pipe from which it will."""
    reading, writing = os.pipe()
    theirs, its_output = os.pipe()
    os.close(its_output)
    program = cast("Any", SimpleNamespace(pid=1, returncode=None))
    with os.fdopen(theirs) as output:
        made = WorkerProcess(program, os.fdopen(writing, "w"), output)
        yield made, reading
        made.close()
        for writer in find_writers():  # it ends soon after, and the next test counts its own
            writer.join(60)


def find_writers() -> list[threading.Thread]:
    """Find the threads that write to a process."""
    return [thread for thread in threading.enumerate() if thread.name == WRITER]


def test_a_long_line_does_not_wait_for_the_process_and_lines_keep_their_order(
    process: tuple[WorkerProcess, int],
) -> None:
    made, reading = process
    lines = ["short", "x" * 64 * LONG_LINE, "cancel"]
    for line in lines:
        made.write(line)
    with os.fdopen(reading) as file:
        assert [file.readline().rstrip() for _ in lines] == lines


def test_a_process_that_dies_with_a_long_line_in_its_pipe_leaves_no_writer(process: tuple[WorkerProcess, int]) -> None:
    made, reading = process
    made.write("x" * 64 * LONG_LINE)
    (writer,) = find_writers()
    os.close(reading)
    made.close()
    writer.join(60)
    assert not writer.is_alive()
