"""A file in the run folder with which ``simulate`` makes its coordinator end a run that cannot go on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from fedquilt_common.files.durable import delete_with_draft, write_atomically
from fedquilt_server.status.results import Ending

STOP_REQUEST: Final = "stop.json"
_POLL_SECONDS: Final = 0.2


def request_stop(folder: Path, ending: Ending) -> None:
    """Make the coordinator that works in ``folder`` end its run in this way."""
    write_atomically(folder / STOP_REQUEST, ending.model_dump_json() + "\n")


class StopRequest:
    """Watches for a request in a run folder; a request from before is dropped.

    Args:
        folder: the run folder.
        clock: monotonic seconds.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = folder / STOP_REQUEST
        self._clock = clock
        self._next_look = 0.0
        self.ending: Ending | None = None
        self.drop()

    def __call__(self) -> bool:
        """Whether the run is to end; the file is read a few times a second at most."""
        if self.ending is None and self._clock() >= self._next_look:
            self._next_look = self._clock() + _POLL_SECONDS
            self.ending = self._read()
        return self.ending is not None

    def _read(self) -> Ending | None:
        with contextlib.suppress(OSError, ValidationError):
            return Ending.model_validate_json(self._path.read_bytes())
        return None

    def drop(self) -> None:
        """Delete the file."""
        delete_with_draft(self._path)
