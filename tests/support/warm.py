"""Functions and commands in processes of their own, forked from one that has loaded torch: loading it takes seconds."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE = 60.0
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["fedquilt_common.training.learner", "fedquilt_server.coordinator.coordinator"])


def fedquilt(*arguments: str, where: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command in the folder ``where``; ``before`` is executed first in its process."""
    with tempfile.TemporaryDirectory() as folder:
        streams = Path(folder, "stdout"), Path(folder, "stderr")
        process = PROCESSES.Process(target=_command, args=(arguments, where, before, streams))
        process.start()
        process.join(PATIENCE)
        process.kill()  # no effect on one that has ended
        process.join()
        code = process.exitcode or 0
        assert code != -signal.SIGKILL, f"fedquilt {' '.join(arguments)} has not ended after {PATIENCE} s"
        return subprocess.CompletedProcess(arguments, code, *(path.read_text() for path in streams))


def _command(arguments: tuple[str, ...], where: Path, before: str, streams: tuple[Path, Path]) -> None:
    os.chdir(where)
    for stream, path in enumerate(streams, 1):
        with path.open("wb") as file:
            os.dup2(file.fileno(), stream)
    warnings.simplefilter("error")
    sys.argv = ["fedquilt", *arguments]
    exec(before, {})  # noqa: S102 - a test's own words
    from fedquilt_common.cli import main

    main()


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns in a process of its own."""
    with PROCESSES.Pool(1) as pool:
        return pool.apply(function, arguments)
