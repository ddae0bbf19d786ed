"""The manifest of an exchange: what is published, and who does what with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable
from typing import Annotated

from pydantic import Field, model_validator

from fedquilt_common.types import ExchangeId, Scalar
from fedquilt_common.wire.message_base import (
    Big,
    Client,
    ClientKey,
    Digest,
    MessagePart,
    Name,
    Number,
    Text,
    WireMessage,
)


class PatchMessage(MessagePart):
    """One publication of the exchange.

    Attributes:
        slot: the slot that holds its chunks.
        digest: XXH3 or SHA-256 of its bytes, in hex.
        size: its bytes.
        labels: it holds soft labels, which have slots of their own.
    """

    slot: Number
    digest: Digest
    size: Big
    labels: bool = False

    @property
    def place(self) -> str:
        """Kind and slot as in its topics, such as ``slices/0``."""
        return f"{'soft-labels' if self.labels else 'slices'}/{self.slot}"


class SliceMessage(MessagePart):
    """A sub-model.

    Attributes:
        base: slices with the same number are cut from the same arrays and share their patches.
        kept: the indices that it keeps of each channel group, as ``IndexSet.encode`` writes them.
        absent: names of the arrays that it leaves out.
    """

    base: Number = 0
    kept: list[list[Number] | Annotated[str, Field(max_length=1_000_000)]]
    absent: list[Text] = Field(default_factory=list)


class TaskMessage(MessagePart):
    """One task for one or more clients.

    Attributes:
        clients: the clients that get it.
        kind: the algorithm's name for what to do.
        patches: positions in the round's ``patches``.
        scalars: the task's numbers and texts.
        slice: position in the round's ``slices``; null: whole arrays.
        labels: task and reply are soft labels, whose payloads hold numbers only.
        summed: replies to it may be added up, and travel as one partial sum.
    """

    clients: list[Client]
    kind: Name
    patches: list[Number]
    scalars: dict[str, Scalar] = Field(default_factory=dict)
    slice: Number | None = None
    labels: bool = False
    summed: bool = False


class RoundMessage(WireMessage):
    """Topic ``round``: the manifest of the open exchange.

    Attributes:
        run: the run's identifier.
        round: the round's number, from 1.
        exchange: the exchange's number within the round, from 0.
        deadline: Unix time in seconds from which a quorum is enough; None: the exchange has no deadline.
        patches: what is published for the tasks.
        tasks: what the clients do.
        slices: the sub-models, those of one base together.
        since: round and exchange of each client's last reply that counts. The client continues with the private memory
            it had after that reply and discards later training. A client without an entry starts without memory.
        earlier: manifests of earlier exchanges, reduced to the tasks that still go on.
    """

    run: Name
    round: Number
    exchange: Number
    deadline: float | None = None
    patches: list[PatchMessage] = Field(default_factory=list)
    tasks: list[TaskMessage] = Field(default_factory=list)
    slices: list[SliceMessage] = Field(default_factory=list)
    since: dict[ClientKey, tuple[Number, Number]] = Field(default_factory=dict)
    earlier: list[RoundMessage] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check_positions(self) -> RoundMessage:
        if any(position >= len(self.patches) for task in self.tasks for position in task.patches):
            raise ValueError("a task names a patch that the round does not have")
        if any(task.slice is not None and task.slice >= len(self.slices) for task in self.tasks):
            raise ValueError("a task names a slice that the round does not have")
        bases = [part.base for part in self.slices]
        if bases != sorted(bases):
            raise ValueError("slices of one base are not next to each other")
        if any(one.earlier or one.run != self.run or one.id >= self.id for one in self.earlier):
            raise ValueError("a manifest that goes on is not of an earlier exchange of the run")
        return self

    @property
    def id(self) -> ExchangeId:
        """Round and exchange."""
        return self.round, self.exchange

    def alone(self) -> RoundMessage:
        """Return the manifest without those of earlier exchanges."""
        return self.model_copy(update={"earlier": []})

    def reduce(self, clients: Container[int]) -> RoundMessage:
        """Return the manifest with the tasks of these clients only, and what they need; the fingerprints stay."""
        kept = [task.model_copy(update={"clients": [c for c in task.clients if c in clients]}) for task in self.tasks]
        kept = [task for task in kept if task.clients]
        needed = sorted({position for task in kept for position in task.patches})
        place = {position: index for index, position in enumerate(needed)}
        tasks = [task.model_copy(update={"patches": [place[i] for i in task.patches]}) for task in kept]
        since = {client: asked for client, asked in self.since.items() if int(client) in clients}
        patches = [self.patches[position] for position in needed]
        return self.alone().model_copy(update={"tasks": tasks, "patches": patches, "since": since})

    def sub_models(self, task: TaskMessage) -> tuple[list[SliceMessage], int | None]:
        """Return the slices that share the task's patches, and its position; ``([], None)`` for whole arrays."""
        if task.slice is None:
            return [], None
        base = self.slices[task.slice].base
        first = next(position for position, part in enumerate(self.slices) if part.base == base)
        return [part for part in self.slices if part.base == base], task.slice - first

    def memory_of(self, client: int) -> ExchangeId | None:
        """Round and exchange of the reply whose private memory the client continues with; None: it has none."""
        return self.since.get(str(client))

    def fingerprint(self, task: TaskMessage, client: int) -> str:
        """Digest of everything that the task asks of a client, 16 hex digits.

        Replies carry it, so a reply to another task is never counted.
        """
        return self._digest(task, self.memory_of(client))

    def fingerprints(self, task: TaskMessage, clients: Iterable[int]) -> dict[int, str]:
        """Return the fingerprint of each of these clients' task; clients without private memory share one."""
        without_memory = self._digest(task, None)
        continued = ((client, self.memory_of(client)) for client in clients)
        return {c: without_memory if since is None else self._digest(task, since) for c, since in continued}

    def _digest(self, task: TaskMessage, since: ExchangeId | None) -> str:
        asked = [
            self.run, self.round, self.exchange, task.kind,
            [self.patches[i].digest for i in task.patches], sorted(task.scalars.items()),
            *([] if task.slice is None else [self.slices[task.slice].model_dump(mode="json")]),
            *([] if since is None else [{"since": since}]),
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(asked, separators=(",", ":")).encode()).hexdigest()[:16]
