"""The bytes of each control message, and the errors for everything that is not one."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tests.support.tables import each

from fedquilt_common.errors import PayloadError, ProtocolVersionError
from fedquilt_common.types import Profile
from fedquilt_common.wire import data_messages, messages, round_messages
from fedquilt_common.wire.bitmaps import encode_bitmap
from fedquilt_common.wire.chunks import ChunkHeader
from fedquilt_common.wire.data_messages import DataFile, DataMessage, DataRequest
from fedquilt_common.wire.message_base import WireMessage
from fedquilt_common.wire.messages import (
    AgentPresence,
    CoordinatorPresence,
    EndMessage,
    FailedMessage,
    MissingMessage,
    NoticeMessage,
    OtherReply,
    ProfileMessage,
    ReceiptMessage,
    ReplyHeader,
    RunMessage,
    StopMessage,
    SumHeader,
    Telemetry,
)
from fedquilt_common.wire.parsing import MAX_MESSAGE, parse, parse_inbox, parse_telemetry
from fedquilt_common.wire.round_messages import PatchMessage, RoundMessage, SliceMessage, TaskMessage

GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "messages.json").read_text(encoding="utf-8"))
A, B = "0a" * 32, "ff" * 32
XXH3 = "00112233445566778899aabbccddeeff"
HEADERS = {"ChunkHeader with SHA-256": XXH3 * 2, "ChunkHeader with XXH3": XXH3}
REPLY: dict[str, Any] = {"run": "digits-1", "client": 3, "round": 2, "exchange": 0}
TASK = TaskMessage(clients=[3, 4], kind="train", patches=[1, 0], scalars={"mu": 0.5, "n": 1, "ok": True, "s": "x"})
ROUND = RoundMessage(
    run="digits-1",
    round=2,
    exchange=0,
    deadline=1700000000.25,
    patches=[PatchMessage(slot=0, digest=A, size=4096), PatchMessage(slot=1, digest=B, size=5_000_000_000)],
    tasks=[
        TASK,
        TaskMessage(clients=[], kind="score", patches=[]),
        TaskMessage(clients=[5], kind="train", patches=[0], slice=0),
    ],
    slices=[SliceMessage(base=0, kept=[[0, 8], "/w=="], absent=["exits.1.weight"])],
    since={"3": (1, 0)},
)
DATA = DataMessage(
    name="aep", shape=[18], dtype="float32", classes=0, task="regression", label_shape=[1], label_dtype="float32",
    shards=[DataFile(digest=A, size=4096)], test=DataFile(digest=B, size=1, url="https://example.org/test"),
)  # fmt: skip
SAMPLES: dict[str, WireMessage] = {
    "CoordinatorPresence": CoordinatorPresence(
        online=True, epoch=4, run="digits-1", started=1795217643, time=1795217650
    ),
    "RunMessage": RunMessage(
        run="digits-1", experiment={"seed": 7, "name": "z\u00fcrich"}, partition=A, data=DATA, code={"own.net": A}
    ),
    "DataRequest": DataRequest(run="digits-1", digest=B, first=16, count=16),
    "RoundMessage": ROUND,
    "AgentPresence": AgentPresence(
        agent="pi-1",
        online=True,
        boot=9,
        clients=[3, 4],
        workers=2,
        profile=ProfileMessage(kind="weak", cores=4, memory=2**33, gpu="", machine="Raspberry Pi 4"),
        version="0.1.0",
        instance="0123456789abcdef",
    ),
    "Telemetry": Telemetry(
        agent="pi-1",
        boot=9,
        memory_used=1024,
        memory_own=512,
        load=0.5,
        temperature=51.5,
        power=4.5,
        joules=27.0,
        power_source="sensor",
        throttled=0x50005,
        training={"3": 0.25},
    ),
    "FailedMessage": FailedMessage(agent="pi-1", reason="out of memory", **REPLY),
    "NoticeMessage": NoticeMessage(agent="pi-1", boot=9, kind="out-of-memory", text="smaller from now on", **REPLY),
    "ReceiptMessage": ReceiptMessage(
        digest=B, outcome="rejected", reason="late by a round", others=[OtherReply(client=4, digest=A)], **REPLY
    ),
    "MissingMessage": MissingMessage(digest=B, bitmap=encode_bitmap([0, 9], 10), **REPLY),
    "StopMessage": StopMessage(run="digits-1", clients=[3], round=7, exchange=1),
    "ReplyHeader": ReplyHeader(task="0123456789abcdef", weight=60.0, metrics={"loss": 0.125}, **REPLY),
    "SumHeader": SumHeader(run="digits-1", round=2, exchange=0, base=A),
    "EndMessage": EndMessage(run="digits-1", reason="all rounds done"),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_golden_bytes(name: str) -> None:
    """A change here changes the protocol: raise PROTOCOL, or make it a change that old boards can ignore."""
    assert SAMPLES[name].encode().decode() == GOLDEN[name]


@pytest.mark.parametrize("name", SAMPLES)
def test_golden_bytes_read_back(name: str) -> None:
    sample = SAMPLES[name]
    assert parse(type(sample), GOLDEN[name].encode(), "t") == sample


def test_tasks_that_go_on_keep_their_fingerprints_and_need_no_other_patches() -> None:
    later = ROUND.model_copy(update={"round": 9, "earlier": [ROUND.reduce({4})]})
    (earlier,) = parse(RoundMessage, later.encode(), "t").earlier
    (task,) = earlier.tasks
    assert task.clients == [4]
    assert earlier.fingerprint(task, 4) == ROUND.fingerprint(ROUND.tasks[0], 4)
    assert {patch.digest for patch in earlier.patches} == {ROUND.patches[i].digest for i in ROUND.tasks[0].patches}
    assert earlier.since == {}


@pytest.mark.parametrize("changes", [{"run": "other"}, {"round": 9}, {"earlier": [ROUND]}])
def test_a_manifest_that_goes_on_is_of_an_earlier_exchange_of_the_run(changes: dict[str, Any]) -> None:
    later = ROUND.model_copy(update={"round": 9, "earlier": [ROUND.model_copy(update=changes)]})
    with pytest.raises(PayloadError, match="not of an earlier exchange"):
        parse(RoundMessage, later.encode(), "t")


def test_every_message_is_pinned() -> None:
    found = {
        kind.__name__
        for module in (messages, round_messages, data_messages)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, WireMessage)
    }
    assert found - {"WireMessage"} == set(SAMPLES)
    assert set(GOLDEN) == {*SAMPLES, "fingerprint", *HEADERS}


@pytest.mark.parametrize("name", HEADERS)
def test_golden_chunk_headers(name: str) -> None:
    header = ChunkHeader(HEADERS[name], index=2, count=3, size=700_000)
    assert header.encode().hex() == GOLDEN[name]
    assert ChunkHeader.decode(bytes.fromhex(GOLDEN[name])) == header


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("RunMessage", '"partition":"%s"'), ("RunMessage", '"public":"%s"'), ("RunMessage", '"digest":"%s"'),
        ("DataRequest", '"digest":"%s"'), ("ReplyHeader", '"public":"%s"'),
    ],
)  # fmt: skip
def test_samples_are_named_by_sha_256_only(name: str, digest: str) -> None:
    sample, key = SAMPLES[name], digest.partition(":")[0]
    text = sample.encode().decode()
    old = next((digest % one for one in (A, B) if digest % one in text), f"{key}:null")
    assert old in text
    parse(type(sample), text.replace(old, digest % A, 1).encode(), "t")
    with pytest.raises(PayloadError, match="must be 64 hexadecimal digits"):
        parse(type(sample), text.replace(old, digest % XXH3, 1).encode(), "t")


def test_scalars_keep_their_types() -> None:
    read = parse(RoundMessage, ROUND.encode(), "t").tasks[0].scalars
    assert {key: type(value) for key, value in read.items()} == {"mu": float, "n": int, "ok": bool, "s": str}


def test_the_profile_has_the_fields_of_the_record() -> None:
    assert list(ProfileMessage.model_fields) == [field.name for field in fields(Profile)]
    assert Profile(**ProfileMessage().model_dump()) == Profile()


def changed(sample: WireMessage, **values: Any) -> bytes:
    """The sample's JSON with some keys replaced; None removes a key."""
    body = json.loads(sample.encode()) | values
    return json.dumps({key: value for key, value in body.items() if value is not None}).encode()


END = SAMPLES["EndMessage"]


@pytest.mark.parametrize("version", [2, 99, 10**30])
def test_a_newer_protocol_says_what_to_do(version: int) -> None:
    for read in (lambda p: parse(EndMessage, p, "f/end"), lambda p: parse_inbox(p, "f/end")):
        with pytest.raises(
            ProtocolVersionError, match=rf"f/end has protocol version {version}, .* supports 1: install"
        ):
            read(changed(END, v=version, run=["another", "shape"]))


@pytest.mark.parametrize("version", [0, -1, True, 1.0, "1", None, [1], {}])
def test_no_valid_version(version: Any) -> None:
    with pytest.raises(PayloadError, match="f/end has no valid protocol version"):
        parse(EndMessage, changed(END, v=version), "f/end")


def test_unknown_keys_are_ignored() -> None:
    assert parse(EndMessage, changed(END, later={"a": [1]}), "t") == END


NOT_JSON = [b"", b"\xff\xfe", b"{", b"nothing", b'{"v":1,}', b'{"v":' + b"9" * 5000 + b"}", b"[" * 100_000, b"{}{}"]


@pytest.mark.parametrize("payload", [*NOT_JSON, b"\x00" * 64], ids=lambda p: repr(p[:12]))
def test_not_json(payload: bytes) -> None:
    with pytest.raises(PayloadError, match=r"f/end is not JSON"):
        parse(EndMessage, payload, "f/end")


@pytest.mark.parametrize("payload", [b"[]", b"1", b"null", b'"x"', b"true", b"NaN", b"[" * 500 + b"]" * 500])
def test_not_an_object(payload: bytes) -> None:
    with pytest.raises(PayloadError, match=r"f/end is not a JSON object"):
        parse(EndMessage, payload, "f/end")


@pytest.mark.parametrize("depth", [250, 900, 100_000])
def test_deep_nesting(depth: int) -> None:
    payload = b'{"v":1,"run":"r","experiment":{"a":' + b"[" * depth + b"]" * depth + b"}}"
    with pytest.raises(PayloadError, match="f/run"):
        parse(RunMessage, payload, "f/run")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1"])
def test_other_encodings(encoding: str) -> None:
    payload = '{"v":1,"run":"a","reason":"\u00e9"}'.encode(encoding)
    with pytest.raises(PayloadError):
        parse(EndMessage, payload, "t")


def test_oversize_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    fitting = END.encode() + b" " * (MAX_MESSAGE - len(END.encode()))
    assert parse(EndMessage, fitting, "t") == END
    monkeypatch.setattr("fedquilt_common.wire.parsing.json.loads", lambda _: pytest.fail("was read"))
    with pytest.raises(PayloadError, match=f"t has {MAX_MESSAGE + 1} bytes; the limit is {MAX_MESSAGE}"):
        parse(EndMessage, fitting + b" ", "t")


WRONG = [
    ("EndMessage", "run", 1),
    ("EndMessage", "run", "a/b"),
    ("EndMessage", "run", "a\n"),
    ("EndMessage", "run", ""),
    ("EndMessage", "run", None),
    ("EndMessage", "reason", "x" * 501),
    ("CoordinatorPresence", "online", 1),
    ("CoordinatorPresence", "epoch", "4"),
    ("CoordinatorPresence", "epoch", 4.0),
    ("CoordinatorPresence", "epoch", -1),
    ("CoordinatorPresence", "epoch", 10**9),
    ("CoordinatorPresence", "started", 2**63),
    ("RunMessage", "experiment", []),
    ("RunMessage", "partition", "AB" * 32),
    ("RunMessage", "partition", "0a" * 31),
    ("RunMessage", "code", {"../net": "0a" * 32}),
    ("RunMessage", "code", {"net": "0a" * 31}),
    ("RoundMessage", "deadline", "soon"),
    ("RoundMessage", "patches", {}),
    ("RoundMessage", "tasks", [{"clients": [1]}]),
    ("RoundMessage", "tasks", [{"clients": [1], "kind": "k", "patches": [], "scalars": {"a": [1]}}]),
    ("RoundMessage", "tasks", [{"clients": [1], "kind": "k", "patches": [], "scalars": {"a": None}}]),
    ("AgentPresence", "agent", "a b"),
    ("AgentPresence", "boot", -1),
    ("AgentPresence", "boot", 2**63),
    ("AgentPresence", "clients", [1_000_000]),
    ("AgentPresence", "clients", [-1]),
    ("AgentPresence", "clients", [True]),
    ("AgentPresence", "clients", [0] * 400_001),
    ("AgentPresence", "workers", 0),
    ("AgentPresence", "profile", {"memory": 10**400}),
    ("Telemetry", "memory_used", 10**400),
    ("Telemetry", "memory_own", -1),
    ("Telemetry", "load", -0.5),
    ("Telemetry", "load", float("inf")),
    ("Telemetry", "temperature", float("nan")),
    ("Telemetry", "power", float("inf")),
    ("Telemetry", "power", 1e13),
    ("Telemetry", "joules", -1.0),
    ("Telemetry", "joules", float("nan")),
    ("Telemetry", "joules", 1e16),
    ("Telemetry", "power_source", "Sensor of the board"),
    ("Telemetry", "power_source", "x" * 33),
    ("Telemetry", "training", {"3": 1.5}),
    ("Telemetry", "training", {"3": float("nan")}),
    ("Telemetry", "training", {"\u00b2": 0.5}),
    ("Telemetry", "training", {"9" * 5000: 0.5}),
    ("Telemetry", "training", {"": 0.5}),
    ("ReplyHeader", "weight", -1.0),
    ("ReplyHeader", "weight", float("nan")),
    ("ReplyHeader", "weight", float("inf")),
    ("ReplyHeader", "weight", 1e13),
    ("ReplyHeader", "metrics", {"loss": float("inf")}),
    ("ReplyHeader", "metrics", {str(i): 0.0 for i in range(65)}),
    ("ReplyHeader", "task", "0123456789ABCDEF"),
    ("NoticeMessage", "kind", "out of memory"),
    ("NoticeMessage", "text", "x" * 501),
    ("NoticeMessage", "boot", None),
    ("NoticeMessage", "client", 1_000_000),
    ("ReceiptMessage", "outcome", "lost"),
    ("ReceiptMessage", "client", 1.5),
    ("MissingMessage", "bitmap", "a b="),
]


@each(WRONG, lambda name, key, value: f"{name}-{key}-{value!r:.40}")
def test_wrong_values_name_topic_and_field(name: str, key: str, value: Any) -> None:
    with pytest.raises(PayloadError, match=rf"message on f/x: {key}") as caught:
        parse(type(SAMPLES[name]), changed(SAMPLES[name], **{key: value}), "f/x")
    assert len(str(caught.value)) <= 500


@pytest.mark.parametrize("name", ["ReceiptMessage", "MissingMessage", "StopMessage"])
def test_the_inbox_tells_its_messages_apart(name: str) -> None:
    read = parse_inbox(SAMPLES[name].encode(), "t")
    assert read == SAMPLES[name]
    assert type(read) is type(SAMPLES[name])


@pytest.mark.parametrize("kind", ["failed", "Receipt", None, 1, ["receipt"]])
def test_other_things_in_the_inbox(kind: Any) -> None:
    with pytest.raises(PayloadError, match="f/inbox"):
        parse_inbox(changed(SAMPLES["ReceiptMessage"], type=kind), "f/inbox")


@pytest.mark.parametrize("name", ["Telemetry", "FailedMessage", "NoticeMessage"])
def test_the_telemetry_topic_tells_its_messages_apart(name: str) -> None:
    read = parse_telemetry(SAMPLES[name].encode(), "t")
    assert (type(read), read) == (type(SAMPLES[name]), SAMPLES[name])


@pytest.mark.parametrize(("name", "key"), [("FailedMessage", "reason"), ("NoticeMessage", "text")])
def test_a_text_is_one_line_so_that_it_never_looks_like_a_line_of_the_coordinator(name: str, key: str) -> None:
    forged = "oops\nround 6/6: accuracy 0.9999\r\x1b[2K"
    assert getattr(parse_telemetry(changed(SAMPLES[name], **{key: forged}), "t"), key) == (
        "oops round 6/6: accuracy 0.9999  [2K"
    )


@pytest.mark.parametrize(("name", "key"), [("FailedMessage", "client"), ("NoticeMessage", "kind")])
def test_broken_messages_on_the_telemetry_topic(name: str, key: str) -> None:
    with pytest.raises(PayloadError, match=key):
        parse_telemetry(changed(SAMPLES[name], **{key: None}), "t")


def test_telemetry_of_an_earlier_version() -> None:
    new = {"memory_own", "load", "joules", "power_source"}
    old = {key: value for key, value in json.loads(SAMPLES["Telemetry"].encode()).items() if key not in new}
    read = parse_telemetry(json.dumps(old).encode(), "t")
    assert isinstance(read, Telemetry)
    assert (read.memory_own, read.load, read.joules, read.power_source) == (None, None, None, "")


def test_telemetry_with_the_words_of_a_later_version() -> None:
    read = parse_telemetry(changed(SAMPLES["Telemetry"], power_source="socket", type="later", more=[1]), "t")
    assert isinstance(read, Telemetry)
    assert read.power_source == "socket"


def test_fingerprint_is_pinned() -> None:
    assert ROUND.fingerprint(TASK, 3) == GOLDEN["fingerprint"]
    assert ROUND.fingerprints(TASK, range(9)) == {client: ROUND.fingerprint(TASK, client) for client in range(9)}
    assert parse(RoundMessage, ROUND.encode(), "t").fingerprint(TASK, 3) == GOLDEN["fingerprint"]


def test_fingerprint_sees_every_part_of_the_question() -> None:
    other_patch = [ROUND.patches[0].model_copy(update={"digest": B}), ROUND.patches[1]]
    asked: list[dict[str, Any]] = [{"run": "digits-2"}, {"round": 3}, {"exchange": 1}, {"patches": other_patch}]
    told: list[dict[str, Any]] = [{"kind": "score"}, {"patches": [0, 1]}, {"patches": [1]}, {"scalars": {}}]
    told += [{"scalars": TASK.scalars | {"n": n}} for n in (2, 1.0, True)]
    asked += [{"since": {"3": since}} for since in ((0, 0), (1, 1))]
    prints = [ROUND.model_copy(update=change).fingerprint(TASK, 3) for change in asked]
    prints += [ROUND.fingerprint(TASK.model_copy(update=change), 3) for change in told]
    assert len({*prints, GOLDEN["fingerprint"]}) == len(prints) + 1


def test_fingerprint_sees_nothing_else() -> None:
    moved = [patch.model_copy(update={"slot": 8, "size": 5}) for patch in ROUND.patches]
    later = ROUND.model_copy(update={"deadline": None, "patches": moved, "tasks": [],
                                     "since": {"3": (1, 0), "4": (5, 0)}})  # fmt: skip
    turned = TASK.model_copy(update={"clients": [9], "scalars": dict(reversed(TASK.scalars.items()))})
    assert later.fingerprint(turned, 3) == GOLDEN["fingerprint"]


def test_the_error_of_a_message_controls_no_terminal() -> None:
    payload = Telemetry(agent="a", boot=1).encode().replace(b'"training":{}', b'"training":{"\\u001b[2J\\n":"x"}')
    with pytest.raises(PayloadError, match=r"training. \[2J ") as raised:
        parse_telemetry(payload, "t")
    assert str(raised.value).isprintable()
