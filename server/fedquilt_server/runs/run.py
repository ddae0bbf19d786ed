"""One run: its folder, the tools of its experiment, and the machine as of the last checkpoint."""

from __future__ import annotations

import math
import os
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from fedquilt_common.algorithm_api import State
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.files.disk_errors import report_run_errors
from fedquilt_common.own_code import digest_own_code
from fedquilt_common.wire.chunks import Blob
from fedquilt_common.wire.messages import RunMessage
from fedquilt_server.history.history import FinishedRound, History
from fedquilt_server.history.privacy_book import privacy_rows
from fedquilt_server.lab.delivery import Delivery, prepare_delivery
from fedquilt_server.lab.run_warnings import warn_about_kind
from fedquilt_server.lab.workbench import Workbench
from fedquilt_server.round.events import Checkpoint, Command, Event, Resumed
from fedquilt_server.round.machine import Machine
from fedquilt_server.runs import clock
from fedquilt_server.runs.checkpoints import Checkpoints
from fedquilt_server.runs.evaluation import TimedScores, evaluate
from fedquilt_server.runs.journal import StoredCheckpoint
from fedquilt_server.runs.machine_setup import first_state, make_context, make_policy, make_server_half
from fedquilt_server.runs.model_cut import add_warning, note_models, read_model_cut, read_model_warnings
from fedquilt_server.runs.result_files import ResultFiles, round_result, score_fields, write_model
from fedquilt_server.runs.run_folder import RunFolder
from fedquilt_server.runs.run_results import make_result
from fedquilt_server.runs.stopwatch import Stopwatch
from fedquilt_server.runs.traffic import SocketBytes, TrafficMeter
from fedquilt_server.status.budget import BudgetMeter
from fedquilt_server.status.divergence import DivergenceDetector
from fedquilt_server.status.results import (
    FINISHED,
    RUNNING,
    Ending,
    ModelCut,
    OwnMemory,
    PrivacySpent,
    Result,
    RoundResult,
    SubModelCost,
)
from fedquilt_server.status.snapshot import BoardStatus

VALIDATE: Final = "FEDQUILT_VALIDATE"
"""Environment variable: "1" checks the machine's invariants after every event."""

OVERLAP_SECONDS: Final = 0.25
"""An evaluation that takes as long overlaps the next round. Shorter ones are not worth a second commit."""

ALIVE_SECONDS: Final = 10.0
"""After a kill, this much of the coordinator's time may count as time in which it did not run."""

_MOST_KINDS: Final = 8
"""Kinds of boards that are checked; boards name their own kind."""
KEPT_SINGLY: Final = (
    "exact_sums: with --keep-replies, replies travel one by one, and no relay adds them up, because each is kept"
)


@dataclass(frozen=True)
class WrittenState:
    """The state of a finished round that is durable on disk.

    Attributes:
        state: the state as it is read back from disk; it is evaluated, and the next round starts from it.
        model: the blob of the global model.
        extra: the digest of the algorithm's other arrays; "" if it has none.
        travelling: the global model in wire precision.
    """

    state: State
    model: Blob
    extra: str
    travelling: Blob


@dataclass(frozen=True)
class SavedRound:
    """A finished round that is durable on disk: its row of ``result.json``, and the Unix time of its checkpoint."""

    row: RoundResult
    at: float


class ActiveRun:
    """One run in a folder, created there or resumed.

    Attributes:
        folder: lock, journal, blobs, identity.
        workbench: data set, models and algorithm of the experiment.
        machine: the state machine, as of the last checkpoint.
        traffic: bytes at the coordinator's socket.
        watch: times of the open round.
        result_files: the result files of the folder.
        ending: ``RUNNING`` until the run ends, then how it ended.
        history: the run's replies and events.
        divergence: follows the rounds' results.
        budget: what the rounds have spent.
        delivery: the samples that boards receive; None if they have the data set, or the run is finished.

    Raises:
        RunFolderError: the folder holds a run that has begun and ``resume`` is off, or another experiment's run; or it
            is damaged or cannot be written.
        ExperimentError: the experiment cannot start; the folder stays free for another one.
    """

    def __init__(self, experiment: Experiment, path: Path, *, resume: bool, keep_replies: bool = False) -> None:
        self.experiment = experiment
        self.folder = RunFolder(experiment, path, resume=resume)
        with ExitStack() as undo:
            undo.callback(self.folder.release)
            self.workbench = Workbench(experiment)
            self._keeps_single_replies = keep_replies and experiment.exact_sums
            self.checkpoints = Checkpoints(self.folder, self._first_state, keep_replies=keep_replies)
            self.folder.claim()
            self._left_at = self.folder.continue_clock() if self.folder.epoch > 1 else math.inf
            self._alive_at, self._idle_memory, self._kinds = -math.inf, 0, set[str]()
            results = self.folder.journal.results()
            self._read_costs(results)
            self.machine = self._make_machine()
            self.traffic = TrafficMeter(self.folder.journal)
            self.watch = Stopwatch(self.checkpoints.last.traffic)
            self.result_files = ResultFiles(path, self.result, stale=self.machine.done > 0)
            self.ending = self._finished if self.folder.finished else RUNNING
            self.history = History(path, self._finished_rounds(), self.folder.journal.events_after(0))
            self.divergence = DivergenceDetector(None)
            self.partition_digest: str | None = None
            self.public_digest: str | None = None
            self.delivery: Delivery | None = None
            if not self.machine.finished:  # a finished run is shown without loading its data set
                self._read_divergence(results)
                self._prepare_samples()
            undo.pop_all()

    def _read_costs(self, results: Sequence[RoundResult]) -> None:
        """Take what the finished rounds have spent, and how long the last evaluation took."""
        self.budget = BudgetMeter(self.experiment.budget)
        self._evaluation_seconds = 0.0
        for row in results:
            self.budget.take(row)
            self._evaluation_seconds = row.evaluate_seconds or self._evaluation_seconds

    def _read_divergence(self, results: Sequence[RoundResult]) -> None:
        self.divergence = DivergenceDetector(self.workbench.classes)
        for row in results:
            if not row.awaits_scores:
                self.divergence.take(row)

    def _prepare_samples(self) -> None:
        """Prepare what boards check and receive of the data set, and note what it and the models are."""
        self.partition_digest = self.workbench.partition_digest()
        self.folder.note_partition(self.partition_digest)
        self.public_digest = self.workbench.public_digest()
        with report_run_errors(self.folder.samples):
            self.delivery = prepare_delivery(self.workbench, self.folder.samples)
        self.folder.journal.set_meta("note", self.workbench.note)
        note_models(self.workbench, self.folder.journal, [KEPT_SINGLY] if self._keeps_single_replies else [])

    def _finished_rounds(self) -> list[FinishedRound]:
        stored = self.folder.journal.checkpoints()
        return [(checkpoint.seq, checkpoint.at, checkpoint.result) for checkpoint in stored if checkpoint.result]

    def _first_state(self) -> State:
        return first_state(self.workbench, self.folder.path)

    def _make_machine(self) -> Machine:
        algorithm, state, load = (
            make_server_half(self.workbench, self.folder.path, grouped=not self._keeps_single_replies),
            self.checkpoints.read(),
            self.folder.blobs.load_replies,
        )
        done, validates = self.checkpoints.last.round, os.environ.get(VALIDATE, "") == "1"
        policy, context_for = make_policy(self.experiment), partial(make_context, self.workbench)
        policy = policy.end_after(done) if self.budget.reason or self.folder.finished else policy
        return Machine(algorithm, policy, state, context_for, load, done, validates=validates)

    @property
    def end_reason(self) -> str:
        """Why a finished run ended."""
        return self._early_end or "all rounds are done"

    @property
    def _early_end(self) -> str:
        """Why a finished run ended before its last round; empty if it did not."""
        is_early = self.machine.done < self.experiment.rounds
        return self.budget.reason or (self.machine.policy.no_budget if is_early else "")

    @property
    def _finished(self) -> Ending:
        return FINISHED.model_copy(update={"reason": self._early_end})

    @property
    def model_cut(self) -> ModelCut | None:
        """How the model is cut; None without sub-models."""
        return read_model_cut(self.folder.journal)

    @property
    def privacy(self) -> list[PrivacySpent]:
        """What each client with differential privacy has spent, and whether it declines."""
        return privacy_rows(self.experiment, self.history.privacy)

    @property
    def message(self) -> RunMessage:
        """The run's message, which agents need to take part."""
        return RunMessage(
            run=self.folder.run,
            experiment=self.experiment.model_dump(mode="json"),
            partition=self.partition_digest,
            public=self.public_digest,
            data=self.delivery.message if self.delivery is not None else None,
            code=digest_own_code(self.experiment),
        )

    @property
    def published_model(self) -> Blob:
        """The global model of the last checkpoint in wire precision."""
        checkpoints = self.checkpoints
        return checkpoints.published_model(checkpoints.read(), self.folder.blobs.blob(checkpoints.last.arrays))

    def watch_socket(self, socket: SocketBytes) -> None:
        """Count the bytes of ``socket`` from now on, and record the memory of this process as its idle memory."""
        self.traffic.watch(socket)
        self._idle_memory = psutil.Process().memory_info().rss

    # -- events --------------------------------------------------------------------------------

    def append_all(self, events: Sequence[Event]) -> list[tuple[int, Event]]:
        """Commit events to the journal together; returns them with their numbers."""
        return list(zip(self.folder.journal.append_all(events, self.traffic.read()), events, strict=True))

    def resumed_event(self) -> Resumed:
        """Return the event with which this process resumes the run of an earlier one."""
        now = clock.now()
        return Resumed(now, away=self._take_away(now))

    def _take_away(self, now: float) -> float:
        """Return the seconds before this process in which none ran; 0 once an event or a round has them."""
        left_at, self._left_at = self._left_at, math.inf
        return max(0.0, now - left_at)

    def note_alive(self, now: float, *, force: bool = False) -> None:
        """Commit that the coordinator runs now, at most once in ``ALIVE_SECONDS`` unless ``force`` is set.

        Raises:
            RunFolderError: the disk is full or read-only, or somebody has removed the run folder.
        """
        self.folder.check_present()
        if force or now >= self._alive_at + ALIVE_SECONDS:
            self._alive_at = now
            self.folder.journal.note_alive(now)

    def restore(self) -> list[Command]:
        """Restore the machine from the last checkpoint; returns the commands that it gave then."""
        last = self.checkpoints.last
        return self.machine.restore(last.machine, last.at) if last.machine else []

    def events_since_checkpoint(self) -> Iterator[tuple[int, Event]]:
        """The events that a recovery handles again, oldest first, with their sequence numbers."""
        return self.folder.journal.events_after(self.checkpoints.last.seq)

    # -- rounds --------------------------------------------------------------------------------

    def write_state(self, state: State, published: Blob | None = None) -> WrittenState:
        """Write a finished round's state durably.

        Args:
            published: the blob in which the state's arrays were published; None if they were not.
        """
        model, extra = self.checkpoints.write(state, published)
        travelling = published or self.checkpoints.published_model(state, model)
        return WrittenState(self.checkpoints.read_back(model.digest, extra), model, extra, travelling)

    def needs_evaluation(self, done: Checkpoint) -> bool:
        """Whether the coordinator evaluates the round, because the clients have not measured any scores."""
        return not done.state.scores and self.workbench.is_evaluated(done.round)

    def may_overlap(self, done: Checkpoint) -> bool:
        """Whether the next round may open before this one is evaluated.

        The first evaluation shows whether that is worth it. The decision changes no score.
        """
        is_last = done.round >= self.machine.policy.rounds
        return self._evaluation_seconds >= OVERLAP_SECONDS and not is_last and self.experiment.on_divergence != "stop"

    def save_round(
        self,
        seq: int,
        done: Checkpoint,
        written: WrittenState,
        scores: Mapping[str, float] | None,
        energy: Mapping[str, float | bool | None] | None = None,
    ) -> SavedRound:
        """Commit a finished round to the journal.

        Args:
            seq: sequence number of the last event of the round.
            done: the round's checkpoint.
            written: its state.
            scores: empty if the round is not evaluated; None if ``add_scores`` follows.
            energy: the fields of the row whose names begin with ``joules``.
        """
        traffic, now = self.traffic.read(), clock.now()
        row = round_result(done, self.watch, now, traffic, written.travelling.size, scores)
        away = min(row.seconds, row.away_seconds + self._take_away(now))  # a recovery may end a round that was complete
        row = row.model_copy(
            update={**(energy or {}), "away_seconds": away, "sub_models": self._sub_models(done.state)}
        )
        self.budget.take(row)
        if self.budget.reason:
            self.machine.policy = self.machine.policy.end_after(done.round)
            if scores is None or (not scores and self.workbench.coordinator_evaluates):
                row = _add_scores(row, evaluate(self.machine.evaluation_of(written.state, done.round)))
        self._evaluation_seconds = row.evaluate_seconds or self._evaluation_seconds
        stored = StoredCheckpoint(
            done.round, seq, written.model.digest, written.extra, now, done.snapshot, row, traffic
        )
        self.checkpoints.save(stored)
        self.folder.note_round(done.round)
        self.watch = Stopwatch(traffic)
        self.history.count_parts(done.state.parts)
        self.history.close_round(row, now)
        if warning := self.history.warning:
            add_warning(self.folder.journal, warning)  # a history that is read again holds the latest events only
        return SavedRound(row, now)

    def add_scores(self, found: TimedScores) -> RoundResult:
        """Commit the scores of the last finished round, which were measured after its checkpoint; returns its row."""
        last = self.checkpoints.last
        assert last.result is not None  # noqa: S101 - a round is finished
        row = _add_scores(last.result, found)
        self._evaluation_seconds = row.evaluate_seconds
        self.checkpoints.save(replace(last, result=row))
        return row

    def _sub_models(self, state: State) -> dict[str, SubModelCost]:
        costs = self.workbench.sub_model_costs(state) if state.parts or state.apart else {}
        return {level: SubModelCost(params=cost.params, flops=cost.flops) for level, cost in costs.items()}

    def note_kind(self, kind: str) -> None:
        """Warn of a kind of board that the algorithm does not list, once in a run."""
        if kind not in self._kinds and len(self._kinds) < _MOST_KINDS:
            self._kinds.add(kind)
            if warning := warn_about_kind(self.workbench, kind):
                add_warning(self.folder.journal, warning)

    def finish(self, boards: Sequence[BoardStatus]) -> None:
        """Write the final model and the last result files, and record that the run is finished."""
        write_model(self.folder.path, self.folder.blobs.blob(self.checkpoints.last.arrays))
        self.ending = self._finished
        text = self.end_reason[0].upper() + self.end_reason[1:]
        self.history.add("finished", clock.now(), text, round=self.machine.done)
        self.history.flush(force=True)
        self.result_files.write(boards)
        self.folder.finish()

    def end(self, ending: Ending, boards: Sequence[BoardStatus]) -> None:
        """Write into ``result.json`` why the run ended before its last round. A finished run stays finished.

        Raises:
            RunFolderError: the disk is full or read-only.
        """
        if self.ending.status != "finished":
            self.ending = ending
            if ending.status in ("failed", "stopped"):
                self.history.add(ending.status, clock.now(), ending.reason)
            self.history.flush(force=True)
            self.result_files.write(boards)

    def result(self) -> Result:
        """Return the content of ``result.json`` after the finished rounds."""
        warnings = read_model_warnings(self.folder.journal)
        warnings += [self.divergence.warning] if self.divergence.warning else []
        memory = OwnMemory(idle=self._idle_memory, peak=_peak_memory())
        return make_result(self.folder, self.checkpoints.last, self.history, self.ending, warnings, memory)


def _add_scores(row: RoundResult, found: TimedScores) -> RoundResult:
    """Add scores that were measured after the round's end."""
    times = {"evaluate_seconds": found.seconds, "evaluated_afterwards": True}
    return row.model_copy(update={**score_fields(found.scores), **times})


def _peak_memory() -> int:
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else highest * 1024  # Linux counts in KiB
