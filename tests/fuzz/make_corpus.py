"""Write the corpus: a few small, valid inputs for each target, from which mutations start.

Run it from the repository's folder after a format has changed: ``python -m tests.fuzz.make_corpus``. Other files in the
corpus are inputs that failed once; they stay.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tests.fuzz.engine import CORPUS
from tests.fuzz.messages import MODELS
from tests.fuzz.reports import FILES
from tests.fuzz.texts import PLAIN
from tests.support.recorded_runs import write_boards, write_run

from fedquilt_client.records import COMMITTED, ClientRecord, StoredMemory, StoredReply, write_record
from fedquilt_common.experiment_file import parse_experiment
from fedquilt_common.files.digests import DigestKind, digest_bytes
from fedquilt_common.types import Arrays
from fedquilt_common.wire import messages
from fedquilt_common.wire.bitmaps import encode_bitmap
from fedquilt_common.wire.chunks import Blob
from fedquilt_common.wire.codec import write_arrays
from fedquilt_server.round.events import Event, Joined, Left, Rejected, Replied, Ticked, encode_event
from fedquilt_server.round.snapshots import MachineSnapshot
from fedquilt_server.runs.journal import Journal, StoredCheckpoint, Traffic
from fedquilt_server.status.results import RoundResult

DIGEST = "5e" * 32
NOTICE = {
    "v": 1,
    "type": "notice",
    "agent": "pi",
    "boot": 7,
    "kind": "out-of-memory",
    "text": "smaller now",
    "run": "a",
}
REPLY: Arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(3)}
FULL = """\
name: full
rounds: 3
data: {set: digits, clients: 6, partition: {scheme: dirichlet, alpha: 0.3}, public: {samples: 20}}
model: {name: mlp, hidden: [32]}
algorithm: {name: fedprox, mu: 0.1}
participation: {per_round: 4, quorum: 2, deadline: 60, shortfall: replace}
training: {epochs: 2, batch: 16, lr: 1e-2, optimiser: sgd, momentum: 0.9}
wire: {down: fp16, up: bf16, chunk: 64KiB}
fleet:
  - {kind: strong, agents: 2, clients: 4, link: {rate: 1e6, loss: 0.1, mtu: 1500}}
  - {kind: weak, clients: 2, memory: 512MiB, profile: private, variants: [{model: {name: mlp}}]}
"""


def inputs() -> Iterator[tuple[str, bytes]]:
    """Yield valid inputs, each with its target."""
    with tempfile.TemporaryDirectory() as name:
        yield from _files(Path(name))
        yield from _run_folders(Path(name) / "run")
    yield from _messages()
    yield from _texts()
    for line in ("/", "/api/status", "/api/rounds\nsince=2\naccept: text/html", "/healthz", "/metrics", "/static/x.js"):
        yield "requests", b"\0" + line.encode()
    yield "requests", b"\2/static/../app.py\n\nrange: bytes=0-5\nif-none-match: x\ncontent-length: 3\n\nabc"


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    header = messages.ReplyHeader(
        run="lab", round=1, exchange=0, client=3, task="0123456789abcdef", weight=2.0, metrics={"loss": 0.5}
    )  # fmt: skip
    reply = write_arrays(folder / "reply", REPLY, metadata={messages.REPLY_KEY: header.encode().decode()})
    yield "replies", reply.path.read_bytes()
    yield "containers", reply.path.read_bytes()
    mixed: Arrays = {"h": np.ones((1, 2)), "e": np.zeros((0, 2), np.float32), "b": np.array([True])}
    yield "containers", write_arrays(folder / "mixed", mixed, "bf16").path.read_bytes()
    stored = StoredReply("lab", 3, 2, 1, "0123456789abcdef", "reply-2.1", DIGEST, 30)
    record = ClientRecord((stored,), (StoredMemory((2, 1), "memory-2.1", DIGEST), StoredMemory((1, 0))), (1, 0))
    write_record(folder, record)
    yield "client-records", (folder / COMMITTED).read_bytes()
    yield "journals", _journal(folder / "journal.sqlite")
    yield "journal-rows", _version_1()
    yield "client-records", b'{"replies": [], "memories": [[1, 0, null]], "before": [1, 0]}'


def _journal(path: Path) -> bytes:
    small = sqlite3.connect(path)
    small.execute("PRAGMA page_size=512")
    small.execute("VACUUM")
    small.close()
    journal = Journal(path)
    journal.set_meta("experiment", "name: x")
    journal.append(Joined(1.0, "pi", 1, (0, 1)), Traffic(1, 2))
    journal.save(StoredCheckpoint(0, 0, DIGEST, "", 1.0, "", None, Traffic(3, 4)))
    journal.append(Replied(2.0, "pi", 0, 1, 0, DIGEST, 1.0, {"loss": 0.5}, 10), Traffic(5, 6))
    journal.close()
    return path.read_bytes()


def _version_1() -> bytes:
    """Rows of a journal of version 1, one a line."""
    rows = ["mversion\t1", "mexperiment\tname: x", "mtraffic\t5 6", f"c0\t0\t{DIGEST}\t\t1.0\t\tNULL\t3\t4"]
    events: list[Event] = [Joined(1.0, "pi", 1, (0, 1)), Replied(2.0, "pi", 0, 1, 0, DIGEST, 1.0, {"loss": 0.5}, 10)]
    for seq, event in enumerate([*events, Rejected(3.0, "pi", None, 1, "no"), Left(4.0, "pi", 1), Ticked(5.0)], 1):
        rows.append("e" + "\t".join(map(str, (seq, *encode_event(event), seq, seq))))
    result = {name: 1 for name, field in RoundResult.model_fields.items() if field.is_required()}
    snapshot = MachineSnapshot().encode()
    rows.append("c" + "\t".join(map(str, (1, 2, DIGEST, DIGEST, 2.5, snapshot, json.dumps(result), 7, 8))))
    return "\n".join(rows).encode()


def _messages() -> Iterator[tuple[str, bytes]]:
    for topic in ("coordinator", "round", "slices/3/0", "soft-labels/0/12", "agents/pi/presence", "agents/pi/inbox"):
        yield "topics", f"fedquilt/v1/lab/{topic}".encode()
    yield "topics", b"fedquilt/v1/lab/agents/pi-0.a/replies/7/12.1/0"
    for kind, payload in _payloads().items():
        yield "messages", bytes([kind]) + payload
    yield "messages", bytes([11]) + _payloads()[6]
    yield "messages", bytes([12]) + _payloads()[8]
    yield "messages", bytes([12]) + json.dumps(NOTICE).encode()
    for text in (PLAIN, FULL):
        experiment = parse_experiment(text, "corpus").model_dump_json()
        yield "runs", experiment.encode()
        yield "messages", b"\1" + json.dumps({"v": 1, "run": "r", "experiment": json.loads(experiment)}).encode()
    yield "bitmaps", (20).to_bytes(2, "big") + encode_bitmap({1, 7, 8, 19}, 20).encode()
    yield "index-sets", (16).to_bytes(2, "big") + b"\0" + bytes([0, 0, 2, 0, 0, 5, 0, 0, 7, 0, 0, 16])
    yield "index-sets", (16).to_bytes(2, "big") + b"\xff" + encode_bitmap({1, 3, 5, 7, 9, 11, 13}, 16).encode()
    yield "chunks", _transfer(b"abcdefghij" * 30, 100, "sha256")
    yield "chunks", _transfer(b"abcdefghij" * 30, 100, "xxh3")
    yield "chunks", _transfer(b"x", 100, "xxh3")


def _transfer(payload: bytes, chunk: int, kind: DigestKind) -> bytes:
    headers = Blob(Path("x"), digest_bytes(payload, kind), len(payload)).headers(chunk)
    parts = [(header.encode(), payload[header.offset :][: header.length]) for header in headers]
    return b"".join(bytes([len(head)]) + len(body).to_bytes(2, "big") + head + body for head, body in parts)


def _payloads() -> dict[int, bytes]:
    """One message of each type, by its number in ``MODELS``."""
    about = {"run": "lab-1", "round": 2, "exchange": 1}
    task = {"clients": [0, 1], "kind": "train", "patches": [0], "scalars": {"lr": 0.1, "x": "y"}, "slice": 0}
    fields: dict[str, dict[str, object]] = {
        "CoordinatorPresence": {"online": True, "epoch": 1, "run": "lab-1"},
        "RoundMessage": {
            **about, "deadline": 1.5e9, "patches": [{"slot": 0, "digest": DIGEST, "size": 9}], "tasks": [task],
            "slices": [{"kept": [[0, 4], "/w=="], "absent": ["head.w"]}], "since": {"0": [1, 0]},
        },
        "AgentPresence": {
            "agent": "pi", "online": True, "boot": 7, "clients": [0, 1], "workers": 2,
            "profile": {"kind": "pi", "cores": 4, "memory": 1 << 30, "gpu": "", "machine": "aarch64"}, "version": "1",
        },
        "Telemetry": {
            "agent": "pi", "boot": 7, "memory_used": 5, "memory_own": 3, "load": 0.5, "temperature": 50.5,
            "power": 4.5, "joules": 9.5, "power_source": "sensor", "training": {"3": 0.5},
        },
        "ReceiptMessage": {"type": "receipt", **about, "client": 3, "digest": DIGEST, "outcome": "accepted"},
        "MissingMessage": {"type": "missing", **about, "client": 3, "digest": DIGEST, "bitmap": "/w=="},
        "StopMessage": {"type": "stop", **about, "clients": [1, 2]},
        "FailedMessage": {"type": "failed", "agent": "pi", **about, "client": 3, "reason": "out of memory"},
        "ReplyHeader": {**about, "client": 3, "task": "0123456789abcdef", "weight": 2.0, "metrics": {"loss": 0.5}},
        "EndMessage": {"run": "lab-1", "reason": "all rounds are done"},
    }  # fmt: skip
    return {
        number: json.dumps({"v": 1, **fields[model.__name__]}).encode()
        for number, model in enumerate(MODELS)
        if model.__name__ in fields
    }


def _run_folders(folder: Path) -> Iterator[tuple[str, bytes]]:
    write_boards(write_run(folder, (0.5, None, 0.8)), {"pi-2": [0], "<b>pi-10": [1, 2]}, 1)
    event = {"at": 1.0, "kind": "late", "level": "warning", "board": "pi-2", "text": "late"}
    (folder / "events.jsonl").write_text(json.dumps(event) + "\n")
    for name in FILES:
        yield "run-folders", name.encode() + b"\n" + (folder / name).read_bytes()
    yield "published", b"- {source: x, note: y, figures: [{case: {a.b: 1}, scores: {best_accuracy: 0.5}}]}\n"
    yield "published", b"{source: x, baseline: {a: b}, figures: [{case: {c: null}, scores: {gain_loss: -1}}]}\n"


def _texts() -> Iterator[tuple[str, bytes]]:
    yield "yaml", b"a: [1, 2.5, true, null, 'x', \"y\\n\"]\nb:\n  - {c: 0x10, d: 1e-3}\n  - |\n    text\n  - ~\n"
    for target in ("yaml", "experiments"):
        yield target, FULL.encode()
        yield target, PLAIN.encode()
    yield "overrides", b"training.lr=0.05\ndata.clients=3\nfleet=[{clients: 3}]\nfleet.0.kind=weak"
    yield (
        "agent-files",
        b"broker: mqtts://broker\nid: pi-1\nclients: 0-3,7\neach: 2\nmemory: 512MiB\nallow-import: [a]\n",
    )
    for address in ("mqtt://host:1883", "mqtts://me:secret@[::1]", "broker.local", "mqtt://a%40b:c@127.0.0.1:1/"):
        yield "broker-urls", address.encode()
    yield "links", b"rate=50,latency=1.5,loss=0.2,mtu=222,speedup=100"
    yield "client-lists", b"0-3, 7,12-15"
    for size in ("256KiB", "1.5 GB", "4096"):
        yield "sizes", size.encode()


def main() -> None:
    """Write one file for each input, named by its content; files with other names stay."""
    for target, data in inputs():
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"valid-{hashlib.sha256(data).hexdigest()[:8]}").write_bytes(data)


if __name__ == "__main__":
    main()
