"""The broker of a federation with certificates restarts during a run: for other boards, and for new certificates."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from tests.support.peers import federation_broker
from tests.support.round_gate import RoundGate
from tests.support.runs import FEDQUILT, PATIENCE, finished_rounds
from tests.support.warm import ForkedProgram

from fedquilt_common.experiment.experiment import dump_experiment
from fedquilt_server.provisioning.cli import coordinator_options
from fedquilt_server.provisioning.federation import Federation, make_federation
from fedquilt_server.simulate.mosquitto import free_port
from fedquilt_server.tools.bench import bench_experiment

ROUNDS = 12


@contextlib.contextmanager
def running_processes(federation: Federation, folder: Path, gate: RoundGate) -> Iterator[list[ForkedProgram]]:
    """Run a coordinator and two agents, with an experiment without training; pytest shows what they print."""
    experiment = folder / "experiment.yaml"
    experiment.write_text(dump_experiment(bench_experiment(2, 2, 0.5, ROUNDS)))
    run = ["coordinator", str(experiment), "--out", str(folder / "run"), "--no-page", *coordinator_options(federation)]
    agents = [
        [
            "agent",
            "--config",
            str(federation.board_folder(name) / "agent.yaml"),
            "--state",
            str(folder / name),
            "--once",
        ]
        for name in ("a", "b")
    ]
    with contextlib.ExitStack() as stack:
        processes = []
        for words in (run, *([*agent, "--once"] for agent in agents)):
            processes.append(ForkedProgram([*FEDQUILT, *words], preexec_fn=gate.install))
            stack.callback(processes[-1].wait)
            stack.callback(processes[-1].kill)
        yield processes


def read_rounds(folder: Path) -> list[Any]:
    path = folder / "run" / "result.json"
    rounds: list[Any] = json.loads(path.read_text())["rounds"] if path.exists() else []
    return rounds


def test_a_run_survives_the_restarts_for_a_revoked_and_a_new_board_and_for_new_certificates(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"], free_port())
    for name in ("a", "b", "spare"):
        federation.provision(name, "pi4")
    gate = RoundGate(tmp_path / "gate")
    with (
        federation_broker(federation.folder, federation.record.port),
        running_processes(federation, tmp_path, gate) as processes,
    ):
        gate.finish_round(tmp_path, 1)
        assert "was restarted" in federation.revoke("spare")
        gate.finish_round(tmp_path, 2)
        federation.provision("fresh", "pi4")
        assert "was restarted" in federation.reload()
        gate.finish_round(tmp_path, 3)
        federation.renew()  # the coordinator reads its new files, because the broker refuses the old ones
        assert "was restarted" in federation.reload(restart=True)
        assert finished_rounds(tmp_path) == 3
        gate.open()
        assert [process.wait(PATIENCE) for process in processes] == [0, 0, 0]
    assert [(row["clients"], row["rejected"]) for row in read_rounds(tmp_path)] == [(2, 0)] * ROUNDS
    for values in load_file(tmp_path / "run" / "global.safetensors").values():
        np.testing.assert_array_equal(values, np.full_like(values, 0.5 * ROUNDS))  # each round adds 0.5
