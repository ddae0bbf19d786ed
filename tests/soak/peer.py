"""A hostile peer: a client of the broker with a valid agent name of its own, which sends arbitrary messages."""

from __future__ import annotations

import json
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.soak.experiments import CLIENTS
from tests.soak.network import Network
from tests.soak.scenario import Fault

from fedquilt_common.wire.broker_url import parse_broker_url
from fedquilt_common.wire.messages import AgentPresence
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Connected, Incoming, MqttMessage, Will

NAME: Final = "mallory"
FLOOD: Final = 5_000
"""Most messages of one fault."""
LARGE: Final = 200_000
CONNECT_SECONDS: Final = 5.0

Sending = tuple[str, bytes, bytes, bool]
"""Topic, payload, header, retained."""


class Peer:
    """The hostile peer's connection to the broker."""

    def __init__(self, url: str, federation: str, *, acknowledges: bool = True) -> None:
        self.topics = Topics(federation)
        self._acknowledges = acknowledges
        self._connected = threading.Event()
        gone = AgentPresence(agent=NAME, online=False, boot=1).encode()
        self.transport = MqttTransport(
            parse_broker_url(url), f"fedquilt-{federation}-{NAME}-0", self._take,
            will=Will(self.topics.presence(NAME), gone, 0),
        )  # fmt: skip

    def connect(self) -> bool:
        """Connect; returns whether the broker has accepted it."""
        self.transport.connect()
        return self._connected.wait(CONNECT_SECONDS)

    def leave(self) -> None:
        """Withdraw the presence and leave."""
        gone = AgentPresence(agent=NAME, online=False, boot=int(time.time()) + 1000).encode()
        self.transport.close((self.topics.presence(NAME), gone))

    def _take(self, incoming: Incoming) -> None:
        if isinstance(incoming, Connected):
            self._connected.set()
        elif isinstance(incoming, MqttMessage) and self._acknowledges:
            incoming.ack()


def attack(net: Network, run: Path, federation: str, fault: Fault) -> int:
    """Attack for some seconds; returns how many messages were sent, or 1 for other attacks."""
    peer = Peer(net.url, federation, acknowledges=fault.detail != "deaf")
    try:
        if not peer.connect():
            return 0
        if fault.detail == "deaf":
            peer.transport.subscribe(["#"])
        draw, end, sent = random.Random(fault.number), time.monotonic() + fault.seconds, 0
        for topic, payload, header, retained in ATTACKS[fault.detail](peer.topics, draw, _run_of(run)):
            if time.monotonic() > end or not peer.transport.publish(topic, payload, header=header, retain=retained):
                break
            sent += 1
        time.sleep(max(0.0, end - time.monotonic()))
        return max(sent, fault.detail == "deaf")
    finally:
        peer.leave()


def _run_of(run: Path) -> str:
    """Return the run's identifier as the agents know it; any name while there is none."""
    for path in sorted(run.glob("agents/*/runs/*/run.json")):
        try:
            return str(json.loads(path.read_text())["run"])
        except (OSError, ValueError):
            continue
    return "unknown"


def garbage(topics: Topics, draw: random.Random, _run: str) -> Iterator[Sending]:
    """Yield random bytes on all topics of the peer."""
    for _ in range(200):
        size = int(10 ** draw.uniform(0, 4))
        client, round, exchange, index = (draw.randrange(6) for _ in range(4))
        reply = topics.reply_chunk(NAME, client, round, exchange, index)
        topic = draw.choice((topics.presence(NAME), topics.telemetry(NAME), reply))
        yield topic, draw.randbytes(size), draw.randbytes(draw.choice((0, 10, 49, 60))), draw.random() < 0.3


def claims(topics: Topics, draw: random.Random, _run: str) -> Iterator[Sending]:
    """Yield valid presences that claim clients of others, with ever later boots."""
    for step in range(50):
        clients = sorted(draw.sample(range(CLIENTS + 3), draw.randint(1, CLIENTS)))
        here = AgentPresence(agent=NAME, online=True, boot=int(time.time()) + step, clients=clients)
        yield topics.presence(NAME), here.encode(), b"", True
        time.sleep(0.02)


def replies(topics: Topics, draw: random.Random, _run: str) -> Iterator[Sending]:
    """Yield chunks of replies with valid headers, for clients of others."""
    for _ in range(500):
        count = draw.randint(1, 4)
        index, data = draw.randrange(count), draw.randbytes(1000)
        header = struct.pack(">B32sIIQ", 1, draw.randbytes(32), index, count, 1000 * count)
        topic = topics.reply_chunk(NAME, draw.randrange(CLIENTS), draw.randint(1, 5), draw.randrange(2), index)
        yield topic, data, header, False


def failures(topics: Topics, draw: random.Random, run: str) -> Iterator[Sending]:
    """Yield reports that clients of others failed."""
    for _ in range(100):
        failed = {"v": 1, "type": "failed", "agent": NAME, "run": run, "client": draw.randrange(CLIENTS)}
        body = {**failed, "round": draw.randint(1, 5), "exchange": draw.randrange(2), "reason": "x" * 100}
        yield topics.telemetry(NAME), json.dumps(body).encode(), b"", False


def flood(topics: Topics, draw: random.Random, _run: str) -> Iterator[Sending]:
    """Yield many small messages, and some large ones."""
    for step in range(FLOOD):
        yield topics.telemetry(NAME), draw.randbytes(LARGE if step % 500 == 0 else 20), b"", False


def deaf(_topics: Topics, _draw: random.Random, _run: str) -> Iterator[Sending]:
    """Yield nothing: this peer subscribes to everything and acknowledges nothing."""
    return iter(())


ATTACKS: Final[Mapping[str, Callable[[Topics, random.Random, str], Iterator[Sending]]]] = {
    "garbage": garbage,
    "claims": claims,
    "replies": replies,
    "failures": failures,
    "flood": flood,
    "deaf": deaf,
}
