"""The folder of a run: its lock, experiment, journal, blobs and identity."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedquilt_common.errors import RunFolderError
from fedquilt_common.experiment.experiment import Experiment, dump_experiment
from fedquilt_common.files.digests import DigestKind, kind_of
from fedquilt_common.files.disk_errors import report_run_errors
from fedquilt_common.files.durable import write_durably
from fedquilt_common.files.folders import create_folder
from fedquilt_common.files.locking import LOCK, is_locked, lock_folder
from fedquilt_server.runs import clock
from fedquilt_server.runs.begun_mark import BegunMark, check_mark, mark_path, read_mark, write_mark
from fedquilt_server.runs.blob_store import BLOBS, BlobStore
from fedquilt_server.runs.journal import Journal, peek_meta
from fedquilt_server.runs.other_experiment import CHOOSE, name_other_experiment
from fedquilt_server.runs.partition_check import PARTITION, check_partition
from fedquilt_server.status.run_file_names import EXPERIMENT, JOURNAL
from fedquilt_server.status.units import duration

log = logging.getLogger(__name__)

SIMULATION_LOCK: Final = ".simulate.lock"
"""Name of the lock that a simulation holds, which starts the coordinator, in its folder."""
_CLOCK_SECONDS: Final = 1.0
"""From here on a clock that is behind is worth a warning; less is what NTP corrects."""
_FRESH: Final = "fresh"
"""Key of the journal: "yes" until a broker has accepted the coordinator."""


def is_in_use(folder: Path) -> bool:
    """Return whether a coordinator works in a run folder, or a simulation that starts one."""
    return is_locked(folder) or is_locked(folder, SIMULATION_LOCK)


@dataclass(frozen=True)
class FolderState:
    """The content of a folder before it is opened.

    Attributes:
        begun: whether a broker has accepted the coordinator of this run.
        experiment: the resolved experiment as YAML; None in a folder without a run.
        finished: whether all results are written.
    """

    begun: bool
    experiment: str | None
    finished: bool


def inspect_folder(path: Path) -> FolderState:
    """Read the state of a folder without opening it; another process may be writing to it.

    Raises:
        RunFolderError: the journal is damaged, or has lost the run.
    """
    journal = path / JOURNAL
    run = peek_meta(journal, "run")
    if run is None:
        check_mark(path, journal, run, 0)
    begun = mark_path(path).exists() or (run is not None and peek_meta(journal, _FRESH) != "yes")
    return FolderState(begun, peek_meta(journal, "experiment"), peek_meta(journal, "finished") is not None)


def check_foreign_files(path: Path) -> None:
    """Check that a folder is new, empty or that of a run: a run would replace files with the names of its own.

    Hidden files do not count; a volume may hold ``lost+found``.

    Raises:
        RunFolderError: it holds other files, or cannot be read.
    """
    if any((path / name).exists() for name in (JOURNAL, LOCK, SIMULATION_LOCK)) or mark_path(path).exists():
        return
    with report_run_errors(path), suppress(FileNotFoundError, NotADirectoryError):
        others = sorted(one.name for one in path.iterdir() if not one.name.startswith(".") and one.name != "lost+found")
        if others:
            raise RunFolderError(
                f"{path} holds other files and no run, such as {others[0]}: choose an --out that is new or empty"
            )


def claim_folder(path: Path) -> None:
    """Create a run's folder before anything of the run is in it.

    Raises:
        RunFolderError: it holds other files, or cannot be read.
        FolderInUseError: it, or a parent, is a file.
        OSError: it cannot be written.
    """
    check_foreign_files(path)
    create_folder(path)
    (path / LOCK).touch()


class RunFolder:
    """One run on disk: created, or opened again if ``resume`` is set and the folder holds this experiment's run.

    Attributes:
        journal: events and checkpoints.
        blobs: states, patches and replies.
        run: identifier of the run.
        epoch: number of starts of the coordinator on this folder, from 1.
        started_at: Unix time in seconds at which the run was created.

    Raises:
        RunFolderError: the folder holds a run that has begun and ``resume`` is off, another experiment's run, or other
            files; or it is damaged or cannot be written.
        FolderInUseError: another process works in the folder.
    """

    def __init__(self, experiment: Experiment, path: Path, *, resume: bool) -> None:
        self.experiment = experiment
        self.path = path
        self._yaml = dump_experiment(experiment)
        _check_folder(path, self._yaml, resume=resume)  # refuses at once, without waiting for the lock
        with ExitStack() as undo:
            with report_run_errors(path):
                self._lock = undo.enter_context(lock_folder(path))
                begun = _check_folder(path, self._yaml, resume=resume)  # another process may have had the lock
                write_durably(path / EXPERIMENT, self._yaml)
            self.journal = undo.enter_context(closing(Journal(path / JOURNAL)))
            self._journal_stat = (path / JOURNAL).stat()
            check_mark(path, path / JOURNAL, self.journal.meta("run"), self._last_round())
            if not begun:
                self.journal.set_meta(_FRESH, "yes")
            self.blobs = BlobStore(path / BLOBS, self._find_digest_kind())
            self.run, self.epoch, self.started_at = self._identify()
            undo.pop_all()

    @property
    def finished(self) -> bool:
        """Whether all results are written."""
        return self.journal.meta("finished") is not None

    @property
    def closed(self) -> bool:
        """Whether the end is published and the broker retains nothing of the run."""
        return self.journal.meta("closed") is not None

    def claim(self) -> None:
        """Record that the folder belongs to this experiment; called once the experiment is known to start."""
        self.journal.set_meta("experiment", self._yaml)

    def begin(self) -> None:
        """Record that a broker has accepted the coordinator: from now on agents may have received the run."""
        write_mark(self.path, BegunMark(self.run, self.epoch, self._last_round()), durable=True)
        self.journal.set_meta(_FRESH, "no")

    def note_round(self, round: int) -> None:
        """Record outside of the journal that it has finished a round, so that a journal that loses it is noticed."""
        write_mark(self.path, BegunMark(self.run, self.epoch, round), durable=False)

    def continue_clock(self) -> float:
        """Let the clock go on from the run's last moment if it is behind; returns that moment, in Unix seconds."""
        last = self.journal.last_moment()
        if (behind := clock.continue_from(last)) > _CLOCK_SECONDS:
            log.warning(
                "%s: this machine's clock is %s behind the run, whose times therefore go on from its last moment; set "
                "the clock before the next start",
                self.path, duration(behind),
            )  # fmt: skip
        return last

    def finish(self) -> None:
        """Record that all results are written."""
        self.journal.set_meta("finished", "yes")

    def close(self) -> None:
        """Record that the end is published, and delete the samples that boards have received."""
        self.journal.set_meta("closed", "yes")
        shutil.rmtree(self.samples, ignore_errors=True)

    def check_present(self) -> None:
        """Check that the journal is still the file on which this process works.

        Raises:
            RunFolderError: somebody has removed or replaced it, and with it the run.
        """
        path = self.path / JOURNAL
        try:
            if os.path.samestat(path.stat(), self._journal_stat):
                return
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:  # a disk that fails has lost nothing; whoever writes to it names the error
            return
        raise RunFolderError(
            f"{path} was removed or replaced while the run went on, so the run is lost; start it again with a new --out"
        )

    def note_partition(self, digest: str | None) -> None:
        """Record the partition of a run that begins; check that of one that has begun.

        Raises:
            RunFolderError: the clients had other samples when the run began.
        """
        begun = self.journal.meta(_FRESH) != "yes"
        check_partition(self.path, self.journal.meta(PARTITION) if begun else None, digest)
        self.journal.set_meta(PARTITION, digest or "")

    @property
    def samples(self) -> Path:
        """Folder of the samples that boards receive."""
        return self.path / "samples"

    def release(self) -> None:
        """Close the journal and the replies, and unlock the folder for other processes."""
        self.journal.close()
        self.blobs.close()
        self._lock.close()

    def _last_round(self) -> int:
        last = self.journal.last_checkpoint()
        return last.round if last else 0

    def _find_digest_kind(self) -> DigestKind:
        last = self.journal.last_checkpoint()
        return kind_of(last.arrays) if last else "xxh3"

    def _identify(self) -> tuple[str, int, float]:
        journal = self.journal
        run = journal.meta("run") or f"{self.experiment.name[:40]}-{secrets.token_hex(4)}"
        mark = read_mark(self.path)
        epoch = max(int(journal.meta("epoch") or 0), mark.epoch if mark else 0) + 1
        started = float(journal.meta("started_at") or clock.now())
        for key, value in (("run", run), ("epoch", epoch), ("started_at", started)):
            journal.set_meta(key, str(value))
        return run, epoch, started


def _check_folder(path: Path, yaml: str, *, resume: bool) -> bool:
    """Return whether the folder's run has begun.

    Raises:
        RunFolderError: the folder is not for this start.
    """
    check_foreign_files(path)
    before = inspect_folder(path)
    if before.begun and not resume:
        raise RunFolderError(f"{path} already holds a run: resume it with --resume, or choose another --out")
    if other := name_other_experiment(path, before.experiment, yaml):
        raise RunFolderError(f"{other}: {CHOOSE}")
    return before.begun
