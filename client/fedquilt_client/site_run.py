"""A run at the relay of a site: the boards' replies, from their chunks until the coordinator's receipts.

The relay keeps a reply on its disk, adds it to others or sends it as it is, and passes the outcome on to the board. A
board keeps its reply until then, so whatever the relay loses comes again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

from fedquilt_client.board_costs import BoardCosts
from fedquilt_client.board_inboxes import BoardInboxes
from fedquilt_client.downloads import Downloads
from fedquilt_client.latest_manifest import LatestManifest
from fedquilt_client.records import StoredReply, StoredSum
from fedquilt_client.relay import LeavingTime, Relay, UploadOptions
from fedquilt_client.site_boards import MissingReplies, SiteBoards
from fedquilt_client.site_intake import NoRoomError, SiteIntake
from fedquilt_client.site_replies import Settlement, SiteReplies, TakenReply
from fedquilt_client.store import RunStore
from fedquilt_client.sum_pools import can_be_summed
from fedquilt_client.tasks import OpenTask, TaskId, open_tasks, read_experiment
from fedquilt_client.uploads import TOGETHER, TOGETHER_BYTES
from fedquilt_common.errors import DamagedTransferError, ProtocolError
from fedquilt_common.flood_control.admission import Admission
from fedquilt_common.types import ExchangeId
from fedquilt_common.wire.chunks import ChunkHeader
from fedquilt_common.wire.messages import FailedMessage, MissingMessage, Outcome, ReceiptMessage
from fedquilt_common.wire.not_taken import NotTakenError
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.topics import Address, Topics
from fedquilt_common.wire.transport import MqttMessage, Transport

log = logging.getLogger(__name__)

_MARGIN, _SHARE = 2.5, 0.1
"""Half of what an agent leaves before the deadline, so that the boards' sums arrive before the site's sum is sent."""


class SiteRun:
    """The current run at a site.

    Args:
        name: of the relay's agent.
        store: of the run.
        boards: those behind the site.
        transport: the connection to the site's broker.
        topics: of the federation.
        admission: charges the boards for their messages.

    Attributes:
        given_up: tasks to which no reply will come.

    Raises:
        PayloadError: the experiment is not valid for this version of fedquilt.
    """

    def __init__(
        self,
        name: str,
        store: RunStore,
        boards: SiteBoards,
        transport: Transport,
        topics: Topics,
        admission: Admission,
    ) -> None:
        experiment = read_experiment(store.run)
        self.store = store
        self.given_up = MissingReplies(boards)
        self._boards = boards
        self._downloads = Downloads(store, transport, topics, experiment.speedup)
        options = UploadOptions(
            agent=name, transport=transport, topics=topics, blob_of=store.blob, chunk=experiment.chunk,
            speedup=experiment.speedup,
        )  # fmt: skip
        leaving = LeavingTime(_MARGIN, _SHARE, experiment.participation.deadline)
        self._uploads = Relay(
            options, self._replace, store, lambda: self, lambda: boards.clients, self._settle_part, leaving
        )
        self._intake = SiteIntake(store)
        self._inboxes = BoardInboxes(transport, topics, store.run.run)
        self._manifest = LatestManifest()
        self._tasks: dict[tuple[int, ExchangeId], OpenTask] = {}
        self._replies = SiteReplies(store)
        self._unanswered: dict[str, list[StoredReply]] = {}
        self._costs = BoardCosts(boards, admission, experiment)

    @property
    def round(self) -> RoundMessage | None:
        """The latest manifest; None before the first."""
        return self._manifest.message

    def close(self) -> None:
        """Unsubscribe from the run's topics."""
        self._downloads.close()

    # -- exchanges -----------------------------------------------------------------------------

    def open_round(self, message: RoundMessage, *, retained: bool) -> None:
        """Accept replies to an exchange from now on; replies to tasks that are over are late.

        Args:
            message: the manifest.
            retained: the broker had stored it, so the coordinator may have published newer messages before.
        """
        if not self._manifest.take(message, retained=retained):
            return
        self._tasks = {(task.client, task.message.id): task for task in open_tasks(message, self._boards.clients)}
        tasks = {task.id for task in self._tasks.values()}
        if self._manifest.has_new_tasks:
            self._fetch_bases()
            self._intake.keep(tasks)
        self.given_up.clear()
        self._uploads.review(lambda reply: (reply.client, reply.task) in tasks)
        self._end_exchange(tasks)
        self._costs.open(message)
        self._take_up(self._tasks.values())

    def _fetch_bases(self) -> None:
        """Download what the sums of the open exchange are made from."""
        here = self.round.id if self.round is not None else None
        own = (task for task in self._tasks.values() if task.message.id == here and can_be_summed(task))
        self._downloads.want(task.patches[0] for task in own)

    def _end_exchange(self, tasks: set[TaskId]) -> None:
        """End the last exchange: report the replies as late whose tasks are over, and keep those that answer a task."""
        for reply in self._replies.unsettled:
            if (reply.client, reply.task) not in tasks:
                reason = f"round {reply.round}, exchange {reply.exchange} is closed"
                self._settle(reply, "late", reason, reply.covers)
        stored = (self._stored(task) for task in self._tasks.values())
        self._replies.begin_exchange({reply.digest for reply in stored if reply is not None})

    def add_clients(self, board: str, clients: Iterable[int]) -> None:
        """Accept the replies of clients whose board has appeared since the manifest."""
        self._costs.make_room(board)
        new = list(clients)
        if self.round is None or not new:
            return
        before = len(self._tasks)
        self._tasks |= {(task.client, task.message.id): task for task in open_tasks(self.round, new)}
        if len(self._tasks) > before:
            self._fetch_bases()
            self._uploads.expect(new)
        asked = set(new)
        self._take_up([task for task in self._tasks.values() if task.client in asked])

    def _take_up(self, tasks: Iterable[OpenTask]) -> None:
        """Send what an earlier process, or an earlier manifest, has left."""
        for task in list(tasks):
            stored = self._stored(task)
            if stored is not None and self._replies.find_answer(task.id) is None:
                self._send(self._inspect(stored, task), task, intact=False)

    def _stored(self, task: OpenTask) -> StoredReply | None:
        return self.store.reply(task.client, *task.message.id, task.fingerprint)

    def _inspect(self, stored: StoredReply, task: OpenTask) -> StoredReply:
        """Return a stored reply with its clients, if it is a sum."""
        exchange = task.message.id
        return self._replies.inspect(stored, task, lambda client: self._tasks.get((client, exchange)))

    # -- replies of the boards -----------------------------------------------------------------

    def take_reply(self, address: Address, message: MqttMessage) -> None:
        """Handle one chunk of a board's reply; a complete reply is on the disk when this returns.

        Raises:
            ProtocolError: the message is not a chunk.
        """
        header = ChunkHeader.decode(message.header)
        self._costs.spend(address, len(message.payload))
        try:
            self._take_chunk(address, header, message.payload)
        except NotTakenError as refusal:
            if header.index == header.count - 1:  # once per transfer, not once per chunk
                self._refuse(address, header.digest, refusal.outcome, str(refusal), final=refusal.final)
        except DamagedTransferError as error:
            self._refuse(address, header.digest, "rejected", str(error), damaged=True, final=False)
        except (NoRoomError, ProtocolError) as error:
            log.warning("the reply of client %d from %s: %s", address.client, address.agent, error)
            self._refuse(address, header.digest, "rejected", str(error), final=False)

    def _refuse(self, address: Address, digest: str, outcome: Outcome, reason: str, **fields: bool) -> None:
        """Answer and charge a transfer that does not count, or not yet."""
        self._inboxes.answer(address, digest, outcome, reason, **fields)
        self._costs.refuse(address, digest)

    def ask_again(self, replies: Mapping[str, Address]) -> None:
        """Ask boards to send replies again, by digest, that arrived too early to be taken."""
        for digest, address in replies.items():
            self._inboxes.answer(address, digest, "rejected", "the relay of the site has just started", final=False)

    def _take_chunk(self, address: Address, header: ChunkHeader, payload: bytes) -> None:
        if (reason := self._boards.refusal(address.agent, address.client)) != "":
            raise NotTakenError("rejected", reason, final=False)
        is_last = header.index == header.count - 1
        if (taken := self._replies.find(header.digest)) is not None:
            return self._answer_probe(address, taken) if is_last else None
        task = self._open_task(address, header.digest)
        self._refuse_another(task)
        blob = self._intake.take(address, header, payload, task)
        if blob is not None:
            self._accept(address, task, self._intake.commit(blob, task))
        elif is_last and (assembly := self._intake.missing(address, header.digest)) is not None:
            self._inboxes.request_missing(address, assembly)
        return None

    def _open_task(self, address: Address, digest: str) -> OpenTask:
        """Return the task that a reply answers.

        Raises:
            NotTakenError: there is none, or not yet.
        """
        exchange = address.round, address.exchange
        task = self._tasks.get((address.client, exchange))
        if task is not None:
            return task
        if (past := self._replies.find_past(digest)) is not None:
            raise NotTakenError(past.again, past.reason, final=True)
        if self.round is not None and exchange < self.round.id:
            raise NotTakenError("late", f"round {address.round}, exchange {address.exchange} is closed", final=True)
        raise NotTakenError(
            "rejected", f"the relay has no task of client {address.client} in round {address.round}", final=False
        )

    def _refuse_another(self, task: OpenTask) -> None:
        """Refuse a reply to a task that another one answers.

        Raises:
            NotTakenError: one does.
        """
        taken = self._replies.find_answer(task.id)
        if taken is not None and taken.settlement is not None:
            raise NotTakenError("duplicate", "a reply of this client has been counted", final=True)
        if taken is not None:
            raise NotTakenError("rejected", "another reply of this client is on its way", final=False)

    def _accept(self, address: Address, task: OpenTask, stored: StoredReply) -> None:
        """Add a reply up or send it, if it speaks for clients of its board only."""
        reply = self._inspect(stored, task)
        foreign = [client for client in reply.covers if self._boards.host_of(client) != address.agent]
        taken = [client for client in reply.covers if self._replies.find_answer(self._task_of(client, task))]
        if foreign or taken:
            self._replies.discard(reply)
            self._costs.refuse(address, reply.digest)
            reason = f"agent {address.agent} does not host them" if foreign else "a reply of them is on its way"
            self._inboxes.settle(address.agent, reply, "rejected", reason, foreign or taken)
        else:
            self._costs.refund(address)
            self._send(reply, task, intact=True)
            self._let_go_on(address.agent, reply)

    def _send(self, reply: StoredReply, task: OpenTask, *, intact: bool) -> None:
        answered = [self._task_of(client, task) for client in reply.covers]
        self._replies.take(reply, answered)
        for one in answered:
            self.given_up.discard(one)
        offer = self._uploads.offer if self._replies.is_summable(reply) else self._uploads.offer_alone
        offer(reply, intact=intact)

    def _task_of(self, client: int, task: OpenTask) -> TaskId:
        """Return the task of another client in the exchange of a task."""
        found = self._tasks.get((client, task.message.id))
        return found.id if found is not None else (client, "")

    def _let_go_on(self, board: str, reply: StoredReply) -> None:
        """Let a board send more: it sends some replies only, before it waits for their receipts."""
        waiting = [other for other in self._unanswered.get(board, ()) if self._is_unsettled(other)]
        waiting.append(reply)
        self._unanswered[board] = waiting
        if len(waiting) >= TOGETHER - 1 or sum(one.size for one in waiting) + reply.size > TOGETHER_BYTES:
            self._postpone(board, waiting)
            self._unanswered[board] = []

    def _is_unsettled(self, reply: StoredReply) -> bool:
        taken = self._replies.find(reply.digest)
        return taken is not None and taken.settlement is None

    def _postpone(self, board: str, replies: Iterable[StoredReply]) -> None:
        """Answer replies for which there is no receipt yet, if their board has others to send meanwhile."""
        own = (task for task in self._tasks.values() if self._boards.host_of(task.client) == board)
        if any(self._replies.find_answer(task.id) is None for task in own):
            for reply in replies:
                self._inboxes.postpone(board, reply, "the relay of the site has it, and waits for the coordinator")

    def take_failure(self, failure: FailedMessage) -> None:
        """Wait no more for the reply of a client that has failed."""
        task = self._tasks.get((failure.client, (failure.round, failure.exchange)))
        hosted = self._boards.host_of(failure.client) == failure.agent
        if task is None or self._replies.find_answer(task.id) is not None:
            return
        if hosted and failure.run == self.store.run.run:
            self.given_up.add(task.id)
            self._uploads.advance()

    # -- receipts ------------------------------------------------------------------------------

    def take_inbox(self, message: ReceiptMessage | MissingMessage) -> None:
        """Handle what the coordinator answers; ignore what is about an earlier run.

        Raises:
            PayloadError: the bitmap of missing chunks is not valid.
        """
        if message.run != self.store.run.run:
            return None
        if isinstance(message, MissingMessage):
            return self._uploads.send_missing(message)
        for receipt in message.divide():
            reply = self._uploads.take_receipt(receipt)
            if reply is not None and not isinstance(reply, StoredSum):
                self._settle(reply, receipt.outcome, receipt.reason, receipt.members)
        return None

    def _settle_part(self, reply: StoredReply, receipt: ReceiptMessage) -> None:
        """Pass on the outcome of a sum to the board of one of its parts."""
        self._settle(reply, receipt.outcome, receipt.reason, reply.clients)

    def _settle(self, reply: StoredReply, outcome: Outcome, reason: str, members: Iterable[int]) -> None:
        """Pass an outcome on to the board, which sends those members of a sum again that it does not name."""
        result = Settlement(outcome, reason, tuple(members))
        board = self._boards.host_of(reply.client)
        if board is not None:
            self._inboxes.settle(board, reply, outcome, reason, result.members)
            if not result.counted(reply).issuperset(reply.covers):
                self._costs.refuse_taken(board, reply)
        forgotten = self._replies.settle(reply, result)
        if forgotten is not None:
            self._uploads.forget(forgotten)

    def _answer_probe(self, address: Address, taken: TakenReply) -> None:
        """Answer a board that asks for the receipt of a reply that the relay has, or had."""
        reply, known = taken.reply, taken.settlement
        if known is not None:
            self._inboxes.settle(address.agent, reply, known.again, known.reason, known.members)
        else:
            if taken.take_probe(time.monotonic()):
                self._costs.refund(address)
            self._postpone(address.agent, [reply])

    def _replace(self, reply: StoredReply) -> None:
        """Ask the board for a reply whose copy is damaged."""
        log.warning("client %d, round %d: its reply on disk is damaged", reply.client, reply.round)
        self._replies.discard(reply)
        board = self._boards.host_of(reply.client)
        if board is not None:
            self._inboxes.postpone(board, reply, "the relay's copy of it is damaged", damaged=True)

    # -- connection ----------------------------------------------------------------------------

    def take_patch(self, address: Address, message: MqttMessage) -> None:
        """Handle one chunk of a patch, and make the sums for which it was missing.

        Raises:
            ProtocolError: the message is not a chunk of a patch.
            RunFolderError: the patch does not fit on the disk.
        """
        if self._downloads.take(address, message.header, message.payload):
            self._uploads.advance()

    def reconnect(self, *, session_present: bool) -> None:
        """Subscribe to the run's topics again, and ask at once for missing receipts."""
        self._downloads.reconnect(session_present)
        self._uploads.probe_now()

    def greet_coordinator(self) -> None:
        """Ask a coordinator that has restarted for missing receipts, and follow it if it goes back."""
        self._manifest.may_go_back = True
        self._uploads.probe_now()

    def repair(self) -> None:
        """Ask again for missing chunks and receipts, and send sums whose time has come; called regularly."""
        self._downloads.repair()
        self._uploads.advance()
