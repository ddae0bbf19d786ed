"""Snapshots of runs that look real: for the tests of the page in a browser and for the documentation's pictures."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from typing import Any

from fedquilt_server.status.coverage import Coverage, LayerCoverage
from fedquilt_server.status.reply_row import ReplyRow
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.run_event import LEVELS, EventKind, RunEvent
from fedquilt_server.status.snapshot import BoardStatus, Snapshot

GIB = 2**30
KINDS = {
    "jetson": ("jetson-orin-nano", 6, 1.0),
    "pi5": ("raspberry-pi-5", 4, 0.5),
    "pi4": ("raspberry-pi-4", 4, 0.25),
}
LAYERS = {"conv1": 16, "layer1.0.conv1": 16, "layer2.0.conv1": 32, "layer2.1.conv2": 32, "layer3.0.conv1": 64, "fc": 10}
ROUND_SECONDS = 9.0
DONE = 20


def row(number: int) -> RoundResult:
    """Return the result of a round of a run that learns, with the same numbers each time."""
    training = 6.5 + math.sin(7 * number)
    zeros = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
    scores = {
        "accuracy": 0.95 - 0.75 * math.exp(-number / 5) + 0.01 * math.sin(9 * number),
        "loss": 0.25 + 2 * math.exp(-number / 4),
    }
    times = {"seconds": training + 1.9, "train_seconds": training, "overhead_seconds": 1.9, "sending_seconds": 0.4}
    ends = {"averaging_seconds": 0.15, "evaluate_seconds": 0.3 + 0.1 * math.sin(number)}
    sizes: dict[str, float] = {"bytes_down": 412_000 + 37 * number, "bytes_up": 3_260_000 + 911 * number}
    sizes |= {"joules": 310 + 40 * math.sin(5 * number)}
    counts = {"clients": 6 if number == 7 else 8, "asked": 8, "late": int(number == 7)}
    refused = {"rejected": int(number in (7, 12)), "round": number}
    return RoundResult.model_validate({**zeros, **scores, **times, **ends, **sizes, **counts, **refused})


def name_of(index: int) -> str:
    """Return names in groups: jetson-1, pi5-1, pi4-1, jetson-2 and so on."""
    return f"{list(KINDS)[index % 3]}-{index // 3 + 1}"


def healthy_board(index: int, now: float) -> BoardStatus:
    rng = random.Random(index)
    kind, cores, _ = KINDS[list(KINDS)[index % 3]]
    clients = [2 * index, 2 * index + 1]
    return BoardStatus(
        agent=name_of(index), kind=kind, clients=clients, workers=2, cores=cores, memory_total=8 * GIB,
        memory_used=int(rng.uniform(2.5, 6) * GIB), memory_own=int(rng.uniform(0.3, 1.2) * GIB),
        temperature=rng.uniform(48, 68), power=rng.uniform(4, 11), power_source="estimate" if index % 3 else "sensor",
        joules=rng.uniform(800, 4000), load=rng.uniform(0.4, 3.8), training={one: rng.random() for one in clients},
        last_seen=now - rng.uniform(0, 3), interval=2.0, accepted=2 * DONE,
    )  # fmt: skip


TROUBLES: dict[int, dict[str, Any]] = {
    1: {"health": "hot", "reason": "81.2 °C, slows down at 85 °C", "temperature": 81.2},
    2: {"health": "offline", "reason": "offline for 6 min", "online": False, "training": {}, "memory_used": None,
        "temperature": None, "power": None},
    7: {"health": "silent", "reason": "no message for 23 s", "training": {}},
    11: {"health": "throttled", "reason": "the supply voltage is too low"},
    16: {"health": "out of memory", "reason": "the kernel ended a training process", "restarts": 1},
    22: {"health": "late", "reason": "its reply missed the last deadline", "late": 2},
    30: {"health": "restarted", "reason": "restarted 2 times", "restarts": 2},
}  # fmt: skip


def list_boards(count: int, now: float) -> list[BoardStatus]:
    """Return boards of which a few are not well."""
    agos = {2: 400, 7: 23}
    return [
        healthy_board(i, now).model_copy(
            update={**TROUBLES.get(i, {}), "since": now - agos.get(i, 420), "last_seen": now - agos.get(i, i % 3)}
        )
        for i in range(count)
    ]


def replies(boards: list[BoardStatus], round: int, opened: float, closed: float | None) -> Iterator[ReplyRow]:
    """Yield the replies of one round: the weaker the board, the later. An offline board sends none."""
    for index, board in enumerate(boards):
        rng = random.Random(1000 * round + index)
        strength = KINDS[list(KINDS)[index % 3]][2]
        for client in board.clients:
            train = rng.uniform(0.8, 1.3) * (1.4 + 1.0 / strength)
            began = opened + rng.uniform(0.2, 0.6) + train
            arrived = began + rng.uniform(0.2, 0.9)
            missing = not board.online and round > DONE - 3
            times = {"opened_at": opened, "closed_at": closed}
            known = {} if missing else {"train_seconds": train, "began_at": began, "arrived_at": arrived}
            outcome = "missing" if missing else "accepted"
            yield ReplyRow.model_validate(
                {
                    "round": round,
                    "exchange": 0,
                    "client": client,
                    "agent": board.agent,
                    "outcome": outcome,
                    **times,
                    **known,
                }
            )


def reply_rows(boards: list[BoardStatus], now: float) -> list[ReplyRow]:
    """Return the replies of the last rounds and half of those of the open one."""
    start = now - 4.5 - 6 * ROUND_SECONDS
    rounds = range(DONE - 5, DONE + 1)
    closed = [
        reply
        for i, number in enumerate(rounds)
        for reply in replies(boards, number, start + i * ROUND_SECONDS, start + (i + 1) * ROUND_SECONDS - 0.8)
    ]
    opened = now - 4.5
    known = (reply for reply in replies(boards, DONE + 1, opened, None) if reply.outcome == "accepted")
    return [*closed, *(reply for reply in known if (reply.arrived_at or now) < now)]


def coverage(boards: list[BoardStatus], rounds: int = DONE) -> Coverage:
    """Return the coverage of FedRolex: windows of three widths that move by one channel a round."""
    return Coverage(rounds=rounds, layers=[_layer(name, size, boards, rounds) for name, size in LAYERS.items()])


def _layer(name: str, size: int, boards: list[BoardStatus], rounds: int) -> LayerCoverage:
    counts, latest, shares = [0] * size, [0] * size, {}
    for index, board in enumerate(boards):
        share = KINDS[list(KINDS)[index % 3]][2] if name != "fc" else 1.0
        shares[board.agent] = share
        for number in range(rounds):
            for channel in range(int(share * size)):
                place = (number + channel) % size
                counts[place] += len(board.clients)
                latest[place] += len(board.clients) if number == rounds - 1 else 0
    return LayerCoverage(name=name, counts=counts, latest=latest, boards=shares)


def events(now: float) -> list[RunEvent]:
    """Return events of the last minutes, newest first."""
    told: list[tuple[float, EventKind, str | None, str]] = [
        (12, "silent", "pi5-3", "No message for 10 s; its heartbeats come every 2 s."),
        (41, "rejected", "pi5-1", "The digest of chunk 3 is not the announced one."),
        (55, "deadline", None, "Round 18 closed by its deadline with 7 of 8 replies."),
        (56, "late", "pi4-1", "The reply to round 18 arrived after its exchange had closed."),
        (
            130,
            "out of memory",
            "jetson-6",
            "The kernel ended a training process; the client now gets width 0.5.",
        ),
        (185, "restarted", "jetson-11", "The agent restarted and sent its stored reply again."),
        (190, "left", "jetson-11", "The connection was lost."),
        (399, "left", "pi4-1", "The connection was lost."),
        (420, "joined", "pi4-1", "Hosts clients 4-5."),
        (421, "joined", "pi5-1", "Hosts clients 2-3."),
        (422, "joined", "jetson-1", "Hosts clients 0-1."),
        (425, "started", None, "The run started."),
    ]
    return [
        RunEvent(seq=i, at=now - ago, kind=kind, level=LEVELS[kind], board=board, text=text, round=DONE)
        for i, (ago, kind, board, text) in enumerate(told)
    ]


def running(count: int = 3, **changes: object) -> Snapshot:
    """Return a run with ``count`` boards after 20 of 40 rounds."""
    now = time.time()
    boards = list_boards(count, now)
    rows = reply_rows(boards, now)
    replied = {reply.client for reply in rows if reply.round == DONE + 1}
    awaited = [client for board in boards for client in board.clients if client not in replied]
    names = {"name": "digits-fedrolex", "run": "20250611-094512", "algorithm": "fedrolex", "dataset": "digits"}
    exchange = {"round": DONE + 1, "rounds": 40, "tasks": 2 * count, "replies": len(replied), "awaited": awaited}
    times = {"started_at": now - 425, "opened_at": now - 4.5, "deadline": now + 42.5}
    counts = {"accepted": 2 * count * DONE, "late": 1, "duplicates": 3, "rejected": 2}
    return Snapshot.model_validate({
        **names, **exchange, **times, **counts, "phase": "training", "broker_connected": True, "boards": boards,
        "history": [row(number) for number in range(1, DONE + 1)], "events": events(now), "reply_rows": rows,
        "coverage": coverage(boards), "connect": "--broker mqtt://workstation.local:1883", **changes,
    })  # fmt: skip


def waiting(count: int = 6) -> Snapshot:
    """Return a run before round 1 that lacks boards and clients."""
    now = time.time()
    boards = [
        BoardStatus(agent=name_of(i), clients=[2 * i, 2 * i + 1], health="never seen", online=False)
        if i % 2
        else healthy_board(i, now).model_copy(update={"training": {}, "accepted": 0, "joules": None})
        for i in range(count)
    ]
    awaited = [client for board in boards if not board.online for client in board.clients]
    return Snapshot(
        name="digits-fedrolex", run="20250611-094512", algorithm="fedrolex", dataset="digits", rounds=40,
        broker_connected=True, boards=boards, awaited=[*awaited, 2 * count, 2 * count + 1], started_at=now - 12,
        connect="--broker mqtt://workstation.local:1883",
        events=[RunEvent(at=now - 12, kind="started", text="The run started.")],
    )  # fmt: skip


def ended(phase: str, message: str = "", count: int = 3) -> Snapshot:
    """Return a run that is over."""
    base = running(count)
    over: dict[str, object] = {"phase": phase, "message": message, "awaited": [], "deadline": None, "opened_at": None}
    return base.model_copy(update={**over, "round": DONE, "rounds": DONE if phase == "finished" else 40})
