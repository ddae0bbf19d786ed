"""Runs ``fedquilt simulate`` in warm processes, reads its files, and records the messages on its broker."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from tests.support import warm

from fedquilt_client.kept_memories import kept_memories
from fedquilt_common.process.forked import WORKER_NAME
from fedquilt_common.wire.broker_url import parse_broker_url
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.transport import Connected, Incoming, MqttMessage
from fedquilt_server.runs.reply_files import ReplyFiles, ReplyPlace
from fedquilt_server.simulate.mosquitto import broker_command, free_port, wait_listening

EXPERIMENTS = Path(__file__).parents[2] / "deploy" / "experiments"
FEDQUILT = (sys.executable, "-m", "fedquilt_common.cli")
PATIENCE = 150.0
HURRY = partial(warm.assign, "fedquilt_server.simulate.process_specs:STALL_SECONDS", 1.0)
"""For ``before``: a simulation in which too many clients failed ends after 1 s instead of 10."""


def simulating(
    experiment: Path, folder: Path, *options: str, before: Callable[[], object] | None = None, **environment: str
) -> contextlib.AbstractContextManager[warm.WarmCommand]:
    """Start ``fedquilt simulate``, after a call of ``before``; ends it with the block."""
    words = ("simulate", str(experiment), "--out", str(folder / "run"), "--json", *options)
    return warm.running(*words, where=folder, before=before, environment=environment)


def simulate(experiment: Path, folder: Path, *options: str, **environment: str) -> dict[str, Any]:
    """Run ``fedquilt simulate``; returns the result that it prints, the same as in its folder."""
    with simulating(experiment, folder, *options, before=None, **environment) as running:
        done = running.finish(PATIENCE)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    del found["restarts"]
    assert found == json.loads((folder / "run" / "result.json").read_text())
    return found


def finished_rounds(folder: Path) -> int:
    """Return the number of rounds in the journal; the files of results may lag behind it."""
    address = f"file:{folder}/run/journal.sqlite?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True)) as journal:
            return int(journal.execute("SELECT count(result) FROM checkpoints").fetchone()[0])
    except sqlite3.OperationalError:  # there is no journal yet
        return 0


def await_round(folder: Path, number: int) -> None:
    """Wait until ``number`` rounds are finished."""
    end = time.monotonic() + PATIENCE
    while finished_rounds(folder) < number:
        assert time.monotonic() < end
        time.sleep(0.02)


def kill(folder: Path, who: str) -> None:
    """Kill the coordinator, the broker or an agent with SIGKILL."""
    pids = json.loads((folder / "run" / "pids.json").read_text())
    os.kill(pids["agents"].get(who) or pids[who], signal.SIGKILL)


def workers_of(agent: int) -> list[int]:
    """Return the training processes of the agent with a process id: its children, or forks of a warm process."""
    found = list[int]()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            forked = process.name() == f"{WORKER_NAME}{agent}"
            plain = process.ppid() == agent and "fedquilt_client.worker" in process.cmdline()
            found += [process.pid] if forked or plain else []
    return found


def memories(folder: Path) -> list[tuple[int, int, Path]]:
    """Return client, round and file of each private memory that the agents keep."""
    agents = sorted((folder / "run" / "agents").iterdir())
    return [(kept.client, kept.round, kept.file) for agent in agents for kept in kept_memories(agent)]


@contextlib.contextmanager
def recording_broker(folder: Path) -> Iterator[tuple[str, list[MqttMessage]]]:
    """Run a broker; yields its address and the list of all messages that it receives."""
    messages: list[MqttMessage] = []
    connected, port = threading.Event(), free_port()

    def deliver(incoming: Incoming) -> None:
        if isinstance(incoming, MqttMessage):
            messages.append(incoming)
            incoming.ack()
        elif isinstance(incoming, Connected):
            connected.set()

    with subprocess.Popen(broker_command(folder, port)) as process:
        try:
            wait_listening("127.0.0.1", port, 60)
            transport = MqttTransport(parse_broker_url(f"127.0.0.1:{port}"), "recorder", deliver)
            transport.connect()
            assert connected.wait(60)
            transport.subscribe(["#"])
            yield f"mqtt://127.0.0.1:{port}", messages
            transport.close()
        finally:
            process.terminate()


def journal_events(run: Path, kind: str) -> list[dict[str, Any]]:
    """Return the bodies of the journal's events of a kind; none while there is no journal."""
    with contextlib.suppress(sqlite3.OperationalError):
        with contextlib.closing(sqlite3.connect(f"file:{run}/journal.sqlite?mode=ro", uri=True)) as journal:
            found = journal.execute("SELECT body FROM events WHERE kind = ?", (kind,)).fetchall()
        return [json.loads(body) for (body,) in found]
    return []


def reply_places(folder: Path) -> list[ReplyPlace]:
    """Return where the replies in a run's ``blobs/replies`` are: all in segments, or all in files of their own."""
    in_segments = list(ReplyFiles(folder)._places.values())
    return in_segments or [ReplyPlace(path) for path in sorted(folder.iterdir())]
