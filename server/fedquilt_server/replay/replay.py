"""Opens a recorded run and a work folder, and replays the one in the other."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.digests import kind_of
from fedquilt_common.files.locking import lock_folder
from fedquilt_server.replay.engine import OnRound, Replay
from fedquilt_server.replay.publisher import open_downlink
from fedquilt_server.replay.recording import Recording, read_recording, read_run_id
from fedquilt_server.replay.report import ReplayReport
from fedquilt_server.replay.training import TrainingPool
from fedquilt_server.replay.work_folder import ReplayOptions, ReplayProgress, read_progress, write_progress
from fedquilt_server.runs.blob_store import BLOBS, BlobStore
from fedquilt_server.status.run_file_names import JOURNAL


@dataclass(frozen=True)
class ReplaySettings:
    """How a replay works.

    Attributes:
        workers: training processes.
        options: what is computed and compared.
        should_stop: called several times a second; once it returns True, the replay stops.
    """

    workers: int = 1
    options: ReplayOptions = field(default_factory=ReplayOptions)
    should_stop: Callable[[], bool] = lambda: False


def replay_run(
    folder: Path, work: Path, settings: ReplaySettings, on_start: Callable[[Recording, int], None], on_round: OnRound
) -> ReplayReport:
    """Replay the run in ``folder``.

    Args:
        folder: the run folder; it is not changed.
        work: the work folder; a replay of the same run that was interrupted in it continues.
        settings: how to replay.
        on_start: called with the recording and the number of rounds that are replayed already.
        on_round: called with each round that is replayed.

    Raises:
        RunFolderError: the run folder holds no run; the work folder holds something else, or a replay with other
            options; or a kept reply was deleted while the run went on.
        RunFailedError: a reply cannot be made again here.
        ReplayStoppedError: a person has stopped the replay.
    """
    if os.path.realpath(work) == os.path.realpath(folder):  # Path.resolve fails on a link to itself
        raise RunFolderError(f"--out {work} is the run itself: choose another folder for the replay")
    with lock_folder(work):
        journal = work / JOURNAL
        progress = _open_progress(work, read_run_id(folder), settings.options)
        recording = read_recording(folder, journal)
        on_start(recording, len(progress.rounds))
        store = BlobStore(work / BLOBS, kind_of(recording.start.arrays))
        with (
            closing(TrainingPool(settings.workers, settings.options.threads, settings.should_stop)) as pool,
            open_downlink(recording.experiment, store, journal) as downlink,
        ):
            return Replay(recording, work, progress, pool, downlink, store, settings.options, on_round).run()


def _open_progress(work: Path, run: str, options: ReplayOptions) -> ReplayProgress:
    progress = read_progress(work, run, options)
    if progress is None:
        progress = ReplayProgress(run=run, options=options, arrays="", extra="", rounds=[])
        write_progress(work, progress)
    return progress
