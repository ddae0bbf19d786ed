"""Assembles and checks incoming replies: trusts no field of them, and checks sizes before it allocates memory.

A reply becomes the event ``Replied`` once its bytes have the announced digest, match the expected reply
(``expected_replies``) and are durable on disk. Replies wait for one another, so that one sync serves all that have
arrived. The uplink refuses other replies and sends a receipt with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from fedquilt_common.errors import DamagedTransferError, ProtocolError
from fedquilt_common.files.disk_errors import report_run_errors
from fedquilt_common.flood_control.flood_guard import UNIT_SECONDS
from fedquilt_common.flood_control.limits import REFUSED_KEPT, TRANSFERS_PER_CLIENT
from fedquilt_common.partial_sums.members import SumMember
from fedquilt_common.partial_sums.partial_sum import PartialSum
from fedquilt_common.types import ClientId, ExchangeId
from fedquilt_common.wire.chunks import Assembly, Blob, ChunkHeader, read_whole
from fedquilt_common.wire.codec import BytesArrays, FileArrays, PackedArrays
from fedquilt_common.wire.messages import Outcome
from fedquilt_common.wire.not_taken import NotTakenError
from fedquilt_common.wire.topics import Address
from fedquilt_common.wire.transport import MqttMessage
from fedquilt_server.coordinator.expected_replies import ExpectedReply, check_announced, check_reply
from fedquilt_server.coordinator.partial_sums import RefusedSumError, check_partial_sum, is_partial_sum
from fedquilt_server.coordinator.receipts import ReceiptPublisher
from fedquilt_server.coordinator.refusals import Refusals
from fedquilt_server.coordinator.site_relays import SiteRelays
from fedquilt_server.round.events import Receipt, Replied
from fedquilt_server.runs import clock
from fedquilt_server.runs.reply_files import reply_name
from fedquilt_server.runs.run import ActiveRun

_PAUSE: Final = 0.005
"""Seconds to wait for another message while the disk writes."""
TransferId = tuple[str, ClientId, str]
"""Agent, client and digest."""
RecordReplies = Callable[[Sequence[Replied]], None]
"""Journals replies that are on disk, and passes them to the machine."""


@dataclass
class Transfer:
    """One reply being assembled; ``last_chunk_at`` is Unix time in seconds."""

    address: Address
    assembly: Assembly
    last_chunk_at: float


class Uplink:
    """Assembles and checks the replies of the open exchange.

    Args:
        run: its machine names the host of each client, its blob store keeps the replies.
        receipts: publishes the outcome of a transfer.
        refusals: journals messages that cannot count.
        record: journals replies and passes them to the machine.
        relays: names the agents that may send for the host of a client.
        charge: fills the bucket of an agent with units of work.
    """

    def __init__(
        self,
        run: ActiveRun,
        receipts: ReceiptPublisher,
        refusals: Refusals,
        record: RecordReplies,
        relays: SiteRelays,
        charge: Callable[[str, float], None],
    ) -> None:
        self._run = run
        self._charge = charge
        self._relays = relays
        self._blobs = run.folder.blobs
        self._receipts = receipts
        self._refusals = refusals
        self._record = record
        self._expected: dict[ClientId, ExpectedReply] = {}
        self._transfers: dict[TransferId, Transfer] = {}
        self._refused: dict[TransferId, str] = {}
        self._journaled: set[tuple[str, ClientId, str, Outcome, bool]] = set()
        self._payload_bytes: Counter[ClientId] = Counter()
        self._began: dict[ClientId, float] = {}
        self._arrived: list[Replied] = []

    @property
    def waiting(self) -> int:
        """Number of replies that wait for ``flush``."""
        return len(self._arrived)

    @property
    def senders(self) -> set[str]:
        """The agents whose reply has arrived in part."""
        return {agent for agent, _, _ in self._transfers}

    @property
    def pause(self) -> float:
        """Seconds to wait for another message before ``flush``, which may wait for the disk."""
        return 0.0 if self._blobs.replies.is_synced else _PAUSE

    def flush(self) -> None:
        """Make the waiting replies durable and record them.

        Raises:
            RunFolderError: the disk is full or broken.
        """
        if self._arrived:
            replies, self._arrived = self._arrived, []
            self._blobs.sync_replies()
            self._record(replies)

    def open(self, expected: dict[ClientId, ExpectedReply]) -> None:
        """Accept replies to an exchange from now on, and drop unfinished replies to tasks that do not go on.

        Args:
            expected: the clients that have not replied yet.
        """
        self.close({client: reply.exchange for client, reply in expected.items()})
        self._expected = expected

    def close(self, working: Mapping[ClientId, ExchangeId]) -> None:
        """Expect no reply until the next exchange opens: the machine judges what still arrives.

        Args:
            working: the clients that go on with their tasks, with round and exchange: what is under way stays.
        """
        for key, transfer in list(self._transfers.items()):
            address = transfer.address
            if working.get(address.client) != (address.round, address.exchange):
                self._transfers.pop(key).assembly.discard()
        under_way = {transfer.address.client for transfer in self._transfers.values()}
        self._payload_bytes = Counter({client: self._payload_bytes[client] for client in under_way})
        self._began = {client: self._began[client] for client in under_way}
        self._refused.clear()
        self._journaled.clear()
        self._expected = {}

    def settle(self, reply: Replied) -> None:
        """Expect a reply no more that was recorded; the exchange may have opened while it waited for its record."""
        expected = self._expected.get(reply.client)
        if expected is not None and expected.exchange == (reply.round, reply.exchange):
            del self._expected[reply.client]

    def take(self, address: Address, message: MqttMessage) -> None:
        """Handle one chunk of a reply; a complete reply waits for ``flush``.

        Raises:
            ProtocolError: the message is not a chunk.
            RunFolderError: the reply cannot be written.
        """
        header = ChunkHeader.decode(message.header)
        try:
            self._take_chunk(address, header, message.payload)
        except NotTakenError as refusal:
            if header.index == header.count - 1:  # once per transfer, not once per chunk
                self._refuse(address, header.digest, refusal.outcome, str(refusal), final=refusal.final)
        except DamagedTransferError as error:
            self._refuse(address, header.digest, "rejected", str(error), damaged=True, final=False)
        except RefusedSumError as error:
            self._drop_refused(address, header.digest, str(error))
            self._refuse_sum(address, header.digest, error)
        except ProtocolError as error:
            self._drop_refused(address, header.digest, str(error))
            self._refuse(address, header.digest, "rejected", str(error))

    def _take_chunk(self, address: Address, header: ChunkHeader, payload: bytes) -> None:
        expected = self._check_open(address)
        now = clock.now()
        if self._run.watch.first_chunk is None:
            self._run.watch.first_chunk = now
        key = address.agent, address.client, header.digest
        if key not in self._refused:
            if header.index != address.chunk:
                raise DamagedTransferError(f"chunk {header.index} arrived on the topic of chunk {address.chunk}")
            check_announced(header, payload, expected)  # one that is too large does not count
            self._payload_bytes[address.client] += len(payload)
            self._began.setdefault(address.client, now)
            with report_run_errors(self._blobs.partial):
                reply = self._receive(address, header, payload, expected, now)
            if reply is not None:
                return self._accept(address, header.digest, reply)
        if header.index == header.count - 1:
            self._report_missing(address, header.digest)
        return None

    def _receive(
        self, address: Address, header: ChunkHeader, payload: bytes, expected: ExpectedReply, now: float
    ) -> list[SumMember] | None:
        """Add one chunk; returns the clients whose replies are complete and have been checked, once they are."""
        if header.count == 1:
            content = read_whole(header, payload)
            reply = self._check(address, BytesArrays(content), expected)
            name = reply_name(address.client, address.round, address.exchange, header.digest)
            self._blobs.replies.append(name, content)
            return reply
        blob = self._assemble(address, header, payload, expected, now)
        if blob is None:
            return None
        try:
            return self._check(address, FileArrays(blob.path), expected)
        except ProtocolError:
            blob.path.unlink(missing_ok=True)
            raise

    def _check_open(self, address: Address) -> ExpectedReply:
        """Return the client's expected reply; without one the machine judges the chunk, which then cannot count."""
        machine, client = self._run.machine, address.client
        if client not in self._expected:
            self.flush()  # the client may have replied, and its reply may have closed the exchange
        if not self._relays.may_send(address.agent, client):
            raise NotTakenError("rejected", self._relays.refusal(address.agent, client), final=False)
        expected = self._expected.get(client)
        if expected is None or expected.exchange != (address.round, address.exchange):
            outcome, reason = machine.judge(client, address.round, address.exchange)
            raise NotTakenError(outcome, reason, final=outcome != "rejected")  # the exchange may open later
        return expected

    def _accept(self, address: Address, digest: str, members: Sequence[SumMember]) -> None:
        """Keep a reply, or all replies of a partial sum, for ``flush``; the first one has the bytes."""
        now = self._run.watch.last_reply = clock.now()
        began, payload = self._began[address.client], self._payload_bytes[address.client]
        carrier = address.client if len(members) > 1 else None
        for number, member in enumerate(members):
            self._drop_transfers(member.client)
            del self._expected[member.client]
            host = self._run.machine.host_of[member.client]
            ids = host, member.client, address.round, address.exchange
            size, more = (0 if number else payload), len(members) - 1 - number
            relay = "" if host == address.agent else address.agent
            reply = Replied(now, *ids, digest, member.weight, member.metrics, size, began, carrier, more, relay)
            self._arrived.append(reply)

    def _check(self, address: Address, arrays: PackedArrays, expected: ExpectedReply) -> list[SumMember]:
        run = self._run.folder.run
        if not is_partial_sum(arrays):
            reply = check_reply(run, address.client, expected, arrays)
            return [SumMember(address.client, reply.task, reply.weight, reply.metrics)]
        own = {client: self._expected[client] for client in self._relays.select(address.agent, self._expected)}
        return check_partial_sum(run, address, PartialSum(arrays), own, partial(self._judge_member, address))

    def _judge_member(self, address: Address, client: ClientId) -> tuple[Outcome, str]:
        """Return why a member of a partial sum is not expected."""
        if not self._relays.may_send(address.agent, client):
            return "rejected", self._relays.refusal(address.agent)
        if any(reply.client == client for reply in self._arrived):
            return "duplicate", "a reply of this client has been counted"
        return self._run.machine.judge(client, address.round, address.exchange)

    # -- refusals ------------------------------------------------------------------------------

    def _refuse(
        self, address: Address, digest: str, outcome: Outcome, reason: str, *, damaged: bool = False, final: bool = True
    ) -> None:
        """Answer a refused transfer, and journal it.

        The sender offers a reply again with each manifest, so one refusal is journaled once in an exchange. It needs a
        receipt each time: its other replies wait for it.
        """
        failed = final and outcome == "rejected"
        refusal = address.agent, address.client, digest, outcome, failed
        if refusal not in self._journaled:
            if len(self._journaled) < REFUSED_KEPT:
                self._journaled.add(refusal)
            host = self._relays.host_of(address.agent, address.client)
            self._refusals.add(host, address.client, address.round, reason, outcome, failed=failed)
        self._send_receipt(address, digest, outcome, reason, damaged=damaged, final=final)

    def _refuse_sum(self, address: Address, digest: str, error: RefusedSumError) -> None:
        """Answer a partial sum that does not count. No client has failed: each can still send its reply.

        A small sum can take seconds to inflate, so its sender pays for the time.
        """
        self._charge(address.agent, error.seconds / UNIT_SECONDS)
        self._refusals.add(address.agent, address.client, address.round, str(error), error.outcome)
        ids = address.agent, address.client, address.round, address.exchange
        receipt = Receipt(*ids, digest, error.outcome, str(error))
        self._receipts.send_receipt(receipt, members=error.clients)

    def _send_receipt(
        self, address: Address, digest: str, outcome: Outcome, reason: str, *, damaged: bool = False, final: bool = True
    ) -> None:
        ids = address.agent, address.client, address.round, address.exchange
        members = self._members_counted(address, digest) if outcome == "duplicate" else []
        self._receipts.send_receipt(Receipt(*ids, digest, outcome, reason, damaged, final), members=members)

    def _members_counted(self, address: Address, digest: str) -> list[ClientId]:
        """Return the clients that count with a partial sum; none if it does not count, or is not a sum."""
        exchange = self._run.machine.exchange
        replies = {} if exchange is None else exchange.replies
        first = replies.get(address.client)
        if first is None or first.carrier is None or first.digest != digest:
            return []
        return [client for client, reply in replies.items() if reply.file == first.file]

    def _drop_refused(self, address: Address, digest: str, reason: str) -> None:
        """Ignore the rest of a refused transfer."""
        key = address.agent, address.client, digest
        transfer = self._transfers.pop(key, None)
        if transfer is not None:
            transfer.assembly.discard()
        if len(self._refused) < REFUSED_KEPT:
            self._refused[key] = reason

    def _report_missing(self, address: Address, digest: str) -> None:
        """Answer the last chunk of an incomplete transfer.

        Chunks arrive in order. If earlier ones are missing when the last one arrives, they are lost, or the sender
        repeats the last chunk to ask for its receipt.
        """
        key = address.agent, address.client, digest
        if key in self._transfers:
            transfer = self._transfers[key]
            self._receipts.request_missing(transfer.address, transfer.assembly)
        elif key in self._refused:
            self._send_receipt(address, digest, "rejected", self._refused[key])

    # -- transfers -----------------------------------------------------------------------------

    def _assemble(
        self, address: Address, header: ChunkHeader, payload: bytes, expected: ExpectedReply, now: float
    ) -> Blob | None:
        """Add one chunk; returns the reply, verified by its digest, once it is complete."""
        transfer = self._transfer(address, header, expected, now)
        transfer.last_chunk_at = now
        if not transfer.assembly.add(header, payload):
            return None
        del self._transfers[address.agent, address.client, header.digest]
        name = reply_name(address.client, address.round, address.exchange, header.digest)
        return self._blobs.keep_reply(transfer.assembly, name)

    def _transfer(self, address: Address, header: ChunkHeader, expected: ExpectedReply, now: float) -> Transfer:
        key = address.agent, address.client, header.digest
        transfer = self._transfers.get(key)
        if transfer is not None and not transfer.assembly.fits(header):  # cut again, for a broker with another limit
            self._transfers.pop(key).assembly.discard()
        if key not in self._transfers:
            self._make_room(address)
            self._transfers[key] = Transfer(address, self._blobs.begin_reply(header, expected.limit), now)
        return self._transfers[key]

    def _make_room(self, address: Address) -> None:
        keys = [key for key in self._transfers if key[:2] == (address.agent, address.client)]
        if len(keys) >= TRANSFERS_PER_CLIENT:
            oldest = min(keys, key=lambda key: self._transfers[key].last_chunk_at)
            self._transfers.pop(oldest).assembly.discard()

    def _drop_transfers(self, client: ClientId) -> None:
        """Drop a client's other transfers, now that its reply counts."""
        for key in [key for key in self._transfers if key[1] == client]:
            self._transfers.pop(key).assembly.discard()
