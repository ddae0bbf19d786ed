"""Writes results as TensorBoard event files. Only this module imports the package."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from fedquilt_server.status.results import RunStatus

PREFIX: Final = "events.out.tfevents"


class TensorBoardSink:
    """Event files of one run. Each start of a run adds a file; a round is one record, so it is whole or missing.

    Args:
        folder: the run's folder below TensorBoard's log folder.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.last_round = read_last_step(folder)
        name = f"{PREFIX}.{time.time_ns():020d}.{socket.gethostname()}.{os.getpid()}"
        self._file = RecordWriter((folder / name).open("wb"))
        self._add(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, round: int, scalars: Mapping[str, float]) -> None:
        """Append the numbers of a round.

        Raises:
            OSError: the disk is full.
        """
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._add(Event(wall_time=time.time(), step=round, summary=Summary(value=values)))

    def end(self, status: RunStatus) -> None:
        """Close the file; TensorBoard holds no status."""
        self._file.close()

    def _add(self, event: Event) -> None:
        self._file.write(event.SerializeToString())
        self._file.flush()


def read_last_step(folder: Path) -> int:
    """Return the last round in the event files of a folder; a record that a crash has cut does not count."""
    files = sorted(folder.glob(f"{PREFIX}.*"))
    steps = [event.step for file in files for event in EventFileLoader(str(file)).Load() if event.HasField("summary")]
    return max(steps, default=0)
