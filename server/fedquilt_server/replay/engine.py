"""Replays a run: hands the journal's events to the machine again, and makes the replies that it asks for.

The machine is the coordinator's. The state before round 1 follows from the seed; each later round starts from the state
that the replay has computed. So equal states after each round mean that the whole run is repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedquilt_common.algorithm_api import State
from fedquilt_common.errors import PayloadError
from fedquilt_common.privacy.noise_key import read_key
from fedquilt_common.types import ExchangeId
from fedquilt_common.wire.chunks import Blob
from fedquilt_common.wire.messages import RunMessage
from fedquilt_server.coordinator.downlink import Downlink
from fedquilt_server.coordinator.publications import plan_publications
from fedquilt_server.lab.workbench import Workbench
from fedquilt_server.replay.memories import Memories
from fedquilt_server.replay.recording import RecordedRound, Recording
from fedquilt_server.replay.replies import OpenExchange, ReplyMaker
from fedquilt_server.replay.report import ReplayedRound, ReplayReport
from fedquilt_server.replay.training import TrainingPool
from fedquilt_server.replay.work_folder import (
    ReplayOptions,
    ReplayProgress,
    load_memories,
    store_memories,
    write_progress,
)
from fedquilt_server.round.events import Checkpoint, Command, Event, Replied, Send
from fedquilt_server.round.machine import Machine
from fedquilt_server.round.snapshots import MachineSnapshot
from fedquilt_server.runs.blob_store import BlobStore
from fedquilt_server.runs.journal import StoredCheckpoint, peek_meta
from fedquilt_server.runs.machine_setup import first_state, make_context, make_policy, make_server_half
from fedquilt_server.runs.partition_check import PARTITION, check_partition
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.run_file_names import JOURNAL

OnRound = Callable[[ReplayedRound], None]
"""Called with each round that is replayed."""


class _DifferenceError(Exception):
    """The replay differs from the recorded run; the text names the place and the difference."""


@dataclass(frozen=True)
class StoredState:
    """Digests of a state's arrays; ``extra`` is empty if the algorithm has no other arrays."""

    arrays: str
    extra: str


class Replay:
    """The replay of one run.

    Args:
        recording: the recorded run.
        folder: the work folder.
        progress: the rounds that an earlier replay in the folder has finished.
        pool: trains the replies.
        downlink: writes what each exchange publishes.
        store: the blobs of the work folder.
        options: what is computed and compared.
        on_round: called with each round that is replayed.
    """

    def __init__(
        self,
        recording: Recording,
        folder: Path,
        progress: ReplayProgress,
        pool: TrainingPool,
        downlink: Downlink,
        store: BlobStore,
        options: ReplayOptions,
        on_round: OnRound = lambda _: None,
    ) -> None:
        self._recording, self._folder, self._downlink, self._store = recording, folder, downlink, store
        self._options, self._on_round = options, on_round
        self._rows = list(progress.rounds)
        self._bench = Workbench(recording.experiment)
        memories = folder / "memories"
        self._memories = Memories(memories, load_memories(memories, progress))
        kept = frozenset[int]() if options.retrain else recording.kept_clients
        self._maker = ReplyMaker(recording, self._run_message(), folder, self._memories, pool, kept)
        self._stored = StoredState(progress.arrays, progress.extra)
        self._wire: Blob | None = None
        self._model: str | None = None
        self._exchanges: dict[ExchangeId, OpenExchange] = {}
        self._saved: set[str] = set()
        self._next: list[Command] = []
        self._row = ReplayedRound(round=0)

    def _run_message(self) -> RunMessage:
        experiment, partition = self._recording.experiment, self._bench.partition_digest()
        folder = self._recording.folder
        check_partition(folder, peek_meta(folder / JOURNAL, PARTITION), partition)
        return RunMessage(
            run=self._recording.run,
            experiment=experiment.model_dump(mode="json"),
            partition=partition,
            public=self._bench.public_digest(),
        )

    def run(self) -> ReplayReport:
        """Replay the run as far as its journal goes, or up to the first difference.

        Raises:
            RunFailedError: a reply cannot be made again here.
            RunFolderError: a kept reply was deleted while the run went on.
            ReplayStoppedError: a person has stopped the replay.
        """
        difference = None
        try:
            self._start()
            for part in self._recording.rounds[len(self._rows) :]:
                self._play(part)
            self._compare_model()
        except _DifferenceError as error:
            difference = str(error)
        except (OSError, PayloadError):
            self._maker.check_kept()
            raise
        return self._report(difference)

    # -- start and end -------------------------------------------------------------------------

    def _start(self) -> None:
        """Make the machine: in the first state, or after the last round that is replayed."""
        if self._stored.arrays:
            self._check_blobs()
        else:
            self._write_state(first_state(self._bench, self._recording.folder))
        experiment, done = self._recording.experiment, len(self._rows)
        context_for = partial(make_context, self._bench)
        algorithm = make_server_half(self._bench, self._recording.folder, read_key)
        policy = make_policy(experiment)
        self._machine = Machine(algorithm, policy, self._read_state(), context_for, self._maker.load, done)
        if not done:
            self._compare_state("the state before round 1", self._recording.start)
        else:
            last = self._closing(done)
            self._next = self._machine.restore(last.machine, last.at)

    def _check_blobs(self) -> None:
        """Check the state from which an earlier replay continues.

        Raises:
            RunFolderError: a file is damaged or missing.
        """
        for digest in {self._stored.arrays, self._stored.extra} - {""}:
            self._store.blob(digest)

    def _closing(self, round: int) -> StoredCheckpoint:
        stored = self._recording.rounds[round - 1].checkpoint
        assert stored is not None  # noqa: S101 - progress is written at recorded checkpoints only
        return stored

    def _compare_model(self) -> None:
        """Compare the final model; a running run may write it after its journal was copied."""
        self._model = self._recording.read_model_digest() if self._machine.finished else None
        found = self._sha256()
        if self._model is not None and self._model != found:
            raise _DifferenceError(f"the global model has the SHA-256 {found} instead of {self._model}")

    def _sha256(self) -> str:
        return self._store.sha256(self._stored.arrays)

    def _report(self, difference: str | None) -> ReplayReport:
        return ReplayReport(
            run=self._recording.run,
            algorithm=self._recording.experiment.algorithm.name,
            rounds=self._rows,
            end="" if difference else self._describe_end(),
            finished=self._recording.finished,
            model_sha256=self._sha256(),
            recorded_sha256=self._model,
            difference=difference,
        )

    def _describe_end(self) -> str:
        machine, rounds = self._machine, self._recording.experiment.rounds
        lacks_state = machine.done > self._recording.closed_rounds
        without = f" It does not have the state after round {machine.done}." if lacks_state else ""
        if machine.finished:
            return f"The journal has all {rounds} rounds.{without}"
        if machine.exchange is None or not machine.exchange.replies:
            return f"The journal ends after {machine.done} of {rounds} rounds.{without}"
        have, asked = len(machine.exchange.replies), machine.exchange.wanted
        return (
            f"The journal ends in round {machine.round} of {rounds}, exchange {machine.exchange.number}, "
            f"after {have} of {asked} replies."
        )

    # -- one round -----------------------------------------------------------------------------

    def _play(self, part: RecordedRound) -> None:
        started, events = time.perf_counter(), [event for _, event in part.events]
        self._row = ReplayedRound(round=part.round)
        try:
            self._handle(part, events)
        except _DifferenceError:
            self._finish_row(part, time.perf_counter() - started)
            raise
        self._finish_row(part, time.perf_counter() - started)
        if part.checkpoint is not None:
            self._save(part.checkpoint)

    def _handle(self, part: RecordedRound, events: Sequence[Event]) -> None:
        self._carry_out(self._next, events, part.checkpoint)
        for number, event in enumerate(events, 1):
            self._accept(event)
            self._carry_out(self._machine.handle(event), events[number:], part.checkpoint)
        if part.checkpoint is not None and self._machine.done < part.round:  # a next one may ask nobody
            raise _DifferenceError(f"round {part.round} does not close with the event that closed it")

    def _finish_row(self, part: RecordedRound, seconds: float) -> None:
        if part.checkpoint is None and not self._row.replies:
            return  # the journal ends before the round's first reply
        self._row = self._row.model_copy(update={"seconds": seconds})
        self._rows.append(self._row)
        self._on_round(self._row)

    def _accept(self, event: Event) -> None:
        """Compare a reply that will count with the recorded one."""
        if not isinstance(event, Replied):
            return
        if self._machine.judge(event.client, event.round, event.exchange)[0] != "accepted":
            return
        reply = self._maker.accept(self._exchanges[event.round, event.exchange], event)
        counted = {"replies": self._row.replies + 1, reply.source: getattr(self._row, reply.source) + 1}
        self._row = self._row.model_copy(update={**counted, "equal": self._row.equal + (not reply.difference)})
        if reply.difference:
            where = f"round {event.round}, exchange {event.exchange}"
            raise _DifferenceError(f"{where}, reply of client {event.client} ({event.agent}): {reply.difference}")

    def _carry_out(
        self, commands: Sequence[Command], coming: Sequence[Event], recorded: StoredCheckpoint | None
    ) -> None:
        for command in commands:
            match command:
                case Send():
                    self._open(command, coming)
                case Checkpoint():
                    self._close(command, recorded)

    def _open(self, send: Send, coming: Sequence[Event]) -> None:
        """Publish an exchange, and make the replies to it that the journal names."""
        message = self._downlink.publish(self._recording.run, send, plan_publications(send.tasks))
        exchange = self._exchanges[message.id] = OpenExchange(message, send.tasks)
        first: dict[int, Replied] = {}
        for event in coming:
            if isinstance(event, Replied) and (event.round, event.exchange) == (send.round, send.exchange):
                first.setdefault(event.client, event)
        self._maker.prepare(exchange, [event for client, event in first.items() if client in send.tasks])

    def _close(self, done: Checkpoint, recorded: StoredCheckpoint | None) -> None:
        """Compare the state after a round, and open the next round from it."""
        self._write_state(done.state)
        state = self._read_state()
        self._compare_scores(done, state, recorded.result if recorded else None)
        if recorded is not None:
            self._compare_state(f"the state after round {done.round}", recorded)
            self._row = self._row.model_copy(update={"state_equal": True})
        counted = MachineSnapshot.decode(done.snapshot).standing.counted
        self._wire = self._store.put(state.arrays, self._recording.experiment.wire.down)
        self._downlink.remember(state.arrays, self._wire)
        self._next = self._machine.proceed(state, recorded.at if recorded else done.at)
        self._maker.clear()
        self._memories.keep(counted)
        needed = {*self._machine.working.values(), *([self._machine.exchange.id] if self._machine.exchange else [])}
        self._exchanges = {asked: exchange for asked, exchange in self._exchanges.items() if asked in needed}

    def _compare_scores(self, done: Checkpoint, state: State, recorded: RoundResult | None) -> None:
        """Compare the scores of a round; ``state`` was read back from its file."""
        scores: Mapping[str, float] = done.state.scores
        if self._options.evaluate and not scores and self._bench.is_evaluated(done.round):
            scores = self._machine.evaluation_of(state, done.round)()
        if not scores or recorded is None:
            return
        row = recorded.named_scores  # an earlier version of fedquilt recorded fewer
        odd = next((name for name, value in scores.items() if name in row and row[name] != value), None)
        self._row = self._row.model_copy(update={"scores_equal": odd is None})
        if odd is not None:
            raise _DifferenceError(f"round {done.round}: its {odd} is {scores[odd]} instead of {row.get(odd)}")

    # -- the state on disk ---------------------------------------------------------------------

    def _write_state(self, state: State) -> None:
        extra = self._store.put(state.extra).digest if len(state.extra) else ""
        self._stored = StoredState(self._store.put(state.arrays).digest, extra)

    def _compare_state(self, name: str, recorded: StoredCheckpoint) -> None:
        pairs = {"arrays": (self._stored.arrays, recorded.arrays), "extra": (self._stored.extra, recorded.extra)}
        for part, (found, expected) in pairs.items():
            if found != expected:
                self._row = self._row.model_copy(update={"state_equal": False})
                raise _DifferenceError(f"{name}: its {part} have the digest {found[:12]} instead of {expected[:12]}")

    def _read_state(self) -> State:
        extra = self._store.arrays(self._stored.extra) if self._stored.extra else {}
        return State(self._store.arrays(self._stored.arrays), extra)

    def _save(self, recorded: StoredCheckpoint) -> None:
        """Store the progress after a round, then delete the blobs and memories that no later round needs.

        A later replay could not go on while tasks of earlier rounds go on, because it would lack their manifests.
        """
        published = {patch.digest for exchange in self._exchanges.values() for patch in exchange.message.patches}
        wire = {self._wire.digest} if self._wire is not None else set()
        if not self._machine.working:
            self._store_progress()
        self._store.clean({recorded.arrays, recorded.extra, *self._saved, *wire, *published, *self._downlink.digests})

    def _store_progress(self) -> None:
        progress = ReplayProgress(
            run=self._recording.run,
            options=self._options,
            arrays=self._stored.arrays,
            extra=self._stored.extra,
            rounds=self._rows,
            memories=store_memories(self._memories.after),
        )
        write_progress(self._folder, progress)
        self._saved = {self._stored.arrays, self._stored.extra}
        self._memories.clean()
