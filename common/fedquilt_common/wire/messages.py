"""Control messages: pydantic models as JSON. Every message carries the protocol version in ``v``."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from fedquilt_common.errors import PayloadError, ProtocolVersionError
from fedquilt_common.types import ExchangeId, Scalar
from fedquilt_common.wire.topics import NAME_PATTERN

PROTOCOL: Final = 1
MAX_MESSAGE: Final = 8 * 1024 * 1024
"""Largest control message in bytes; a round for 10,000 clients stays below it."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]
MAX_CLIENTS: Final = 100_000
"""Clients of one agent, at most."""
Client = Annotated[int, Field(ge=0, lt=1_000_000)]
Number = Annotated[int, Field(ge=0, lt=1_000_000_000)]
Big = Annotated[int, Field(ge=0, lt=2**63)]
Text = Annotated[str, Field(max_length=500)]
ClientKey = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,5})$")]
"""A client as a key of a JSON object."""


class Part(BaseModel):
    """Base of all that stands in a message. Unknown keys are ignored so that a later minor change does no harm."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class WireMessage(Part):
    """Base of all control messages."""

    v: int = PROTOCOL

    def encode(self) -> bytes:
        """The message as compact JSON, defaults included."""
        return self.model_dump_json().encode()


class CoordinatorPresence(WireMessage):
    """``coordinator``: is there one, and since which start."""

    online: bool
    epoch: Number
    run: Name | None = None


class RunMessage(WireMessage):
    """``run``: what a client must know. ``partition`` is the digest of all clients' sample indices, ``public`` that of
    the public samples."""

    run: Name
    experiment: dict[str, Any]
    partition: Digest | None = None
    public: Digest | None = None


class PatchMessage(Part):
    """One publication of the exchange: where it is and what it must be. ``labels``: soft labels, which lie in slots of
    their own."""

    slot: Number
    digest: Digest
    size: Number
    labels: bool = False

    @property
    def place(self) -> str:
        """Where it lies, as in its topics."""
        return f"{'soft-labels' if self.labels else 'slices'}/{self.slot}"


class SliceMessage(Part):
    """A sub-model: per channel group what is kept (``IndexSet.encode``), and the arrays that are left out.

    Slices of one ``base`` are cut from the same arrays, and share their patches.
    """

    base: Number = 0
    kept: list[list[Number] | Annotated[str, Field(max_length=1_000_000)]]
    absent: list[Text] = Field(default_factory=list)


class TaskMessage(Part):
    """One task for one or more clients; ``patches`` and ``slice`` are positions in the round's lists.

    ``labels``: what is sent and what is wanted are soft labels; their payloads are nothing but the numbers.
    """

    clients: list[Client]
    kind: Name
    patches: list[Number]
    scalars: dict[str, Scalar] = Field(default_factory=dict)
    slice: Number | None = None
    labels: bool = False


class RoundMessage(WireMessage):
    """``round``: the open exchange. ``deadline`` is Unix time in seconds.

    ``since``: per client the round and exchange of its last reply that counts. Its private memory is what it was after
    that reply, whatever it has trained in vain since; clients that are not there start without memory.
    """

    run: Name
    round: Number
    exchange: Number
    phase: Literal["open", "closed"]
    deadline: float | None = None
    patches: list[PatchMessage] = Field(default_factory=list)
    tasks: list[TaskMessage] = Field(default_factory=list)
    slices: list[SliceMessage] = Field(default_factory=list)
    since: dict[ClientKey, tuple[Number, Number]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _patches_are_there(self) -> RoundMessage:
        if any(position >= len(self.patches) for task in self.tasks for position in task.patches):
            raise ValueError("a task names a patch that the round does not have")
        if any(task.slice is not None and task.slice >= len(self.slices) for task in self.tasks):
            raise ValueError("a task names a slice that the round does not have")
        if [one.base for one in self.slices] != sorted(one.base for one in self.slices):
            raise ValueError("slices of one base do not stand together")
        return self

    def sub_models(self, task: TaskMessage) -> tuple[list[SliceMessage], int | None]:
        """The slices that share patches with the task's own, and its place among them; none for whole arrays."""
        if task.slice is None:
            return [], None
        base = self.slices[task.slice].base
        first = next(place for place, one in enumerate(self.slices) if one.base == base)
        return [one for one in self.slices if one.base == base], task.slice - first

    def memory_of(self, client: int) -> ExchangeId | None:
        """After which reply the client's private memory is to be taken; None: it starts without."""
        return self.since.get(str(client))

    def fingerprint(self, task: TaskMessage, client: int) -> str:
        """What exactly is asked: replies carry it, so an answer to another question is never counted."""
        since = self.memory_of(client)
        asked = [
            self.run, self.round, self.exchange, task.kind,
            [self.patches[i].digest for i in task.patches], sorted(task.scalars.items()),
            *([] if task.slice is None else [self.slices[task.slice].model_dump(mode="json")]),
            *([] if since is None else [{"since": since}]),
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(asked, separators=(",", ":")).encode()).hexdigest()[:16]


class ProfileMessage(Part):
    """What a board says of itself; see ``types.Profile``."""

    kind: Name = "generic"
    cores: Number = 0
    memory: Big = 0
    gpu: Text = ""
    machine: Text = ""


class AgentPresence(WireMessage):
    """``agents/<agent>/presence``: retained, and the last will with ``online`` false."""

    agent: Name
    online: bool
    boot: Big
    clients: list[Client] = Field(default_factory=list, max_length=MAX_CLIENTS)
    workers: Annotated[int, Field(ge=1, le=1024)] = 1
    profile: ProfileMessage = Field(default_factory=ProfileMessage)
    version: Text = ""


class Telemetry(WireMessage):
    """``agents/<agent>/telemetry``: memory in bytes, degrees Celsius, watts, progress 0 to 1."""

    agent: Name
    boot: Big
    memory_used: Big | None = None
    temperature: float | None = None
    power: float | None = None
    training: dict[ClientKey, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)


Outcome = Literal["accepted", "duplicate", "late", "rejected"]


class ReceiptMessage(WireMessage):
    """Inbox: what became of a reply. ``damaged``: bytes were lost or changed on the way, so send it again."""

    type: Literal["receipt"] = "receipt"
    run: Name
    client: Client
    round: Number
    exchange: Number
    digest: Digest
    outcome: Outcome
    reason: Text = ""
    damaged: bool = False


class MissingMessage(WireMessage):
    """Inbox: chunks of a reply that did not arrive, as a base64 bitmap (bit i of byte i // 8 is chunk i)."""

    type: Literal["missing"] = "missing"
    run: Name
    client: Client
    round: Number
    exchange: Number
    digest: Digest
    bitmap: Annotated[str, Field(max_length=1_000_000, pattern=r"^[A-Za-z0-9+/]*={0,2}$")]


class StopMessage(WireMessage):
    """Inbox: the exchange has closed without these clients; what they are doing for it is of no use any more."""

    type: Literal["stop"] = "stop"
    run: Name
    clients: list[Client]
    round: Number
    exchange: Number
    reason: Text = ""


class FailedMessage(WireMessage):
    """``agents/<agent>/telemetry`` too: a client could not do its task, and why."""

    type: Literal["failed"] = "failed"
    agent: Name
    run: Name
    client: Client
    round: Number
    exchange: Number
    reason: Text


REPLY_KEY: Final = "fedquilt"
"""The one metadata key of a reply's container; its value is a ``ReplyHeader``."""


class ReplyHeader(WireMessage):
    """What a reply says of itself beside its arrays; ``task`` is the fingerprint of the task that it answers,
    ``public`` the digest of the samples that its soft labels are of."""

    run: Name
    round: Number
    exchange: Number
    client: Client
    task: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    weight: Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
    metrics: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = Field(default_factory=dict, max_length=64)
    public: Digest | None = None


class EndMessage(WireMessage):
    """``end``: the run is over, and why."""

    run: Name
    reason: Text


InboxMessage = Annotated[ReceiptMessage | MissingMessage | StopMessage, Field(discriminator="type")]
_INBOX: TypeAdapter[ReceiptMessage | MissingMessage | StopMessage] = TypeAdapter(InboxMessage)
_M = TypeVar("_M", bound=WireMessage)


def parse(model: type[_M], payload: bytes, topic: str) -> _M:
    """A message of type ``model`` from JSON bytes.

    Raises:
        ProtocolVersionError: when the sender speaks a newer protocol.
        PayloadError: when the bytes are not such a message; the text names the topic and the field.
    """
    _check(payload, topic)
    try:
        return model.model_validate_json(payload)
    except ValidationError as error:
        raise PayloadError(_explain(error, topic)) from None


def parse_inbox(payload: bytes, topic: str) -> ReceiptMessage | MissingMessage | StopMessage:
    """One of the three inbox messages; raises as ``parse`` does."""
    _check(payload, topic)
    try:
        return _INBOX.validate_json(payload)
    except ValidationError as error:
        raise PayloadError(_explain(error, topic)) from None


def parse_telemetry(payload: bytes, topic: str) -> Telemetry | FailedMessage:
    """Either of the two messages an agent sends on its telemetry topic; raises as ``parse`` does."""
    body = _check(payload, topic)
    if body.get("type") == "failed":
        return parse(FailedMessage, payload, topic)
    return parse(Telemetry, payload, topic)


def _check(payload: bytes, topic: str) -> dict[str, Any]:
    if len(payload) > MAX_MESSAGE:
        raise PayloadError(f"message on {topic} has {len(payload)} bytes; the limit is {MAX_MESSAGE}")
    try:
        body = json.loads(payload)
    except (ValueError, RecursionError):
        raise PayloadError(f"message on {topic} is not JSON") from None
    if not isinstance(body, dict):
        raise PayloadError(f"message on {topic} is not a JSON object")
    version = body.get("v")
    if isinstance(version, int) and version > PROTOCOL:
        raise ProtocolVersionError(
            f"message on {topic} speaks protocol {version}, this program speaks {PROTOCOL}: "
            "install the same fedquilt version on coordinator and boards"
        )
    if type(version) is not int or version < 1:
        raise PayloadError(f"message on {topic} has no valid protocol version 'v'")
    return body


def _explain(error: ValidationError, topic: str) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"])) or "message"
    return f"message on {topic}: {where}: {first['msg']}"[:500]


def bitmap_of(indices: set[int] | list[int], count: int) -> str:
    """Base64 of a bitmap of ``count`` bits with the bits ``indices`` set."""
    bits = bytearray((count + 7) // 8)
    for index in indices:
        bits[index // 8] |= 1 << (index % 8)
    return b64encode(bits).decode()


def bitmap_indices(bitmap: str, count: int) -> list[int]:
    """The set bits below ``count``; raises PayloadError when the bitmap has not ``count`` bits."""
    try:
        bits = b64decode(bitmap, validate=True)
    except ValueError:
        raise PayloadError("bitmap is not base64") from None
    if len(bits) != (count + 7) // 8:
        raise PayloadError(f"bitmap has {len(bits)} bytes for {count} chunks")
    return [i for i in range(count) if bits[i // 8] >> (i % 8) & 1]
