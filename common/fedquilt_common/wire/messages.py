"""The control messages: pydantic models, sent as JSON. Every message has the protocol version in ``v``."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from fedquilt_common.wire.data_messages import DataMessage
from fedquilt_common.wire.message_base import (
    Amount,
    Big,
    Client,
    ClientKey,
    Clients,
    Digest,
    MessagePart,
    Name,
    Number,
    Reading,
    Sha256,
    Text,
    WireMessage,
    Word,
    Workers,
)


class CoordinatorPresence(WireMessage):
    """Topic ``coordinator``; the last will is the same, with ``online`` false.

    Attributes:
        online: whether the coordinator is connected.
        epoch: grows by one with each start of the coordinator on its run folder.
        run: its run.
        started: place of the coordinator among those of the federation; null while it asks whether there are others.
        time: the coordinator's clock at the publication, in Unix seconds; for `fedquilt doctor`.
    """

    online: bool
    epoch: Number
    run: Name | None = None
    started: Big | None = None
    time: Big | None = None


ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]{0,199}$")]
"""A Python module."""


class RunMessage(WireMessage):
    """Topic ``run``: the experiment.

    Attributes:
        run: the run's identifier.
        experiment: the whole experiment, as JSON.
        partition: digest of all clients' sample indices, of the labels that noise changes, and of ``data.normalise``.
        public: digest of the public samples.
        data: the samples that boards receive or have; null: each board has the data set.
        code: digests of the files of the user's own modules, by module.
    """

    run: Name
    experiment: dict[str, Any]
    partition: Sha256 | None = None
    public: Sha256 | None = None
    data: DataMessage | None = None
    code: dict[ModuleName, Sha256] = Field(default_factory=dict)


class ProfileMessage(MessagePart):
    """A board's description of itself; see ``types.Profile``."""

    kind: Name = "generic"
    cores: Number = 0
    memory: Big = 0
    gpu: Text = ""
    machine: Text = ""


class AgentPresence(WireMessage):
    """Topic ``agents/<agent>/presence``; the last will is the same, with ``online`` false.

    Attributes:
        agent: the agent's name.
        online: whether the agent is connected.
        boot: grows with each start of the agent on its state folder.
        clients: the clients that it hosts.
        workers: clients that it trains at the same time.
        profile: its board.
        version: its version of fedquilt.
        instance: public name of its state folder; empty in earlier versions.
        site: the site through whose broker it connects; null without one.
        site_relay: whether it sends the replies of the boards behind its site, besides its own.
    """

    agent: Name
    online: bool
    boot: Big
    clients: Clients = Field(default_factory=list)
    workers: Workers = 1
    profile: ProfileMessage = Field(default_factory=ProfileMessage)
    version: Text = ""
    instance: Text = ""
    site: Name | None = None
    site_relay: bool = False


SENSOR: Final = "sensor"
"""Origin of a figure: a sensor on the board."""
METER: Final = "meter"
"""Origin of a figure: a meter of the board's owner."""
ESTIMATE: Final = "estimate"
"""Origin of a figure: a model of the board and the load of its processor."""


class Telemetry(WireMessage):
    """Topic ``agents/<agent>/telemetry``: a board's sensors, and the progress of its clients.

    Attributes:
        agent: the agent's name.
        boot: of its presence.
        memory_used: bytes in use on the board, or in the agent's control group with the least limit.
        memory_own: bytes that the agent and its training processes hold; a page that several share counts once.
        load: processes that run or wait for a processor, as an average over one minute.
        temperature: of the hottest sensor, in degrees Celsius.
        power: of the board, in watts.
        joules: energy of the board since the agent's start.
        power_source: origin of ``power`` and ``joules``: ``sensor`` (of the board), ``meter`` (its owner's),
            ``estimate`` (from the processor's load); empty without a figure.
        throttled: bits of the Raspberry Pi firmware's ``get_throttled``.
        training: progress of each client in training, from 0 to 1.
        interval: seconds until the agent's next telemetry at the latest; null in earlier versions.
    """

    agent: Name
    boot: Big
    memory_used: Big | None = None
    memory_own: Big | None = None
    load: Amount | None = None
    temperature: Reading | None = None
    power: Reading | None = None
    joules: Amount | None = None
    power_source: Word = ""
    throttled: Number | None = None
    training: dict[ClientKey, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    interval: Annotated[float, Field(gt=0, le=3600)] | None = None


IDLE_TELEMETRY_SECONDS: Final = 5.0
"""Seconds between two telemetry messages of an agent that trains nothing."""
Outcome = Literal["accepted", "duplicate", "late", "rejected"]
MAX_OTHERS: Final = 99
"""Limit of the further replies of one receipt, so that it stays smaller than a broker's smallest packet."""


class OtherReply(MessagePart):
    """A reply that has the same outcome as the one that a receipt names."""

    client: Client
    digest: Digest


class ReceiptMessage(WireMessage):
    """Inbox: the outcome of a reply, and of others to the same exchange.

    Attributes:
        damaged: bytes were lost or changed on the way; send the reply again.
        final: False if the same reply may be accepted later; keep it and offer it again.
        others: replies with the same outcome; an earlier version, which ignores them, asks for their receipts.
        members: for a partial sum, the clients that have the outcome; those that are not named are not settled by it.
            If it is not final, the relay of a site names the members of a sum that it has and that waits for others.
    """

    type: Literal["receipt"] = "receipt"
    run: Name
    client: Client
    round: Number
    exchange: Number
    digest: Digest
    outcome: Outcome
    reason: Text = ""
    damaged: bool = False
    final: bool = True
    others: list[OtherReply] = Field(default_factory=list, max_length=MAX_OTHERS)
    members: Clients = Field(default_factory=list)

    def divide(self) -> list[ReceiptMessage]:
        """Return a receipt for each of its replies."""
        alone = self.model_copy(update={"others": []})
        named = [{"client": other.client, "digest": other.digest} for other in self.others]
        return [alone, *(alone.model_copy(update=names) for names in named)]


class MissingMessage(WireMessage):
    """Inbox: the chunks of a reply that did not arrive, as a base64 bitmap (bit i % 8 of byte i // 8 is chunk i)."""

    type: Literal["missing"] = "missing"
    run: Name
    client: Client
    round: Number
    exchange: Number
    digest: Digest
    bitmap: Annotated[str, Field(max_length=1_000_000, pattern=r"^[A-Za-z0-9+/]*={0,2}$")]


class StopMessage(WireMessage):
    """Inbox: the exchange has closed without these clients; their work for it no longer counts."""

    type: Literal["stop"] = "stop"
    run: Name
    clients: list[Client]
    round: Number
    exchange: Number
    reason: Text = ""


class FailedMessage(WireMessage):
    """Topic ``agents/<agent>/telemetry``, too: a client could not do its task, and why.

    Attributes:
        declined: the client does no task of the run any more, because its privacy budget is used up or its board's
            owner does not allow it.
    """

    type: Literal["failed"] = "failed"
    agent: Name
    run: Name
    client: Client
    round: Number
    exchange: Number
    reason: Text
    declined: bool = False


OUT_OF_MEMORY: Final = "out-of-memory"
"""Kind of the notice that the board trains smaller sub-models from now on."""
MEMORY_LOST: Final = "memory-lost"
"""Kind of the notice that clients have started without the private memory that they had."""
WORKER_RESTARTED: Final = "worker-restarted"
"""Kind of the notice that a training process died and was started again."""
ENDED_BY_ERROR: Final = "ended"
"""Kind of the notice that an agent or a relay ends because of an error."""
MUTED: Final = "muted"
"""Kind of the notice about a board that floods."""


class NoticeMessage(WireMessage):
    """Topic ``agents/<agent>/telemetry``, too: something that happened to an agent and that people should see.

    Attributes:
        kind: ``out-of-memory`` (a training process ran out of memory; the board trains smaller sub-models from now
            on), ``memory-lost`` (clients have started without the private memory that they had), ``worker-restarted``
            (a training process died and was started again), ``ended`` (an agent or a relay ends because of an error)
            or ``muted`` (the relay of a site ignores a board that floods for a while).
        text: what happened, for people.
        run: the run in which it happened; null: in no run.
        client: the client whose training it concerns; null: none.
        round: the round of that training.
        exchange: the exchange of that training.
    """

    type: Literal["notice"] = "notice"
    agent: Name
    boot: Big
    kind: Name
    text: Text
    run: Name | None = None
    client: Client | None = None
    round: Number | None = None
    exchange: Number | None = None


Fingerprint = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
"""Digest of all that a task asks of a client."""
Weight = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
"""A client's weight in averages."""
MOST_MEMBERS: Final = 10_000
"""Most clients of one partial sum, so that their list stays a small message."""
MAX_METRICS: Final = 64
"""Most metrics of a reply."""
REPLY_KEY: Final = "fedquilt"
"""The only metadata key of a reply's container; its value is a ``ReplyHeader``."""
SUM_KEY: Final = "fedquilt-sum"
"""The only metadata key of a partial sum's container; its value is a ``SumHeader``."""


class ReplyHeader(WireMessage):
    """The part of a reply besides its arrays.

    Attributes:
        run: the run's identifier.
        round: the round's number.
        exchange: the exchange's number within the round.
        client: whose reply it is.
        task: fingerprint of the task that it answers.
        weight: the client's weight in averages, usually its number of samples.
        metrics: numbers such as losses and accuracies by name. The agent adds ``joules``, the board's energy during
            the task, ``memory_peak``, the most bytes that the training process held, and ``gpu_memory_peak``, the
            most that its tensors took on a GPU, unless the algorithm has a metric of that name.
        public: digest of the samples that its soft labels belong to.
    """

    run: Name
    round: Number
    exchange: Number
    client: Client
    task: Fingerprint
    weight: Weight
    metrics: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = Field(
        default_factory=dict, max_length=MAX_METRICS
    )
    public: Sha256 | None = None


class SumHeader(WireMessage):
    """The part of a partial sum besides its members and numbers.

    Attributes:
        run: the run's identifier.
        round: the round's number.
        exchange: the exchange's number within the round.
        base: digest of the patch whose arrays were subtracted, times the weights; null: of none.
    """

    run: Name
    round: Number
    exchange: Number
    base: Digest | None = None


class EndMessage(WireMessage):
    """Topic ``end``: the run is over, and why."""

    run: Name
    reason: Text
