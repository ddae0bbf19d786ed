"""Keeps the finished parts of a long measurement, so that the same command continues after an interruption."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from provenance import machine

from fedquilt_common.files.locking import lock_folder

Line = dict[str, Any]


class Progress:
    """Finished parts of a measurement of one commit; its folder is locked until the end of the ``with`` block.

    Args:
        file: one JSON line for each part. Lines of another commit are dropped.
        version: the commit that is measured.

    Raises:
        FolderInUseError: another measurement uses the file's folder: both would be slower.
    """

    def __init__(self, file: Path, version: str) -> None:
        self._file, self._version = file, version
        self._lock = lock_folder(file.parent, wait=0)
        self.lines = [line for line in read_lines(file) if line["commit"] == version]
        file.write_text("".join(json.dumps(line) + "\n" for line in self.lines))

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def part(self, key: Line, measure: Callable[[], Line]) -> Line:
        """Return a part's line: the one that is there, or a new one.

        Args:
            key: names the part.
            measure: returns what the line has besides the key, the time, the commit and the machine.
        """
        for line in self.lines:
            if key.items() <= line.items():
                return line
        at, before = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), machine()
        line = {**key, "at": at, "commit": self._version, "machine": before, **measure()}
        self.lines.append(line)
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return line

    def finish(self, results: Path, kept: Sequence[Line] = ()) -> None:
        """Replace the results by ``kept`` lines and the finished parts, and forget the progress."""
        results.parent.mkdir(exist_ok=True)
        results.write_text("".join(json.dumps(line) + "\n" for line in [*kept, *self.lines]))
        self.forget()

    def forget(self) -> None:
        """Forget the progress: the next measurement begins anew."""
        self._file.unlink()


def read_lines(file: Path) -> list[Line]:
    """Read a file of JSON lines; a missing file has none."""
    return [json.loads(text) for text in file.read_text().splitlines()] if file.exists() else []


def end_on_signals() -> None:
    """End the measurement on SIGTERM and SIGINT by an exception, so that it stops the processes it has started."""
    for number in (signal.SIGTERM, signal.SIGINT):  # a shell ignores SIGINT in what it starts in the background
        signal.signal(number, signal.default_int_handler)
