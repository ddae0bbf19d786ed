"""A run's folder: experiment.yaml, journal.sqlite, blobs/, what ``recorder`` writes; recovery and checkpoints."""

from __future__ import annotations

import resource
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import psutil

from fedquilt_server.runs import clock
from fedquilt_common.wire.chunks import Blob
from fedquilt_common.files.durable import write_durably
from fedquilt_common.errors import RunFolderError
from fedquilt_common.experiment.experiment import Experiment, dump_experiment
from fedquilt_common.files.locking import lock_folder
from fedquilt_common.wire.messages import RunMessage
from fedquilt_common.types import ClientId, Profile
from fedquilt_common.algorithm_api import ServerContext, State
from fedquilt_server.round.events import Checkpoint, Command, Event
from fedquilt_server.round.policy import Policy
from fedquilt_server.runs.journal import Journal, StoredCheckpoint, Traffic, peek_meta
from fedquilt_server.lab.context import RoundContext
from fedquilt_server.round.machine import Machine
from fedquilt_server.runs.result_files import (
    Stopwatch,
    final_row,
    round_result,
    write_model,
    write_results,
)
from fedquilt_server.status.results import OwnMemory, Result, RoundResult
from fedquilt_server.status.snapshot import BoardStatus
from fedquilt_server.runs.blob_store import BlobStore
from fedquilt_server.lab.workbench import Workbench

_ARRAYS_OF_NOTHING = ""
_FRESH = "fresh"
"""Key of the journal: "yes" until a broker has let the coordinator in."""


@dataclass(frozen=True)
class FolderState:
    """What a folder holds before it is opened. ``begun``: a broker has heard of the run."""

    begun: bool
    experiment: str | None
    finished: bool


@dataclass(frozen=True)
class Kept:
    """A durable round: its row, its state read back from disk, the blob of its arrays as sent, and since when."""

    row: RoundResult
    state: State
    arrays: Blob
    at: float


def look_at(folder: Path) -> FolderState:
    """Whether a folder holds a run, of which experiment (YAML), and whether it is finished."""
    journal = folder / "journal.sqlite"
    begun = journal.exists() and peek_meta(journal, _FRESH) != "yes"
    return FolderState(begun, peek_meta(journal, "experiment"), peek_meta(journal, "finished") is not None)


class Run:
    """One run in ``folder``: created there, or taken up again when ``resume`` and there is one.

    Raises:
        RunFolderError: when the folder holds a run that has begun and ``resume`` is off, or one of another experiment.
    """

    def __init__(self, experiment: Experiment, folder: Path, *, resume: bool) -> None:
        self.experiment = experiment
        self.folder = folder
        before = look_at(folder)
        if before.begun and not resume:
            raise RunFolderError(f"{folder} already holds a run: resume it with --resume, or choose another --out")
        text = dump_experiment(experiment)
        if before.experiment is not None and before.experiment != text:
            raise RunFolderError(f"{folder} holds a run of another experiment: choose another --out")
        with ExitStack() as undo:
            self._lock = undo.enter_context(lock_folder(folder))
            write_durably(folder / "experiment.yaml", text)
            self.journal = undo.enter_context(closing(Journal(folder / "journal.sqlite")))
            if not before.begun:
                self.journal.set_meta(_FRESH, "yes")
            self.store = BlobStore(folder / "blobs")
            self.workbench = Workbench(experiment)
            self.id, self.epoch, self.started_at = self._identity()
            self._base = self.journal.traffic()
            self._socket: Callable[[], tuple[int, int]] = lambda: (0, 0)
            self._idle_memory = 0
            self._last = self._first_checkpoint()
            self.journal.set_meta("experiment", text)  # not before: an experiment that cannot begin takes no folder
            self.machine = self._make_machine()
            self.watch = Stopwatch(self._last.traffic)
            running = not self.machine.finished
            self.partition_digest = self.workbench.partition_digest() if running else None
            self.public_digest = self.workbench.public_digest() if running else None
            if running:  # the data are at hand now; whoever looks at a finished run need not have them
                self.journal.set_meta("note", self.workbench.note)
            undo.pop_all()

    @property
    def finished(self) -> bool:
        """Whether the results are all written."""
        return self.journal.meta("finished") is not None

    @property
    def closed(self) -> bool:
        """Whether the broker has been told of the end and holds nothing of the run any more."""
        return self.journal.meta("closed") is not None

    def begin(self) -> None:
        """A broker has let us in: from now on others may know of the run."""
        self.journal.set_meta(_FRESH, "no")

    def close(self) -> None:
        """The broker has been told."""
        self.journal.set_meta("closed", "yes")

    @property
    def state_blob(self) -> Blob:
        """The arrays of the last checkpoint as they are sent."""
        return self._as_sent(self._state(), self.store.blob(self._last.arrays))

    def release(self) -> None:
        """Let another process work in the folder."""
        self.journal.close()
        self._lock.close()

    def _identity(self) -> tuple[str, int, float]:
        journal = self.journal
        run_id = journal.meta("run") or f"{self.experiment.name[:40]}-{secrets.token_hex(4)}"
        epoch = int(journal.meta("epoch") or 0) + 1
        started = float(journal.meta("started_at") or clock.now())
        for key, value in (("run", run_id), ("epoch", epoch), ("started_at", started)):
            journal.set_meta(key, str(value))
        return run_id, epoch, started

    def _first_checkpoint(self) -> StoredCheckpoint:
        """The newest checkpoint; in a new folder, that of round 0 with the initial model."""
        last = self.journal.last_checkpoint()
        if last is not None:
            return last
        self.workbench.check()
        algorithm = self.workbench.algorithm()
        state = algorithm.init(self.workbench.first_model(), self._lab(0, {}))
        arrays, extra = self._put(state)
        start = StoredCheckpoint(0, 0, arrays.digest, extra, clock.now(), "", None, Traffic())
        self.journal.save(start)
        return start

    def _put(self, state: State, sent: Blob | None = None) -> tuple[Blob, str]:
        extra = self.store.put(state.extra).digest if len(state.extra) else _ARRAYS_OF_NOTHING
        whole = sent if self.experiment.wire.down == "fp32" else None
        return whole or self.store.put(state.arrays), extra

    def _make_machine(self) -> Machine:
        part = self.experiment.participation
        policy = Policy(
            self.experiment.rounds,
            self.experiment.data.clients,
            part.quorum,
            part.deadline / self.experiment.speedup,
            part.shortfall,
        )  # fmt: skip
        algorithm = self.workbench.algorithm()
        return Machine(algorithm, policy, self._state(), self._lab, self.store.reply, done=self._last.round)

    def _lab(self, number: int, fleet: Mapping[ClientId, Profile]) -> ServerContext:
        experiment = self.experiment
        return RoundContext(
            number,
            fleet,
            experiment.seed,
            experiment.rounds,
            experiment.data.clients,
            experiment.participation.per_round,
            self.workbench,
            self._is_evaluated(number) and self.workbench.clients_evaluate,
        )

    def about(self) -> RunMessage:
        """What boards must know of the run."""
        experiment = self.experiment.model_dump(mode="json")
        return RunMessage(
            run=self.id, experiment=experiment, partition=self.partition_digest, public=self.public_digest
        )  # fmt: skip

    # -- traffic -------------------------------------------------------------------------------

    def watch_traffic(self, socket: Callable[[], tuple[int, int]]) -> None:
        """Count from here on with ``socket``'s bytes (sent, received)."""
        self._socket = socket
        self._idle_memory = psutil.Process().memory_info().rss

    def traffic(self) -> Traffic:
        """Bytes since the run began, restarts included."""
        down, up = self._socket()
        return Traffic(self._base.down + down, self._base.up + up)

    def note_traffic(self) -> None:
        """Remember the bytes so far, which no event may follow for a long time."""
        self.journal.note_traffic(self.traffic())

    # -- journal -------------------------------------------------------------------------------

    def append(self, event: Event) -> int:
        return self.journal.append(event, self.traffic())

    def restore(self) -> list[Command]:
        """Put the machine back to where it was after the last checkpoint."""
        return self.machine.restore(self._last.machine, self._last.at) if self._last.machine else []

    def missed(self) -> Iterator[tuple[int, Event]]:
        """The events since the last checkpoint, to be handled again."""
        return self.journal.events_after(self._last.seq)

    def checkpoint(
        self, seq: int, done: Checkpoint, published: set[str], boards: Sequence[BoardStatus], sent: Blob | None = None
    ) -> Kept:
        """Keep a finished round: evaluate, state to disk, journal, result files; then let go of its replies.

        ``sent``: the state's arrays, if they have been sent to be evaluated and so lie on disk already.
        """
        started = time.perf_counter()
        scores = self._scores(done)
        self.watch.evaluating = time.perf_counter() - started
        arrays, extra = self._put(done.state, sent)
        wired = sent or self._as_sent(done.state, arrays)
        traffic, now = self.traffic(), clock.now()
        row = round_result(done.round, done.tally, self.watch, now, traffic, wired.size, scores, done.state.report)
        self._last = StoredCheckpoint(done.round, seq, arrays.digest, extra, now, done.snapshot, row, traffic)
        self.journal.save(self._last)
        self.store.clean({arrays.digest, wired.digest, extra, *published})
        self.watch = Stopwatch(traffic)
        self._write(boards)
        return Kept(row, self._state(), wired, now)

    def _scores(self, done: Checkpoint) -> Mapping[str, float]:
        """What the clients have measured, or else the coordinator does."""
        if done.state.scores or not self._is_evaluated(done.round):
            return done.state.scores
        return self.machine.evaluate(done.state)

    def _is_evaluated(self, round: int) -> bool:
        due = round % self.experiment.evaluate_every == 0 or round == self.experiment.rounds
        return due and self.workbench.learns

    def _as_sent(self, state: State, arrays: Blob) -> Blob:
        """The global model as it goes over the wire; in fp32 that is the checkpoint's own blob."""
        down = self.experiment.wire.down
        return arrays if down == "fp32" else self.store.put(state.arrays, down)

    def _state(self) -> State:
        extra = self.store.arrays(self._last.extra) if self._last.extra != _ARRAYS_OF_NOTHING else {}
        return State(self.store.arrays(self._last.arrays), extra)

    def finish(self, boards: Sequence[BoardStatus]) -> None:
        """Write the last files and say that the run is finished."""
        write_model(self.folder, self.store.path(self._last.arrays))
        self._write(boards)
        self.journal.set_meta("finished", "yes")

    def result(self) -> Result:
        """``result.json`` as it stands."""
        rounds = self.journal.results()
        size = rounds[-1].model_bytes if rounds else self.store.blob(self._last.arrays).size
        return Result(
            name=self.experiment.name,
            run=self.id,
            algorithm=self.experiment.algorithm.name,
            dataset=self.experiment.data.set,
            note=self.journal.meta("note") or "",
            seed=self.experiment.seed,
            rounds=rounds,
            coordinator_memory=OwnMemory(idle=self._idle_memory, peak=_peak_memory()),
            final=final_row(rounds, size, self._last.arrays),
        )

    def _write(self, boards: Sequence[BoardStatus]) -> None:
        write_results(self.folder, self.result(), boards)


def _peak_memory() -> int:
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else highest * 1024  # Linux counts in KiB
