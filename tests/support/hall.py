"""The relay of a site with three boards behind it, and a coordinator that the test plays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedquilt_client.site_boards import SiteBoards
from fedquilt_client.site_run import SiteRun
from fedquilt_client.store import AgentStore
from fedquilt_common.flood_control.admission import Admission
from fedquilt_common.flood_control.flood_guard import FloodGuard
from fedquilt_common.partial_sums.members import SumMember
from fedquilt_common.partial_sums.partial_sum import PartialSum, write_partial_sum
from fedquilt_common.wire.chunks import LARGEST_CHUNK, Blob, ChunkHeader
from fedquilt_common.wire.codec import BytesArrays, write_arrays
from fedquilt_common.wire.message_base import MAX_CLIENTS
from fedquilt_common.wire.messages import (
    REPLY_KEY,
    AgentPresence,
    MissingMessage,
    ReceiptMessage,
    ReplyHeader,
    RunMessage,
    SumHeader,
)
from fedquilt_common.wire.parsing import parse_inbox
from fedquilt_common.wire.round_messages import PatchMessage, RoundMessage, TaskMessage
from fedquilt_common.wire.topics import RELAYED, Topics
from fedquilt_common.wire.transport import MqttMessage, Transport
from fedquilt_server.tools.bench import bench_experiment

TOPICS = Topics("lab")
RELAY = "hall-relay"
MODEL = {"w": np.linspace(-1, 1, 600, dtype=np.float32)}
BOARDS = {"a": (0, 1), "b": (2,), "c": (3,)}


class Line:
    """A transport that keeps what is sent: to the coordinator, and to each board."""

    max_payload = 10**6

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes, ChunkHeader]] = []
        self.inboxes: dict[str, list[ReceiptMessage | MissingMessage]] = {}

    def publish(self, topic: str, payload: bytes, *, header: bytes = b"", retain: bool = False) -> bool:
        address = TOPICS.parse(topic)
        if address.kind == "replies":
            assert address.agent == RELAY
            self.sent.append((address.client, payload, ChunkHeader.decode(header)))
        else:
            found = parse_inbox(payload, topic)
            assert isinstance(found, ReceiptMessage | MissingMessage)
            self.inboxes.setdefault(address.agent, []).append(found)
        return True

    def drain(self, timeout: float) -> bool:
        return True

    def subscribe(self, filters: Sequence[str]) -> None:
        pass

    unsubscribe = subscribe

    def ignore(self, ignores: Callable[[str], bool]) -> None:
        pass


class Hall:
    """A relay's run, three boards behind its site, and a coordinator that the test plays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.experiment = bench_experiment(3, 4, 0.01, 2, relay=True).model_dump(mode="json")
        self.message = RoundMessage(run="run", round=1, exchange=0)
        self.start()

    def start(self) -> None:
        """Start the relay, as after a kill."""
        self.line, self.boards = Line(), SiteBoards("hall")
        for name, clients in BOARDS.items():
            self.appear(name, clients)
        self.store = AgentStore(self.folder / "state")
        store = self.store.open_run(RunMessage(run="run", experiment=self.experiment))
        self.store.release()
        line = cast(Transport, self.line)
        self.admission = Admission(line, TOPICS, FloodGuard(MAX_CLIENTS, LARGEST_CHUNK), RELAYED, RELAY)
        self.run = SiteRun(RELAY, store, self.boards, line, TOPICS, self.admission)

    def appear(self, name: str, clients: Sequence[int], *, online: bool = True) -> set[int]:
        here = AgentPresence(agent=name, online=online, boot=1, clients=list(clients), site="hall")
        return self.boards.take(here)

    def open(
        self, number: int = 1, *, summed: bool = True, deadline: float | None = None, has_model: bool = True
    ) -> None:
        """Publish a manifest, and let the relay have the model."""
        blob = write_arrays(self.folder / "model", MODEL)
        patch = PatchMessage(slot=0, digest=blob.digest, size=blob.size)
        task = TaskMessage(clients=list(range(5)), kind="train", patches=[0], summed=summed)
        self.message = RoundMessage(
            run="run", round=number, exchange=0, deadline=deadline, patches=[patch], tasks=[task]
        )
        self.run.open_round(self.message, retained=False)
        if has_model:
            self.fetch(blob)

    def fetch(self, blob: Blob) -> None:
        (header,) = blob.headers(10**6)
        topic = TOPICS.slot_chunk("slices/0", 0)
        message = MqttMessage(topic, blob.path.read_bytes(), header.encode(), True, lambda: None)
        self.run.take_patch(TOPICS.parse(topic), message)

    def fingerprint(self, client: int) -> str:
        return self.message.fingerprint(self.message.tasks[0], client)

    def reply(self, client: int, arrays: dict[str, Any] | None = None, /, **changes: Any) -> Blob:
        known = {"run": "run", "round": self.message.round, "exchange": 0, "client": client,
                 "task": self.fingerprint(client), "weight": 1.0 + client, "metrics": {"loss": client / 7}}  # fmt: skip
        header = ReplyHeader.model_validate({**known, **changes})
        arrays = arrays or {"w": MODEL["w"] + np.float32(client + 1)}
        path = self.folder / f"reply-{client}"
        return write_arrays(path, arrays, "fp32", {REPLY_KEY: header.model_dump_json()})

    def sum(self, clients: Sequence[int]) -> Blob:
        members = [SumMember(c, self.fingerprint(c), 1.0 + c, {"loss": c / 7}) for c in clients]
        header = SumHeader(run="run", round=self.message.round, exchange=0, base=self.message.patches[0].digest)
        arrays = [{"w": MODEL["w"] + np.float32(client + 1)} for client in clients]
        return write_partial_sum(self.folder / "sum", header, members, arrays, MODEL)

    def send(self, board: str, client: int, blob: Blob | None = None, chunk: int = 10**6, skip: int = -1) -> Blob:
        """Send a reply of a board in chunks, without one of them."""
        blob = blob or self.reply(client)
        content = blob.path.read_bytes()
        for header in blob.headers(chunk):
            if header.index != skip:
                part = content[header.offset : header.offset + header.length]
                topic = TOPICS.reply_chunk(board, client, self.message.round, 0, header.index)
                message = MqttMessage(topic, part, header.encode(), False, lambda: None)
                if not self.admission.turns_away(message):
                    self.run.take_reply(TOPICS.parse(topic), message)
        return blob

    def send_all(self) -> None:
        for board, clients in BOARDS.items():
            for client in clients:
                self.send(board, client)

    def taken(self) -> list[list[int]]:
        """Return whose replies have reached the coordinator since the last call: those of a sum together."""
        sent, self.line.sent = self.line.sent, []
        self.last = sent[-1] if sent else None
        return [self.members(payload) or [client] for client, payload, _ in sent]

    def members(self, payload: bytes) -> list[int]:
        one = PartialSum(BytesArrays(payload))
        return [member.client for member in one.members] if "members" in one.content else []

    def answer(self, outcome: str, members: Sequence[int] = (), **changes: Any) -> None:
        """Send the coordinator's receipt of the last transfer."""
        assert self.last is not None
        client, _, header = self.last
        known = {"run": "run", "client": client, "round": self.message.round, "exchange": 0, "digest": header.digest}
        self.run.take_inbox(
            ReceiptMessage.model_validate({**known, "outcome": outcome, "members": list(members), **changes})
        )

    def told(self, board: str) -> list[tuple[str, int, bool]]:
        """Return outcome, client and whether it is final of the receipts that a board got since the last call."""
        found = self.line.inboxes.pop(board, [])
        return [(one.outcome, one.client, one.final) for one in found if isinstance(one, ReceiptMessage)]
