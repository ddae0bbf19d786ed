"""Hostile replies: the agent gets a reason, the row counts each one, and the model is bit-identical."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fedquilt_common.wire.messages import FailedMessage
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.topics import Topics

pytestmark = pytest.mark.quick

if TYPE_CHECKING:
    from tests.faults.conftest import Parcel, Player, Stage

TOPICS = Topics("lab")
Act = Callable[["Player", RoundMessage], object]


@dataclass(frozen=True)
class Case:
    """Act of the agent ``pi`` in round 2 before it replies, the reason that it gets, and the counts of the row."""

    act: Act
    reason: str
    outcome: str = "rejected"
    count: int = 1
    told: bool = True


def arrays_with(change: Callable[[dict[str, Any]], object]) -> Act:
    """Send a reply of client 0 with changed arrays."""

    def act(player: Player, _: RoundMessage) -> None:
        model = player.model()
        assert model is not None
        arrays = {name: np.array(x) for name, x in model.items()}
        change(arrays)
        player.send(player.pack(0, arrays))

    return act


def header_with(**changes: Any) -> Act:
    return lambda player, _: player.send(player.pack(0, **changes))


def header_text(change: Callable[[str], str]) -> Act:
    return lambda player, _: player.send(player.pack(0, header=change))


def moved(**changes: int | str) -> Act:
    """Send a valid reply of client 0 on the topic of another reply."""

    def act(player: Player, _: RoundMessage) -> None:
        player.send(replace(player.pack(0, metrics={"odd": 1.0}), **changes))  # type: ignore[arg-type]

    return act


def poison(at: int, value: float) -> Act:
    def change(arrays: dict[str, Any]) -> None:
        arrays["part3.weight"][at] = value

    return arrays_with(change)


def truncated(player: Player, _: RoundMessage) -> None:
    parcel = player.pack(0, metrics={"odd": 1.0})
    for header in parcel.headers:
        data = parcel.bytes_of(header)
        player.say(parcel.topic(header.index), data[:-1] if header.index == 1 else data, header.encode())


def forged(player: Player, _: RoundMessage) -> None:
    """Send chunks of the right length, one of them with other bytes."""
    parcel = player.pack(0, metrics={"odd": 1.0})
    for header in parcel.headers:
        data = parcel.bytes_of(header)
        player.say(parcel.topic(header.index), data[::-1] if header.index == 1 else data, header.encode())


def announced(size: int, count: int, index: int = 0) -> Act:
    """Send one chunk of a transfer that announces this size."""
    header = (b"\x01" + b"\xab" * 32) + b"".join(n.to_bytes(w, "big") for n, w in ((index, 4), (count, 4), (size, 8)))
    return lambda player, message: player.say(TOPICS.reply_chunk("pi", 0, message.round, 0, index), b"x", header)


def garbage_container(player: Player, _: RoundMessage) -> None:
    parcel = player.pack(0)
    parcel.blob.path.write_bytes(b"\xff" * 9000)
    player.send(_again(parcel))


def _again(parcel: Parcel) -> Parcel:
    """Return the parcel with the digest and size of its changed file."""
    content = parcel.blob.path.read_bytes()
    blob = replace(parcel.blob, digest=hashlib.sha256(content).hexdigest(), size=len(content))
    return replace(parcel, blob=blob, headers=[])


def wrong_index(player: Player, _: RoundMessage) -> None:
    parcel = player.pack(0, metrics={"odd": 1.0})
    header = parcel.headers[0]
    player.say(parcel.topic(1), parcel.bytes_of(header), header.encode())


def twice(player: Player, _: RoundMessage) -> None:
    """Send client 0's honest reply; the stage sends the same reply again."""
    player.send(player.pack(0))


def presence(**fields: Any) -> Act:
    known = {"v": 1, "agent": "pi", "online": True, "boot": 1, "clients": [0, 1]}
    payload = json.dumps({**known, **fields}).encode()
    return lambda player, _: player.say(TOPICS.presence("pi"), payload)


def telemetry(payload: bytes) -> Act:
    return lambda player, _: player.say(TOPICS.telemetry("pi"), payload)


def words(message: Any) -> bytes:
    return json.dumps(message).encode()


FAILED = FailedMessage(agent="pi", run="x", client=0, round=2, exchange=0, reason="out of memory")
CASES: dict[str, Case] = {
    "sent twice": Case(twice, "a reply of this client has been counted", "duplicate"),
    "truncated chunk": Case(truncated, r"chunk 1 has \d+ bytes instead of"),
    "other bytes": Case(forged, "do not have the announced digest"),
    "too large": Case(announced(1 << 40, 1 << 18), r"transfer of 1099511627776 bytes is larger than"),
    "one byte too large for the question": Case(announced(12_000 + 8192 + 256 * 8 + 1, 9), "is larger than"),
    "chunks beyond counting": Case(announced(1 << 40, (1 << 32) - 1), "cannot exist", told=False),
    "chunk after the last": Case(announced(9000, 3, 3), "cannot exist", told=False),
    "no chunk header": Case(
        lambda p, m: p.say(TOPICS.reply_chunk("pi", 0, 2, 0, 0), b"x"), "has no header", told=False
    ),
    "garbage chunk header": Case(
        lambda p, m: p.say(TOPICS.reply_chunk("pi", 0, 2, 0, 0), b"x", b"\xff" * 49), "version 255", told=False
    ),
    "other chunk's topic": Case(wrong_index, "chunk 0 arrived on the topic of chunk 1"),
    "wrong shape": Case(arrays_with(lambda a: a.update({"part1.weight": a["part1.weight"][:-1]})), "has shape"),
    "other rank": Case(arrays_with(lambda a: a.update({"part1.weight": a["part1.weight"][None]})), "has shape"),
    "wrong dtype": Case(
        arrays_with(lambda a: a.update({"part1.weight": a["part1.weight"].view(np.int32)})), "has dtype int32"
    ),
    "fp16 unasked": Case(
        arrays_with(lambda a: a.update({"part1.weight": a["part1.weight"].astype(np.int16)})), "has dtype int16"
    ),
    "missing array": Case(arrays_with(lambda a: a.pop("part0.weight")), "lacks arrays .*: 'part0.weight'"),
    "extra array": Case(
        arrays_with(lambda a: a.update(zzz=np.zeros(3, np.float32))), "not expect: 'zzz'; list them in"
    ),
    "nan": Case(poison(-1, np.nan), "'part3.weight' holds numbers that are not finite"),
    "infinity": Case(poison(0, -np.inf), "'part3.weight' holds numbers that are not finite"),
    "weight nan": Case(header_text(lambda text: text.replace('"weight":1.0', '"weight":NaN')), "weight"),
    "weight infinite": Case(header_with(weight=1e13), "weight"),
    "weight negative": Case(header_with(weight=-1.0), "weight"),
    "wrong run": Case(header_with(run="another-run"), "names another run"),
    "wrong client inside": Case(header_with(client=1), "names another run"),
    "wrong round inside": Case(header_with(round=1), "names another run"),
    "wrong task": Case(header_with(task="0" * 16), "answers another task"),
    "newer protocol": Case(header_with(v=2), "has protocol version 2"),
    "garbage header": Case(header_text(lambda _: "\x00garbage"), "is not JSON"),
    "no header": Case(header_text(lambda _: ""), "is not JSON"),
    "garbage container": Case(garbage_container, "not a safetensors container"),
    "old round": Case(moved(round=1), "a reply of this client has been counted", "duplicate"),
    "older round": Case(moved(round=0), "round 0, exchange 0 is closed", "late"),
    "future round": Case(moved(round=3), "round 3, exchange 0 is not open"),
    "future exchange": Case(moved(exchange=1), "round 2, exchange 1 is not open"),
    "client of another agent": Case(moved(client=2), "agent pi does not host client 2"),
    "client that nobody has": Case(moved(client=999), "agent pi does not host client 999"),
    "client that no message can name": Case(moved(client=1_000_000), "is not one of federation", count=4, told=False),
    "agent that nobody knows": Case(moved(agent="mallory"), "agent mallory does not host client 0", told=False),
    "no number in the topic": Case(
        lambda p, m: p.say("fedquilt/v1/lab/agents/pi/replies/x/2.0/0", b"x"), "is not one of federation", told=False
    ),
    "claims another's client": Case(
        presence(clients=[0, 1, 2], boot=2), "already hosted by jetson: client 2", told=False
    ),
    "presence of another agent": Case(
        presence(agent="jetson", online=False, boot=9), "published on the topic", told=False
    ),
    "presence garbage": Case(lambda p, m: p.say(TOPICS.presence("pi"), b"\xff\xfe{"), "is not JSON", told=False),
    "presence with a text for clients": Case(presence(clients="all"), "clients", told=False),
    "presence of a newer protocol": Case(presence(v=2), "has protocol version 2", told=False),
    "telemetry garbage": Case(telemetry(b"[]"), "is not a JSON object", told=False),
    "telemetry of a client that is not a number": Case(
        telemetry(words({"v": 1, "agent": "pi", "boot": 1, "training": {"\u00b2": 0.5}})), "training", told=False
    ),
    "failure of another agent": Case(
        telemetry(FAILED.model_copy(update={"agent": "x"}).encode()), "published on the topic", told=False
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_does_not_count_and_says_why(name: str, stage: Stage, undisturbed: str) -> None:
    case = CASES[name]

    def misbehave(player: Player, message: RoundMessage) -> None:
        if player.name == "pi" and message.round == 2:
            case.act(player, message)

    stage.play(misbehave)
    assert stage.sha256 == undisturbed
    counts = [{"late": r.late, "rejected": r.rejected, "duplicate": r.duplicates} for r in stage.rows]
    nothing = dict.fromkeys(counts[0], 0)
    assert counts == [nothing, {**nothing, case.outcome: case.count}]
    assert [row.clients for row in stage.rows] == [3, 3]
    shown = stage.board.current
    assert {"late": shown.late, "rejected": shown.rejected, "duplicate": shown.duplicates} == counts[1]
    if case.outcome == "rejected":
        assert shown.rejections[0].agent == ("mallory" if name == "agent that nobody knows" else "pi")
        assert re.search(case.reason, shown.rejections[0].reason)
    answers = [r for r in stage.players["pi"].receipts if r.outcome != "accepted"]
    assert {r.outcome for r in answers} == ({case.outcome} if case.told else set())
    assert all(re.search(case.reason, receipt.reason) for receipt in answers)
    accepted = [(r.client, r.round) for r in stage.players["pi"].receipts if r.outcome == "accepted"]
    assert sorted(accepted) == [(0, 1), (0, 2), (1, 1), (1, 2)]
