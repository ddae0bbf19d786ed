"""Runs a program in a real pseudo-terminal of a given size and shows what a person sees on its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyte

PATIENCE = 60.0
COLOURS = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


class Screen:
    """A program's terminal.

    Attributes:
        process: the program.
        raw: every byte that it has written to the terminal.
    """

    def __init__(self, process: subprocess.Popen[Any], ours: int, columns: int, rows: int) -> None:
        self.process, self.raw, self._ours = process, b"", ours
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)

    @property
    def lines(self) -> list[str]:
        """The lines of the screen, without those below the last text."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip().split("\n")

    @property
    def text(self) -> str:
        """The whole screen."""
        return "\n".join(self.lines)

    def read(self, seconds: float = 0.1) -> None:
        """Take what arrives within ``seconds``."""
        if select.select([self._ours], [], [], seconds)[0]:
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # the program has ended
                return
            self.raw += data
            self._stream.feed(data)

    def wait_for(self, seen: Callable[[str], object]) -> None:
        """Read until the screen is as ``seen`` expects."""
        end = time.monotonic() + PATIENCE
        while not seen(self.text):
            assert time.monotonic() < end, self.text
            self.read()

    def press(self, keys: bytes) -> None:
        """Type keys; ``\\x03`` is Ctrl-C."""
        os.write(self._ours, keys)

    def finish(self) -> int:
        """Read until the program ends; returns its exit code."""
        end = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < end, self.text
            self.read()
        while select.select([self._ours], [], [], 0)[0]:
            before = len(self.raw)
            self.read(0)
            if len(self.raw) == before:
                break
        return self.process.returncode


@contextmanager
def on_screen(
    module: str, *arguments: str, columns: int, rows: int, stdin: int | None = None, **environment: str
) -> Iterator[Screen]:
    """Start a module with its own terminal; ends it with the block.

    It is no fork: rich decides at its import whether it writes to a terminal.

    Args:
        module: name of the module.
        *arguments: arguments of the program.
        columns: width of the terminal.
        rows: height of the terminal.
        stdin: standard input, such as ``subprocess.PIPE``; None for the terminal.
        **environment: variables to set.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def enter() -> None:
        os.setsid()
        os.close(os.open(os.ttyname(1), os.O_RDWR))  # the first terminal that it opens becomes its own

    inherited = {name: value for name, value in os.environ.items() if name not in COLOURS}
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", module, *arguments],
        stdin=theirs if stdin is None else stdin, stdout=theirs, stderr=theirs,
        env={**inherited, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **environment},
        preexec_fn=enter,
    )  # fmt: skip
    os.close(theirs)
    try:
        yield Screen(process, ours, columns, rows)
    finally:
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        os.close(ours)
