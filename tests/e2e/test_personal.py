"""Global and personal accuracy over a real broker, with real agents; what is private stays on its board."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedquilt_client.store import kept_memories
from fedquilt_common.broker_url import parse_broker_url
from fedquilt_common.codec import FileArrays
from fedquilt_common.transport import Connected, Incoming, Message, MqttTransport
from fedquilt_server.broker import broker_command, free_port, wait_listening

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "deploy" / "experiments"
PATIENCE = 150.0
SHORT = ("--set", "rounds=4", "--set", "evaluate_every=2")


def command(name: str, folder: Path, *options: str) -> list[str]:
    words = ["simulate", str(EXPERIMENTS / f"{name}.yaml"), "--out", str(folder / "run"), "--json", *options]
    return [sys.executable, "-m", "fedquilt_common.cli", *words]


def simulate(name: str, folder: Path, *options: str) -> dict[str, Any]:
    done = subprocess.run(
        command(name, folder, *options), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which nothing happens."""
    folder = tmp_path_factory.mktemp("calm")
    simulate("digits-fedreb", folder, *SHORT)
    return folder


def test_both_accuracies_of_every_round_and_of_the_run(calm: Path) -> None:
    found = json.loads((calm / "run" / "result.json").read_text())
    rows, final = found["rounds"], found["final"]
    assert [row["global_accuracy"] is None for row in rows] == [True, False, True, False]
    tested = [row for row in rows if row["global_accuracy"] is not None]
    for row in tested:
        assert row["accuracy"] == row["global_accuracy"]
        assert 0 <= row["global_accuracy"] <= 1
        assert 0 <= row["personal_accuracy"] <= 1
        assert row["scores"]["tested_clients"] == 20
        assert row["scores"]["tested_samples"] == tested[-1]["scores"]["tested_samples"] > 300
    for row in rows:
        assert (row["clients"], row["asked"]) == (5, 5)
        assert row["replies"] == (5 if row["global_accuracy"] is None else 25)
    # a new model is published once, to be tested and then to be trained: four of them, and that of the start
    assert 4 * rows[0]["model_bytes"] < final["bytes_down"] < 5 * rows[0]["model_bytes"] + 60_000
    for kind in ("global", "personal"):
        scores = [row[f"{kind}_accuracy"] for row in tested]
        assert (final[f"{kind}_accuracy"], final[f"best_{kind}_accuracy"]) == (scores[-1], max(scores))
    columns = list(csv.DictReader((calm / "run" / "rounds.csv").read_text().splitlines()))
    assert float(columns[-1]["personal_accuracy"]) == rows[-1]["personal_accuracy"]


@contextlib.contextmanager
def ear(folder: Path) -> Iterator[tuple[str, list[bytes]]]:
    """A broker's address, and all that anybody publishes there."""
    heard: list[bytes] = []
    connected, port = threading.Event(), free_port()

    def deliver(incoming: Incoming) -> None:
        if isinstance(incoming, Message):
            heard.append(incoming.header + incoming.payload)
            incoming.ack()
        elif isinstance(incoming, Connected):
            connected.set()

    with subprocess.Popen(broker_command(folder, port)) as process:
        try:
            wait_listening("127.0.0.1", port, 10)
            transport = MqttTransport(parse_broker_url(f"127.0.0.1:{port}"), "ear", deliver)
            transport.connect()
            assert connected.wait(10)
            transport.subscribe(["#"])
            yield f"mqtt://127.0.0.1:{port}", heard
            transport.close()
        finally:
            process.terminate()


def test_nothing_private_is_on_any_topic(tmp_path: Path) -> None:
    """Ditto keeps the most; ``unit/common/algorithms`` looks at the replies of the others."""
    with ear(tmp_path) as (broker, heard):
        simulate("digits-ditto", tmp_path, "--broker", broker, "--set", "rounds=2", "--set", "wire.chunk=1MiB")
    everything = b"".join(heard)
    model = FileArrays(tmp_path / "run" / "global.safetensors")
    shared = next(iter(model))
    assert model[shared].tobytes() in everything  # the ear does hear what is sent
    found = [kept for agent in (tmp_path / "run" / "agents").iterdir() for kept in kept_memories(agent)]
    assert len(found) >= 5
    for kept in found:
        for array in FileArrays(kept.file).values():
            rows = array.reshape(len(array), -1) if array.ndim > 1 else array[None]
            own = [row.tobytes() for row in rows if row.size >= 4 and row.any()]
            assert sum(row in everything for row in own) <= len(own) // 4  # rows that training has not moved


def test_whoever_is_killed_private_memory_counts_once(calm: Path, tmp_path: Path) -> None:
    with subprocess.Popen(command("digits-fedreb", tmp_path, *SHORT), stdout=subprocess.DEVNULL) as process:
        for number, who in ((1, "weak-0"), (2, "coordinator"), (3, "strong-0")):
            _await_round(tmp_path, number)
            pids = json.loads((tmp_path / "run" / "pids.json").read_text())
            os.kill(pids["agents"].get(who) or pids[who], signal.SIGKILL)
        assert process.wait(PATIENCE) == 0
    runs = [folder / "run" for folder in (calm, tmp_path)]
    assert len({(run / "global.safetensors").read_bytes() for run in runs}) == 1
    results = [json.loads((run / "result.json").read_text())["rounds"] for run in runs]
    scores = [[(row["global_accuracy"], row["personal_accuracy"]) for row in rows] for rows in results]
    assert scores[0] == scores[1]
    memories = [[(kept.client, kept.round, kept.file.read_bytes()) for agent in sorted((run / "agents").iterdir())
                 for kept in kept_memories(agent)] for run in runs]  # fmt: skip
    assert memories[0] == memories[1]
    assert memories[0]


def _await_round(folder: Path, number: int) -> None:
    end, path = time.monotonic() + PATIENCE, folder / "run" / "result.json"
    while not path.exists() or len(json.loads(path.read_text())["rounds"]) < number:
        assert time.monotonic() < end
        time.sleep(0.02)
