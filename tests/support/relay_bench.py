"""A relay of an agent's replies, with a line that keeps what is sent and a coordinator that the test plays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedquilt_client.records import StoredReply, name_reply
from fedquilt_client.relay import Relay, UploadOptions
from fedquilt_client.store import RunStore
from fedquilt_client.tasks import TaskId
from fedquilt_common.partial_sums.partial_sum import PartialSum
from fedquilt_common.wire.chunks import ChunkHeader
from fedquilt_common.wire.codec import BytesArrays, write_arrays
from fedquilt_common.wire.messages import REPLY_KEY, ReceiptMessage, ReplyHeader, RunMessage
from fedquilt_common.wire.round_messages import PatchMessage, RoundMessage, TaskMessage
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Transport

TOPICS = Topics("test")
RUN = RunMessage(run="run", experiment={})
MODEL = {"w": np.linspace(-1, 1, 50, dtype=np.float32)}


class Line:
    """A transport that keeps what is sent."""

    max_payload = 10**6

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes, str]] = []

    def publish(self, topic: str, payload: bytes, *, header: bytes = b"", retain: bool = False) -> bool:
        self.sent.append((TOPICS.parse(topic).client, payload, ChunkHeader.decode(header).digest))
        return True

    def drain(self, timeout: float) -> bool:
        return True


@dataclass
class RunStub:
    """What a relay reads of the run."""

    round: RoundMessage | None = None
    given_up: dict[TaskId, str] = field(default_factory=dict)


class RelayBench:
    """A relay of five clients, their store, and a manifest."""

    def __init__(self, folder: Path) -> None:
        self.line = Line()
        self.damaged: list[StoredReply] = []
        self.folder = folder
        self.start()

    def start(self) -> None:
        """Start the agent, as after a kill."""
        self.store = RunStore(self.folder / "run", RUN)
        self.run = RunStub()
        options = UploadOptions(
            agent="board", transport=cast(Transport, self.line), topics=TOPICS, blob_of=self.store.blob, chunk=10**6,
            speedup=1.0,
        )  # fmt: skip
        self.relay = Relay(options, self.damaged.append, self.store, lambda: self.run, lambda: range(5))

    def open(
        self,
        clients: Sequence[int] = range(5),
        deadline: float | None = None,
        *,
        summed: bool = True,
        exchange: int = 0,
    ) -> None:
        """Publish a manifest, and let the board have its model."""
        blob = write_arrays(self.folder / "model", MODEL)
        patch = PatchMessage(slot=0, digest=blob.digest, size=blob.size)
        task = TaskMessage(clients=list(clients), kind="train", patches=[0], summed=summed)
        self.run.round = RoundMessage(
            run="run", round=1, exchange=exchange, deadline=deadline, patches=[patch], tasks=[task]
        )
        blob.path.replace(self.store.patch(blob.digest))
        self.relay.review(lambda reply: reply.client in clients)

    def reply(self, client: int, arrays: dict[str, Any] | None = None) -> StoredReply:
        """Return the stored reply of a client; it is the same at each call."""
        message = cast(RoundMessage, self.run.round)
        task = message.fingerprint(message.tasks[0], client)
        header = ReplyHeader(run="run", round=1, exchange=0, client=client, task=task, weight=1.0 + client,
                             metrics={"loss": client / 7})  # fmt: skip
        draft = self.folder / "draft"
        arrays = arrays or {"w": MODEL["w"] + np.float32(client)}
        blob = write_arrays(draft, arrays, "fp32", {REPLY_KEY: header.model_dump_json()})
        stored = StoredReply("run", client, 1, 0, task, name_reply(1, 0, task, blob.digest, 0), blob.digest, blob.size)
        home = self.store.folder / "clients" / str(client)
        home.mkdir(parents=True, exist_ok=True)
        draft.replace(home / stored.file)
        return stored

    def offer(self, clients: Iterable[int], *, intact: bool = True) -> None:
        for client in clients:
            self.relay.offer(self.reply(client), intact=intact)

    def take(self) -> list[list[int]]:
        """Return whose replies have been sent since the last call: those of a sum together."""
        sent, self.line.sent = self.line.sent, []
        return [self.members(payload) or [client] for client, payload, _ in sent]

    def members(self, payload: bytes) -> list[int]:
        one = PartialSum(BytesArrays(payload))
        return [member.client for member in one.members] if "members" in one.content else []

    def answer(self, outcome: str, members: Sequence[int] = (), **changes: Any) -> None:
        """Send a receipt of the last transfer."""
        client, _, digest = self.line.sent[-1]
        known = {"run": "run", "client": client, "round": 1, "exchange": 0, "digest": digest, "outcome": outcome}
        self.line.sent.clear()
        self.relay.take_receipt(ReceiptMessage.model_validate({**known, "members": list(members), **changes}))
