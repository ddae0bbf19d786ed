"""A simulation with secure aggregation: crashes and drop-outs change nothing but who is in the sum."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file
from tests.e2e.test_simulate import fedquilt, fingerprint, finish, pids, result, run, wait_for
from tests.support.round_gate import RoundGate
from tests.support.runs import finished_rounds

pytest.importorskip("Crypto", reason="needs the extra secure")
EXPERIMENT = """
name: digits-secure
seed: 7
rounds: {rounds}
data: {{set: digits, clients: 6, partition: {{scheme: uniform}}, public: {{samples: 40}}}}
model: {{name: mlp}}
algorithm: {{name: {algorithm}}}
participation: {{per_round: 6, quorum: 4, deadline: {deadline}}}
training: {{epochs: 1, batch: 32, lr: 0.2}}
secure_aggregation: {secure}
fleet: [{{kind: board, agents: 3, clients: 6}}]
"""


def simulate(folder: Path, *, secure: bool = True, algorithm: str = "fedavg", rounds: int = 3) -> Any:
    folder.mkdir()
    text = EXPERIMENT.format(rounds=rounds, algorithm=algorithm, deadline=60, secure=str(secure).lower())
    (folder / "secure.yaml").write_text(text)
    done = run("simulate", "secure.yaml", "--out", "run", "--keep-replies", where=folder)
    assert done.code == 0, done.err
    return done


@pytest.mark.timeout(300)
def test_kills_change_no_bit_and_masks_no_more_than_the_rounding(tmp_path: Path) -> None:
    plain, calm, killed = (tmp_path / name for name in ("plain", "calm", "killed"))
    simulate(plain, secure=False)
    simulate(calm)
    killed.mkdir()
    (killed / "secure.yaml").write_text((calm / "secure.yaml").read_text())
    gate = RoundGate(killed / "gate")
    with fedquilt("simulate", "secure.yaml", "--out", "run", where=killed, gate=gate) as process:
        for number, who in enumerate(("coordinator", "board-1")):
            gate.finish_round(killed, number + 1)
            os.kill(psutil.Process(pids(killed)[who]).pid, signal.SIGKILL)
        gate.open()
        done = finish(process)
    assert done.code == 0, done.err
    assert fingerprint(killed) == fingerprint(calm)
    models = [load_file(folder / "run" / "global.safetensors") for folder in (plain, calm)]
    for name, array in models[0].items():
        np.testing.assert_allclose(models[1][name], array, atol=1e-4)
    replayed = run("replay", "run", where=calm)
    assert replayed.code == 0, replayed.err


@pytest.mark.timeout(300)
def test_soft_labels_are_hidden_too(tmp_path: Path) -> None:
    simulate(tmp_path / "plain", secure=False, algorithm="fedakd", rounds=2)
    simulate(tmp_path / "secure", algorithm="fedakd", rounds=2)
    plain, secure = (result(tmp_path / name)["rounds"] for name in ("plain", "secure"))
    for before, after in zip(plain, secure, strict=True):
        assert after["accuracy"] == pytest.approx(before["accuracy"], abs=0.02)


@pytest.mark.timeout(300)
def test_rounds_go_on_when_a_board_falls_silent(tmp_path: Path) -> None:
    folder = tmp_path / "silent"
    folder.mkdir()
    (folder / "secure.yaml").write_text(EXPERIMENT.format(rounds=4, algorithm="fedavg", deadline=4, secure="true"))
    gate = RoundGate(folder / "gate", 3)  # too few others for the quorum
    with fedquilt("simulate", "secure.yaml", "--out", "run", where=folder, gate=gate) as process:
        gate.finish_round(folder, 1)
        board = psutil.Process(pids(folder)["board-2"])
        board.suspend()
        gate.open_until(3)
        wait_for(lambda: finished_rounds(folder) > 2, "rounds without the board")
        board.resume()
        gate.open()
        done = finish(process)
    assert done.code == 0, done.err
    rounds = result(folder)["rounds"]
    assert any(set(clients) & {"4", "5"} for row in rounds for clients in row["missing"].values())
    assert rounds[-1]["accuracy"] > 0.5
