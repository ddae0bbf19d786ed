"""Soft labels over a real broker: which arrays travel, and a bit-identical model despite lost packets and kills."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.round_gate import RoundGate
from tests.support.runs import (
    EXPERIMENTS,
    FEDQUILT,
    PATIENCE,
    kill,
    memories,
    recording_broker,
    simulate,
    simulating,
)
from tests.support.warm import ForkedProgram

from fedquilt_common.cli import run as run_command
from fedquilt_common.wire.codec import FileArrays
from fedquilt_common.wire.transport import MqttMessage
from fedquilt_server.privacy_audit.report import AuditReport
from fedquilt_server.simulate.mosquitto import broker_command, free_port

EXPERIMENT = EXPERIMENTS / "digits-cfedakd.yaml"
LABELS = 200 * 10 + 2 * 10 * 4
"""Bytes: a code for each public sample and class, and the range of each class."""
SHORT = ("--set", "rounds=2", "--set", "evaluate_every=2", "--set", "training.epochs=1")


Recorded = tuple[Path, list[MqttMessage]]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The folder and the messages of a run without disturbance."""
    folder = tmp_path_factory.mktemp("calm")
    with recording_broker(folder) as (broker, messages):
        simulate(EXPERIMENT, folder, "--broker", broker, *SHORT)
    return folder, messages


def test_the_clients_own_models_are_audited(calm: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    """The audit finds them in the boards' state, which the run folder of a simulation has."""
    assert run_command(["privacy", "audit", str(calm[0] / "run"), "--shadows", "4", "--json"]) == 0
    report = AuditReport.model_validate_json(capsys.readouterr().out)
    assert report.models == "own"
    clients = [attack.client for attack in report.attacks if attack.attack == "likelihood ratio"]
    assert clients == [None, *range(6)]
    assert report.attacks[0].members == sum(attack.members for attack in report.attacks[2::2])


def test_only_numbers_travel_and_no_weights(calm: Recorded) -> None:
    folder, messages = calm
    found = json.loads((folder / "run" / "result.json").read_text())
    up: dict[str, int] = {}
    for message in messages:
        levels = message.topic.split("/")
        if "replies" in levels:
            key = "/".join(levels[-3:-1])
            up[key] = up.get(key, 0) + len(message.payload)
    scores = {key: size for key, size in up.items() if key.endswith(".0")}
    assert len(scores) == 6 * 2
    assert set(scores.values()) == {LABELS}
    assert {size for key, size in up.items() if key.endswith(".1")} == {0}
    down = [len(m.payload) for m in messages if "/soft-labels/" in m.topic and m.payload]
    assert down == [LABELS] * 2
    assert not [m for m in messages if "/slices/" in m.topic and m.payload]
    for row in found["rounds"]:
        assert row["label_bytes"] == {str(client): {"down": LABELS, "up": LABELS} for client in range(6)}
        assert row["label_bytes_down"] == row["label_bytes_up"] == 6 * LABELS
    assert found["final"]["label_bytes_up"] == 12 * LABELS
    everything = b"".join(m.header + m.payload for m in messages)
    kept = memories(folder)
    assert len(kept) == 6
    for _, _, file in kept:
        arrays = FileArrays(file)
        assert sum(x.nbytes for x in arrays.values()) > 4000
        assert not any(x.tobytes() in everything for x in arrays.values() if x.size > 4)


def outcome(folder: Path) -> tuple[Any, ...]:
    rows = json.loads((folder / "run" / "result.json").read_text())["rounds"]
    kept = [(client, number, file.read_bytes()) for client, number, file in memories(folder)]
    return [row["client_accuracy"] for row in rows], [row["replies"] for row in rows], kept


def test_neither_lost_packets_nor_kills_change_a_bit(calm: Recorded, tmp_path: Path) -> None:
    """Links, chunks and speed do not change the results; each label counts once, no matter which process is killed."""
    link = "{rate: 2000, latency: 0.1, loss: 0.2, mtu: 700}"
    lossy = ["--set", "wire.chunk=500", "--set", "speedup=400", "--set", "participation.deadline=86400"]
    lossy += [word for line in (0, 1) for word in ("--set", f"fleet.{line}.link={link}")]
    gate = RoundGate(tmp_path / "gate")
    with simulating(EXPERIMENT, tmp_path, *SHORT, *lossy, before=gate.install) as process:
        gate.finish_round(tmp_path, 1)
        for who in ("weak-0", "coordinator"):
            kill(tmp_path, who)
        gate.open()
        assert process.finish(PATIENCE).returncode == 0
    assert outcome(tmp_path) == outcome(calm[0])
    rows = json.loads((tmp_path / "run" / "result.json").read_text())["rounds"]
    assert all(row["rejected"] == 0 and row["label_bytes_up"] >= 6 * LABELS for row in rows)
    assert sum(row["label_bytes_up"] for row in rows) > 12 * LABELS  # some chunks came twice


def test_a_board_with_another_public_set_is_refused_before_it_spoils_a_round(tmp_path: Path) -> None:
    """The coordinator's file differs from the boards' file."""
    import numpy as np

    data = {"coordinator": tmp_path / "one", "board": tmp_path / "two"}
    for number, folder in enumerate(data.values()):
        folder.mkdir()
        np.save(folder / "public.npy", np.random.default_rng(number).random((30, 1, 8, 8)).astype(np.float32))
    port = free_port()
    url = f"mqtt://127.0.0.1:{port}"
    experiment = [str(EXPERIMENTS / "digits-fedmd.yaml"), "--set", "data.public={file: public.npy}", "--broker", url]
    board = ["agent", "--broker", url, "--id", "pi", "--clients", "0-5", "--state", str(tmp_path / "pi")]
    with (
        subprocess.Popen(broker_command(tmp_path, port)) as broker,
        (tmp_path / "coordinator.log").open("wb") as log,
        ForkedProgram(
            [*FEDQUILT, "coordinator", *experiment, "--out", str(tmp_path / "run")],
            env={**os.environ, "FEDQUILT_DATA": str(data["coordinator"])}, stdout=log, stderr=log,
        ) as coordinator,
        ForkedProgram(
            [*FEDQUILT, *board], env={**os.environ, "FEDQUILT_DATA": str(data["board"])},
            stderr=subprocess.PIPE, text=True,
        ) as agent,
    ):  # fmt: skip
        try:
            assert agent.stderr is not None
            said = next(line for line in agent.stderr if "public set" in line)
            assert "the public set on this board differs from the coordinator's" in said
            assert coordinator.poll() is None
        finally:
            for process in (agent, coordinator, broker):
                process.terminate()
