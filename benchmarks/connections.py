"""Measures what connected boards cost Mosquitto and the coordinator; history in benchmarks/results/connections.jsonl.

    python benchmarks/connections.py             500 and 4,000 boards: measure (about 2 minutes), print, append a line
    python benchmarks/connections.py --boards 50 --dry-run

The boards are bare MQTT 5 connections of one process (``mqtt_boards.py``) with what an agent has: a will, a retained
presence, its subscriptions, pings and telemetry. First they are alone with the broker. Then a coordinator joins, which
waits for clients that none of them hosts. Processor time and memory are those of the broker's and the coordinator's
process. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
from crowd import presence, telemetry
from mqtt_boards import (
    AT_ONCE,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBLISH,
    SUBACK,
    Board,
    connect,
    open_board,
    packet,
    publish,
    subscribe,
)
from provenance import append_result, commit, machine
from resume import end_on_signals

from fedquilt_common.experiment.experiment import dump_experiment
from fedquilt_common.process.file_limit import raise_file_limit
from fedquilt_common.process.process_memory import PROC, peak_bytes
from fedquilt_common.wire.topics import Topics
from fedquilt_server.simulate.mosquitto import broker_command, free_port, wait_listening
from fedquilt_server.tools.bench import bench_experiment

HISTORY: Final = Path(__file__).parent / "results" / "connections.jsonl"
TOPICS: Final = Topics("crowd")
CHUNK: Final = 256 * 1024
PINGS, MESSAGES = 40, 10
"""Pings, and messages of telemetry, that each board sends."""
MODELS: Final = ((10_000, 20), (1_000_000, 2))
"""Bytes of the models that the broker hands to all boards, and how often."""
CALM_SECONDS: Final = 1.0
CALM: Final = 0.4
"""A process that takes less of a processor than this share has done its work; a coordinator looks at all boards once a
second."""
IDLE_SECONDS: Final = 8.0
MOST_SECONDS: Final = 120.0


@dataclass(frozen=True)
class Crowd:
    """Boards at a broker.

    Args:
        broker: the broker's process.
        port: the broker's.
        boards: all boards.
    """

    broker: psutil.Process
    port: int
    boards: Sequence[Board]

    async def cost(self, action: Callable[[], Awaitable[None]], process: psutil.Process | None = None) -> float:
        """Return the processor seconds that an action costs the broker, or another process."""
        measured = process or self.broker
        before = processor_seconds(measured)
        await action()
        return processor_seconds(measured) - before

    async def ping(self) -> None:
        """Let each board send its pings, one after another."""
        for _ in range(PINGS):
            await all_of([board.ask(packet(PINGREQ, b""), PINGRESP) for board in self.boards])

    async def send_telemetry(self) -> None:
        """Let each board send its telemetry."""
        for second in range(MESSAGES):
            await all_of([
                board.ask(publish(TOPICS.telemetry(name), telemetry(name, second).encode()), PUBACK)
                for name, board in named(self.boards)
            ])  # fmt: skip

    async def receive(self, size: int, times: int) -> None:
        """Publish a model in chunks, several times, and wait until all boards have it."""
        chunks = [bytes(min(CHUNK, size - start)) for start in range(0, size, CHUNK)] * times
        done = all_of([board.expect(PUBLISH, len(chunks)) for board in self.boards])
        sender = await open_board(self.port, connect("sender", TOPICS.coordinator, b""))
        for number, chunk in enumerate(chunks):
            await sender.ask(publish(TOPICS.slot_chunk("slices/0", number), chunk), PUBACK)
        await done
        sender.close()


def named(boards: Sequence[Board]) -> Iterator[tuple[str, Board]]:
    """Yield each board with its name."""
    return ((f"crowd-{number}", board) for number, board in enumerate(boards))


async def all_of(actions: Sequence[Awaitable[None]]) -> None:
    """Wait for all actions, which run at the same time."""
    await asyncio.gather(*actions)


def processor_seconds(process: psutil.Process) -> float:
    """Return the user and system time of a process."""
    times = process.cpu_times()
    return float(times.user + times.system)


async def calm(process: psutil.Process) -> None:
    """Wait until a process has done its work."""
    end = time.monotonic() + MOST_SECONDS
    while time.monotonic() < end:
        before = processor_seconds(process)
        await asyncio.sleep(CALM_SECONDS)
        if processor_seconds(process) - before < CALM * CALM_SECONDS:
            return
    raise SystemExit(f"process {process.pid} still works after {MOST_SECONDS:.0f} s")


@contextmanager
def child(command: Sequence[str]) -> Iterator[psutil.Process]:
    """Run a command until the block ends."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()


@asynccontextmanager
async def coordinator(folder: Path, port: int, clients: int) -> AsyncIterator[psutil.Process]:
    """Run a coordinator that waits for its clients, until the block ends.

    Args:
        folder: for its files.
        port: the broker's.
        clients: of its experiment; it mutes new boards that are more than twice as many.
    """
    folder.mkdir()
    experiment = folder / "experiment.yaml"
    experiment.write_text(dump_experiment(bench_experiment(1, clients, 0.01, 1)))
    words = ["coordinator", str(experiment), "--out", str(folder / "run"), "--no-page",
             "--broker", f"mqtt://127.0.0.1:{port}", "--federation", TOPICS.federation]  # fmt: skip
    with child([sys.executable, "-m", "fedquilt_common.cli", *words]) as process:
        await asyncio.sleep(CALM_SECONDS)
        await calm(process)
        yield process


async def measure(count: int) -> dict[str, Any]:
    """Measure ``count`` boards, alone and with a coordinator."""
    with tempfile.TemporaryDirectory(prefix="fedquilt-connections-") as made:
        port = free_port()
        with child(broker_command(Path(made) / "broker", port)) as broker:
            wait_listening("127.0.0.1", port, 10)
            async with coordinator(Path(made) / "alone", port, count) as process:
                alone = process.memory_info().rss
            idle = broker.memory_info().rss
            crowd = await connect_all(broker, port, count)
            found = {"boards": count, **await measure_broker(crowd, idle)}
            async with coordinator(Path(made) / "crowded", port, count) as process:
                return {**found, **await measure_coordinator(crowd, process, alone)}


async def connect_all(broker: psutil.Process, port: int, count: int) -> Crowd:
    """Connect boards, a hundred at a time, each with its presence and its subscriptions."""
    boards: list[Board] = []
    while len(boards) < count:
        names = [f"crowd-{number}" for number in range(len(boards), min(count, len(boards) + AT_ONCE))]
        boards += await asyncio.gather(*(join(port, name) for name in names))
    return Crowd(broker, port, boards)


async def join(port: int, name: str) -> Board:
    """Connect a board as an agent does."""
    board = await open_board(port, connect(name, TOPICS.presence(name), presence(name).encode()))
    await board.ask(publish(TOPICS.presence(name), presence(name).encode(), retain=True), PUBACK)
    await board.ask(subscribe([*TOPICS.agent_filters(name), TOPICS.slot_chunks("slices/0")]), SUBACK)
    return board


async def measure_broker(crowd: Crowd, idle: int) -> dict[str, Any]:
    """Return what the boards cost the broker while no coordinator is there."""
    count = len(crowd.boards)
    await calm(crowd.broker)
    held = crowd.broker.memory_info().rss - idle
    ping = await crowd.cost(crowd.ping) / PINGS / count
    message = await crowd.cost(crowd.send_telemetry) / MESSAGES / count
    models = [await measure_model(crowd, *model) for model in MODELS]
    return {
        "broker_bytes_per_board": round(held / count), "broker_seconds_per_ping": round(ping, 8),
        "broker_seconds_per_unread_message": round(message, 8), "broker_models": models,
    }  # fmt: skip


async def measure_model(crowd: Crowd, size: int, times: int) -> dict[str, Any]:
    """Return what it costs the broker to hand a model to a board, and its highest memory so far."""
    used = await crowd.cost(partial(crowd.receive, size, times))
    return {
        "bytes": size,
        "processor_seconds": round(used / times / len(crowd.boards), 8),
        "peak_bytes": peak_bytes(PROC / str(crowd.broker.pid)),
    }


async def measure_coordinator(crowd: Crowd, process: psutil.Process, alone: int) -> dict[str, Any]:
    """Return what the boards cost the coordinator, which has just read their presences."""
    count, joined = len(crowd.boards), processor_seconds(process)
    held = process.memory_info().rss - alone

    idle = await crowd.cost(wait_idle, process) / IDLE_SECONDS
    begin, before = time.monotonic(), processor_seconds(crowd.broker)

    async def tell() -> None:
        await crowd.send_telemetry()
        await calm(process)

    told = await crowd.cost(tell, process) - idle * (time.monotonic() - begin)
    broker = processor_seconds(crowd.broker) - before
    return {
        "coordinator_bytes_per_board": round(held / count),
        "coordinator_start_seconds": round(joined, 2),
        "coordinator_idle_share": round(idle, 4),
        "coordinator_seconds_per_telemetry": round(told / MESSAGES / count, 8),
        "broker_seconds_per_message": round(broker / MESSAGES / count, 8),
    }


async def wait_idle() -> None:
    """Wait while nobody does anything."""
    await asyncio.sleep(IDLE_SECONDS)


def main() -> None:
    """Measure each number of boards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boards", type=int, nargs="*", default=[500, 4000], help="numbers of boards")
    parser.add_argument("--dry-run", action="store_true", help="do not append to the history")
    options = parser.parse_args()
    end_on_signals()
    raise_file_limit(max(options.boards) + 1000)
    head = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": "python benchmarks/connections.py --boards " + " ".join(map(str, options.boards)),
        "commit": commit(),
        "machine": machine(),
    }
    rows = [asyncio.run(measure(count)) for count in options.boards]
    print(json.dumps(rows, indent=2))
    if not options.dry_run:
        append_result(HISTORY, {**head, "rows": rows})


if __name__ == "__main__":
    main()
