"""The only driver of a run: transport <-> machine <-> journal.

One thread takes what comes in, journals what it means, lets the machine decide and carries its commands out. A reply
is on disk and in the journal before its last chunk is acknowledged to the broker.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable
from typing import Final

from fedquilt_common.errors import (
    BrokerUnreachableError,
    DamagedTransferError,
    FedquiltError,
    PayloadError,
    ProtocolError,
    RunFailedError,
)
from fedquilt_common.types import Profile
from fedquilt_common.wire.chunks import ChunkHeader
from fedquilt_common.wire.messages import (
    AgentPresence,
    CoordinatorPresence,
    EndMessage,
    FailedMessage,
    Outcome,
    parse,
    parse_telemetry,
)
from fedquilt_common.wire.topics import Address, Topics
from fedquilt_common.wire.transport import Connected, Deliver, Disconnected, Incoming, MqttMessage, Transport, Will
from fedquilt_server.coordinator.display import StatusUpdater
from fedquilt_server.coordinator.downlink import Downlink
from fedquilt_server.coordinator.rate_limit import RateLimit
from fedquilt_server.coordinator.receipts import ReceiptPublisher
from fedquilt_server.coordinator.uplink import Uplink, expected_replies
from fedquilt_server.round.events import (
    Checkpoint,
    Command,
    Event,
    Finish,
    Joined,
    Left,
    Receipt,
    Rejected,
    Replied,
    Resumed,
    Send,
    Stop,
    Ticked,
)
from fedquilt_server.runs import clock
from fedquilt_server.runs.run import Run
from fedquilt_server.status.agent_list import AgentList
from fedquilt_server.status.snapshot import CLIENT_FAILED, StatusStore

MakeTransport = Callable[[Deliver, Will], Transport]
CONNECT_SECONDS: Final = 10.0
DRAIN_SECONDS: Final = 60.0


class _RefusalError(Exception):
    """A reply that cannot count, and what is to be said of it."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason


class Coordinator:
    """Drives one run to its end.

    Args:
        run: the opened run folder with its machine.
        federation: the name space at the broker.
        make_transport: makes the transport from a callback and a last will.
        board: where the page looks.
    """

    def __init__(self, run: Run, federation: str, make_transport: MakeTransport, board: StatusStore) -> None:
        self.run = run
        self.machine = run.machine
        self.board = board
        self.topics = Topics(federation)
        self._inbox: queue.SimpleQueue[Incoming] = queue.SimpleQueue()
        self._will = CoordinatorPresence(online=False, epoch=run.epoch, run=run.id)
        self._transport = make_transport(self._inbox.put, Will(self.topics.coordinator, self._will.encode()))
        wire = run.experiment.wire
        self._downlink = Downlink(self._transport, self.topics, run.store, run.journal, wire.down, run.experiment.chunk)
        self._downlink.remember(run.machine.state.arrays, run.state_blob)
        self._uplink = Uplink(run.id, run.store)
        self._inboxes = ReceiptPublisher(self._transport, self.topics, run.id)
        self._boards = AgentList()
        self._display = StatusUpdater(board)
        self._floods = RateLimit()
        self._connected = False

    # -- the life of a run ---------------------------------------------------------------------

    def execute(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Connect, and work until the run is finished or ``should_stop``.

        Raises:
            BrokerUnreachableError: when no broker takes us at the start.
            RunFailedError: when the algorithm gives up.
        """
        run = self.run
        run.watch_traffic(lambda: (self._transport.bytes_sent, self._transport.bytes_received))
        self._boards.restore(self.machine.agents, clock.now())
        self._display.start(run, self._boards.list())
        self._transport.connect()
        self._await_broker()
        run.begin()
        try:
            self._recover()
            while not self.machine.finished and not should_stop():
                self._step()
            while self.machine.finished and not self.run.closed and not should_stop():
                self._end()
        except FedquiltError as error:
            self.board.update(phase="failed", message=str(error))
            raise
        finally:
            self._transport.close((self.topics.coordinator, self._will.encode()))

    def _await_broker(self) -> None:
        deadline = time.monotonic() + CONNECT_SECONDS
        last = Disconnected("no answer")
        while not self._connected:
            try:
                incoming = self._inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise BrokerUnreachableError(f"{last.reason}. {last.advice}") from None
            if isinstance(incoming, Disconnected):
                last = incoming
                if last.refused:
                    raise BrokerUnreachableError(f"{last.reason}. {last.advice}")
            self._take(incoming)

    def _step(self) -> None:
        now = clock.now()
        wake = self.machine.wake_at
        wait = 0.5 if wake is None else min(0.5, max(0.0, wake - now))
        self._take_next(wait)
        now = clock.now()
        if (wake := self.machine.wake_at) is not None and now >= wake:
            self._happen(Ticked(now))

    def _take_next(self, wait: float) -> None:
        with contextlib.suppress(queue.Empty):
            self._take(self._inbox.get(timeout=wait))

    def _take(self, incoming: Incoming) -> None:
        match incoming:
            case MqttMessage():
                self._take_message(incoming)
                incoming.ack()
            case Connected():
                self._connected = True
                self._announce()
                self.board.update(broker_connected=True, message="")
            case Disconnected():
                self._connected = False
                self.board.update(broker_connected=False, message=f"{incoming.reason}. {incoming.advice}")

    def _announce(self) -> None:
        """Say everything that the broker should know, whatever it remembers."""
        self._transport.subscribe(self.topics.for_coordinator())
        online = CoordinatorPresence(online=True, epoch=self.run.epoch, run=self.run.id)
        self._transport.publish(self.topics.coordinator, online.encode(), retain=True)
        self._transport.publish(self.topics.end, b"", retain=True)
        self._transport.publish(self.topics.run, self.run.about().encode(), retain=True)
        self._downlink.publish_again()

    def _end(self) -> None:
        self.board.update(phase="finished", message="all rounds are done", broker_connected=self._connected)
        self._downlink.clear()
        self._transport.publish(self.topics.run, b"", retain=True)
        reason = EndMessage(run=self.run.id, reason="all rounds are done")
        self._transport.publish(self.topics.end, reason.encode(), retain=True)
        if self._connected and self._transport.drain(DRAIN_SECONDS):
            self.run.close()
        else:  # the broker is away: say it all again when it is back
            self._take_next(1.0)

    # -- what comes in -------------------------------------------------------------------------

    def _take_message(self, message: MqttMessage) -> None:
        agent, client = "?", None
        try:
            address = self.topics.parse(message.topic)
            agent, client = address.agent, address.client if address.client >= 0 else None
            if address.kind == "replies":
                self._take_chunk(address, message)
            elif message.payload:
                self._take_words(address, message)
        except ProtocolError as error:
            self._reject(agent, client, self.machine.round, str(error))

    def _take_words(self, address: Address, message: MqttMessage) -> None:
        now = clock.now()
        if address.kind == "telemetry":
            said = parse_telemetry(message.payload, message.topic)
            _check_sender(address, said.agent)
            if isinstance(said, FailedMessage):
                self._client_failed(said)
            else:
                self._boards.update_telemetry(said, now)
        elif address.kind == "presence":
            presence = parse(AgentPresence, message.payload, message.topic)
            _check_sender(address, presence.agent)
            self._presence(presence, now)
        self.board.update(boards=self._boards.list())

    def _presence(self, presence: AgentPresence, now: float) -> None:
        known = self.machine.agents.get(presence.agent)
        if presence.online:
            joined = Joined(
                now,
                presence.agent,
                presence.boot,
                tuple(presence.clients),
                presence.workers,
                Profile(**presence.profile.model_dump()),
            )
            self._boards.update_presence(presence, now)
            if known != self.machine.agent_of(joined) and self._floods.may_join(presence.agent):
                self._check_claims(presence)
                self._happen(joined)
        elif known is not None and presence.boot >= known.boot:
            self._boards.update_presence(presence, now)
            self._happen(Left(now, presence.agent, presence.boot))

    def _check_claims(self, presence: AgentPresence) -> None:
        """Say on the page what an agent claims in vain."""
        hosts, clients = self.machine.host_of, self.machine.policy.clients
        taken = [c for c in presence.clients if hosts.get(c, presence.agent) != presence.agent]
        unknown = [c for c in presence.clients if c >= clients]
        if taken:
            self._reject(presence.agent, taken[0], self.machine.round, f"clients {taken[:8]} have another agent")
        if unknown:
            self._reject(
                presence.agent, unknown[0], self.machine.round, f"the experiment has clients 0 to {clients - 1} only"
            )

    def _client_failed(self, said: FailedMessage) -> None:
        if said.run == self.run.id and said.round == self.machine.round:
            self._reject(said.agent, said.client, said.round, f"{CLIENT_FAILED}{said.reason}")

    def _take_chunk(self, address: Address, message: MqttMessage) -> None:
        header = ChunkHeader.decode(message.header)
        try:
            self._check_open(address, header)
            self._take_part(address, header, message.payload)
        except _RefusalError as refusal:
            if header.index == header.count - 1:  # once a transfer, not once a chunk
                self._answer(address, header.digest, refusal.outcome, refusal.reason)
        except DamagedTransferError as error:
            self._answer(address, header.digest, "rejected", str(error), damaged=True)
        except ProtocolError as error:
            self._uplink.refuse(address, header.digest, str(error))
            self._answer(address, header.digest, "rejected", str(error))

    def _check_open(self, address: Address, header: ChunkHeader) -> None:
        host = self.machine.host_of.get(address.client)
        if host != address.agent:
            raise _RefusalError("rejected", f"agent {address.agent} does not host client {address.client}")
        outcome, reason = self.machine.judge(address.client, address.round, address.exchange)
        if outcome != "accepted":
            raise _RefusalError(outcome, reason)

    def _take_part(self, address: Address, header: ChunkHeader, payload: bytes) -> None:
        now = clock.now()
        if self.run.watch.first_chunk is None:
            self.run.watch.first_chunk = now
        blob = self._uplink.take(address, header, payload, now)
        if blob is None:
            if header.index == header.count - 1:
                self._say_what_is_missing(address, header.digest)
            return
        said = self._uplink.verify(address, blob)
        self._uplink.drop(address.client)
        now = self.run.watch.last_reply = clock.now()
        self._boards.update_last_seen(address.agent, now)
        self.board.update(boards=self._boards.list())
        numbers = address.agent, address.client, address.round, address.exchange
        taken = self._uplink.taken(address.client)
        self._happen(Replied(now, *numbers, blob.digest, said.weight, said.metrics, taken))

    def _say_what_is_missing(self, address: Address, digest: str) -> None:
        """Chunks come in order: what has not come when the last has is lost, or the sender asks for its receipt."""
        transfer, reason = self._uplink.under_way(address, digest), self._uplink.refusal(address, digest)
        if transfer is not None:
            self._inboxes.missing(transfer)
        elif reason is not None:
            numbers = address.agent, address.client, address.round, address.exchange
            self._inboxes.receipt(Receipt(*numbers, digest, "rejected", reason))

    def _answer(self, address: Address, digest: str, outcome: Outcome, reason: str, *, damaged: bool = False) -> None:
        """Count what cannot count, and tell its sender."""
        if self._reject(address.agent, address.client, address.round, reason, outcome):
            numbers = address.agent, address.client, address.round, address.exchange
            self._inboxes.receipt(Receipt(*numbers, digest, outcome, reason, damaged))

    def _reject(self, agent: str, client: int | None, number: int, reason: str, outcome: Outcome = "rejected") -> bool:
        """Journal and count a refusal; False for what is too much of one agent."""
        if not self._floods.may_be_refused(agent):
            return False
        self._happen(Rejected(clock.now(), agent, client, number, reason[:300], outcome))
        return True

    # -- what follows from it ------------------------------------------------------------------

    def _happen(self, event: Event) -> None:
        """Journal, decide, act: in this order."""
        seq = self.run.append(event)
        commands = self._decide(event)
        self._display.show_event(event, self.machine)
        self._carry_out(seq, commands)
        self._display.show_waiting(self.machine)

    def _decide(self, event: Event) -> list[Command]:
        if self.machine.would_close(event):
            self.board.update(phase="averaging")
        started = time.perf_counter()
        if isinstance(event, Replied):
            self.run.watch.labels.replied(event)
        try:
            commands = self.machine.handle(event)
        except (PayloadError, ValueError, ArithmeticError) as error:
            raise RunFailedError(f"round {self.machine.round} cannot be closed: {error}") from error
        if any(isinstance(command, Checkpoint | Send) for command in commands):
            self.run.watch.averaging += time.perf_counter() - started
        return self._noted(commands)

    def _noted(self, commands: list[Command]) -> list[Command]:
        """The same, after what is to be sent has been counted, whether it is still sent or was so before a crash."""
        for command in commands:
            if isinstance(command, Send):
                self.run.watch.labels.sent(command, self.run.experiment.wire.down)
        return commands

    def _recover(self) -> None:
        """Handle again what the journal has beyond the last checkpoint, then send what is still open."""
        self._replay(0, self._noted(self.run.restore()))
        for seq, event in self.run.missed():
            commands = self._decide(event)
            self._display.show_event(event, self.machine)
            self._replay(seq, commands)
        self._display.show_waiting(self.machine)
        if self.run.epoch > 1 and not self.machine.finished:
            self._happen(Resumed(clock.now()))

    def _replay(self, seq: int, commands: list[Command]) -> None:
        """What was said then need not be said again; a checkpoint that was not reached must be."""
        self._carry_out(seq, [c for c in commands if isinstance(c, Checkpoint | Finish)], replaying=True)

    def _carry_out(self, seq: int, commands: list[Command], *, replaying: bool = False) -> None:
        for command in commands:
            match command:
                case Receipt():
                    self._inboxes.receipt(command)
                case Send():
                    self._send(command)
                case Stop():
                    self._inboxes.stop(command, self.machine.host_of)
                case Checkpoint():
                    follow = self._checkpoint(seq, command)
                    (self._replay if replaying else self._carry_out)(seq, follow)
                case Finish():
                    self.run.finish(self._boards.list())

    def _send(self, send: Send) -> None:
        self._floods.next_exchange()
        self._display.exchange(send, self.machine)
        started = time.perf_counter()
        message = self._downlink.publish(self.run.id, send)
        self._uplink.open(expected_replies(message, send.tasks, self.run.experiment.wire.up, self.run.public_digest))
        self._transport.drain(DRAIN_SECONDS)
        self.run.watch.sending += time.perf_counter() - started
        self.run.note_traffic()
        self.board.update(phase="training")

    def _checkpoint(self, seq: int, checkpoint: Checkpoint) -> list[Command]:
        self.board.update(phase="evaluating")
        published, sent = self._downlink.digests, self._downlink.sent(checkpoint.state.arrays)
        kept = self.run.checkpoint(seq, checkpoint, published, self._boards.list(), sent)
        self._downlink.remember(kept.state.arrays, kept.arrays)
        self.board.update(history=[*self.board.current.history, kept.row])
        return self._noted(self.machine.proceed(kept.state, kept.at))


def _check_sender(address: Address, agent: str) -> None:
    if agent != address.agent:
        raise PayloadError(f"agent {agent} spoke on the topic of agent {address.agent}")
