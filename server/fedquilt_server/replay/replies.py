"""The replies of a replay: read from the run folder, or trained again and compared with the journal.

A reply that is trained again counts as equal if its container has the recorded digest. The container's header is
written again from the journal, because it holds the seconds that training took.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from fedquilt_common.algorithm_api import Task
from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.digests import digest_file, has_digest, kind_of
from fedquilt_common.training_jobs import CheckedFile, Job
from fedquilt_common.types import Arrays, ClientId, Shapes
from fedquilt_common.wire.codec import FileArrays, write_arrays
from fedquilt_common.wire.messages import REPLY_KEY, ReplyHeader, RunMessage
from fedquilt_common.wire.round_messages import RoundMessage, TaskMessage
from fedquilt_server.replay.memories import Memories
from fedquilt_server.replay.recording import Recording
from fedquilt_server.replay.training import TrainingPool, TrainingProcess
from fedquilt_server.round.events import Replied
from fedquilt_server.runs.blob_store import BLOBS
from fedquilt_server.runs.reply_files import ReplyPlace

MEASURED: Final = frozenset({"train_seconds", "joules", "memory_peak", "gpu_memory_peak"})
"""Metrics that a board measures, so another training gives another number."""
_ALLOWED: Final = ["*"]
"""A replay imports what the experiment names, as the coordinator does."""


@dataclass(frozen=True)
class ReplayedReply:
    """A reply as the replay has it.

    Attributes:
        place: its container.
        source: whether its file was kept, it was trained again, or it has no arrays and needed no training.
        memory: the client's new private memory; None if it is unchanged.
        difference: how it differs from the recorded reply; empty if it is equal.
    """

    place: ReplyPlace
    source: Literal["kept", "trained", "empty"]
    memory: CheckedFile | None = None
    difference: str = ""


@dataclass(frozen=True)
class OpenExchange:
    """The exchange that the machine has opened, as it was published."""

    message: RoundMessage
    tasks: Mapping[ClientId, Task]

    def task_of(self, client: ClientId) -> TaskMessage:
        """Return the published task of a client."""
        return next(task for task in self.message.tasks if client in task.clients)

    def fingerprint(self, client: ClientId) -> str:
        """Return the fingerprint of a client's task."""
        return self.message.fingerprint(self.task_of(client), client)

    def name_of(self, event: Replied) -> str:
        """Return a name for a recorded reply to this exchange, the same only for the same reply to the same task."""
        return f"{event.client}-{event.round}.{event.exchange}-{self.fingerprint(event.client)}-{event.digest}"


class ReplyMaker:
    """Makes the replies that the journal names.

    Args:
        recording: the recorded run.
        run: the run's message.
        folder: where blobs, replies and memories of the replay lie.
        memories: the clients' private memories.
        pool: trains.
        kept: the clients whose replies are read from the run folder.
    """

    def __init__(
        self,
        recording: Recording,
        run: RunMessage,
        folder: Path,
        memories: Memories,
        pool: TrainingPool,
        kept: frozenset[ClientId],
    ) -> None:
        self._recording, self._run, self._folder = recording, run, folder
        self._memories, self._pool, self._kept = memories, pool, kept
        self._run_file = folder / "run.json"
        self._run_file.write_text(run.model_dump_json())
        self._replies = folder / "replies"
        self._replies.mkdir(exist_ok=True)
        self._made: dict[str, ReplayedReply] = {}
        self._accepted: dict[tuple[ClientId, str], ReplayedReply] = {}

    def prepare(self, exchange: OpenExchange, coming: Sequence[Replied]) -> None:
        """Make the replies to an exchange side by side.

        Args:
            exchange: what was published.
            coming: the recorded replies to it, each client's first one.
        """
        wanted = {exchange.name_of(event): event for event in coming if exchange.name_of(event) not in self._made}
        make = [functools.partial(self._make, exchange, event) for event in wanted.values()]
        self._made |= dict(zip(wanted, self._pool.run(make), strict=True))

    def accept(self, exchange: OpenExchange, event: Replied) -> ReplayedReply:
        """Count a reply: its memory becomes the client's."""
        self.prepare(exchange, [event])
        reply = self._accepted[event.client, event.digest] = self._made[exchange.name_of(event)]
        self._memories.commit(exchange.message, event.client, reply.memory)
        return reply

    def load(self, events: Sequence[Replied]) -> list[Arrays]:
        """Return the arrays of replies that count."""
        return [self._accepted[event.client, event.digest].place.arrays() for event in events]

    def check_kept(self) -> None:
        """Check that the kept replies of the round are still there.

        Raises:
            RunFolderError: the coordinator has closed the round meanwhile, and deleted them.
        """
        for reply in self._made.values():
            if reply.source == "kept" and not reply.place.path.exists():
                raise _deleted(reply.place.path)

    def clear(self) -> None:
        """Forget the replies of a closed round, and delete those that were trained."""
        self._made.clear()
        self._accepted.clear()
        for path in self._replies.iterdir():
            path.unlink()

    # -- one reply, in a thread of the pool ----------------------------------------------------

    def _make(self, exchange: OpenExchange, event: Replied) -> ReplayedReply:
        if event.client in self._kept:
            return _read_kept(self._recording.reply_place(event), event)
        return self._empty(exchange, event) or self._train(exchange, event)

    def _empty(self, exchange: OpenExchange, event: Replied) -> ReplayedReply | None:
        """Return a reply without arrays, if the task allows it as one of several and the recorded reply is it."""
        task = exchange.tasks[event.client]
        if not isinstance(task.expect, tuple) or {} not in task.expect:
            return None
        path = self._write(exchange, event, {})
        return ReplayedReply(ReplyPlace(path), "empty") if has_digest(path, event.digest) else None

    def _train(self, exchange: OpenExchange, event: Replied) -> ReplayedReply:
        """Train a reply again; a board's free memory may have decided its shapes, so each allowed one is tried."""
        choices = list_fittings(exchange.tasks[event.client], event.payload)
        with self._pool.process() as process:
            for fitting in choices:
                reply = self._train_once(process, exchange, event, fitting)
                if not reply.difference:
                    break
        return reply

    def _train_once(
        self, process: TrainingProcess, exchange: OpenExchange, event: Replied, fitting: Shapes | None
    ) -> ReplayedReply:
        done = process.do(self._job(exchange, event, fitting))
        trained = FileArrays(done.job.reply)
        path = self._write(exchange, event, trained)
        memory = CheckedFile(done.job.memory_out, done.memory) if done.memory is not None else None
        difference = _compare(event, trained, digest_file(path, kind_of(event.digest)))
        done.job.reply.unlink()
        return ReplayedReply(ReplyPlace(path), "trained", memory, difference)

    def _write(self, exchange: OpenExchange, event: Replied, arrays: Arrays) -> Path:
        """Write the container of a reply with the header that the journal implies."""
        task = exchange.task_of(event.client)
        header = ReplyHeader(
            run=self._run.run,
            round=event.round,
            exchange=event.exchange,
            client=event.client,
            task=exchange.fingerprint(event.client),
            weight=event.weight,
            metrics=dict(event.metrics),
            public=self._run.public if task.labels else None,
        )
        path = self._replies / exchange.name_of(event)
        up = self._recording.experiment.wire.up
        return write_arrays(path, arrays, up, {REPLY_KEY: header.model_dump_json()}, labels=task.labels).path

    def _job(self, exchange: OpenExchange, event: Replied, fitting: Shapes | None) -> Job:
        message, client = exchange.message, event.client
        task, fingerprint = exchange.task_of(client), exchange.fingerprint(client)
        slices, own = message.sub_models(task)
        blobs = self._folder / BLOBS
        return Job(
            number=client,
            run_file=self._run_file,
            client=client,
            round=message.round,
            exchange=message.exchange,
            kind=task.kind,
            scalars=task.scalars,
            fingerprint=fingerprint,
            since=message.memory_of(client),
            labels=task.labels,
            patches=[_patch(blobs, message.patches[position].digest) for position in task.patches],
            slices=slices,
            slice=own,
            memory=self._memories.before(message, client),
            reply=self._replies / f"{client}.draft",
            memory_out=self._memories.draft(client, (message.round, message.exchange), fingerprint),
            allowed=_ALLOWED,
            fitting=None if fitting is None else dict(fitting),
        )


def _patch(blobs: Path, digest: str) -> CheckedFile:
    return CheckedFile(blobs / digest, digest)


def _read_kept(place: ReplyPlace, event: Replied) -> ReplayedReply:
    """Return a kept reply, compared with the journal.

    Raises:
        RunFolderError: the file was deleted while the run went on.
    """
    damage = place.find_damage(event.digest)
    if not place.path.exists():
        raise _deleted(place.path)
    difference = f"{place.path} {damage}" if damage else _compare(event, place.arrays(), event.digest)
    return ReplayedReply(place, "kept", difference=difference)


def _deleted(path: Path) -> RunFolderError:
    return RunFolderError(f"{path} was deleted while the run went on: run the same command again")


def list_fittings(task: Task, payload: int) -> Sequence[Shapes | None]:
    """Return the sub-models that a board may have chosen, the likeliest first: its size is near that of the reply.

    Args:
        task: what the client was asked.
        payload: bytes in which the reply arrived.

    Returns:
        ``(None,)`` if the board had no choice.
    """
    if not isinstance(task.expect, tuple) or len(task.expect) < 2:
        return (None,)
    sizes = [(abs(4 * sum(map(math.prod, shapes.values())) - payload), shapes) for shapes in task.expect if shapes]
    return [shapes for _, shapes in sorted(sizes, key=lambda choice: choice[0])]


def _compare(event: Replied, arrays: FileArrays, digest: str) -> str:
    """Return how a reply differs from the recorded one; empty if it is equal."""
    found = ReplyHeader.model_validate_json(arrays.metadata[REPLY_KEY])
    if found.weight != event.weight:
        return f"its weight is {found.weight:g} instead of {event.weight:g}"
    names = sorted((found.metrics.keys() | event.metrics.keys()) - MEASURED)
    odd = next((name for name in names if found.metrics.get(name) != event.metrics.get(name)), None)
    if odd is not None:
        return f"its metric {odd!r} is {found.metrics.get(odd)} instead of {event.metrics.get(odd)}"
    if event.carrier is not None:  # the digest is that of a partial sum; the state after the round shows the numbers
        return ""
    return "" if digest == event.digest else f"its digest is {digest[:12]} instead of {event.digest[:12]}"
