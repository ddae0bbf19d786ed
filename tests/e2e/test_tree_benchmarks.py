"""benchmarks/tree.py measures a real simulation, and benchmarks/connections.py real connections."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from connections import TOPICS, Crowd, child, connect_all
from mqtt_boards import PINGREQ, PINGRESP, PUBLISH, SUBACK, connect, open_board, packet, subscribe
from tree import Case, measure

from fedquilt_server.simulate.mosquitto import broker_command, free_port, wait_listening

BOARDS = 5


def test_a_case_is_measured() -> None:
    found = measure(Case(2, 6, 0.02, relay=True), seconds=0.0, least=1)
    assert len(found["seconds"]) == found["rounds"] >= 1
    assert 0 < found["bytes_up"] < 6 * 20_000 < found["bytes_down"] * 6
    for role in ("broker", "coordinator", "agent", "worker"):
        assert found["peak_bytes"][role] > 1_000_000, role
        assert found["processor_seconds"][role] >= 0, role
    assert found["processor_seconds"]["coordinator"] > 0


def test_bare_connections_receive_what_the_broker_retains_and_publishes(tmp_path: Path) -> None:
    asyncio.run(use_boards(tmp_path))


async def use_boards(folder: Path) -> None:
    port = free_port()
    with child(broker_command(folder, port)) as broker:
        wait_listening("127.0.0.1", port, 60)
        crowd = await connect_all(psutil.Process(broker.pid), port, BOARDS)
        await check_model(crowd)
        reader = await open_board(port, connect("reader", TOPICS.coordinator, b""))
        presences = reader.expect(PUBLISH, BOARDS)
        reader.send(subscribe([TOPICS.presence("+")]))
        await asyncio.wait_for(presences, 60)
        assert reader.answers[SUBACK] == 1
        await asyncio.wait_for(reader.ask(packet(PINGREQ, b""), PINGRESP), 60)
        for board in (reader, *crowd.boards):
            board.close()


async def check_model(crowd: Crowd) -> None:
    """A model of two chunks reaches every board twice."""
    before = [board.received for board in crowd.boards]
    await asyncio.wait_for(crowd.receive(300_000, 2), 60)
    gained = [board.received - old for board, old in zip(crowd.boards, before, strict=True)]
    assert all(600_000 < more < 601_000 for more in gained), gained
