"""A simulation whose coordinator adds noise: crashes change no bit of the model, and a replay repeats it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.e2e.test_simulate import fedquilt, fingerprint, finish, pids, result, run
from tests.support.accounting import few_orders
from tests.support.round_gate import RoundGate

EXPERIMENT = """
name: digits-central
seed: 7
rounds: 4
data: {set: digits, clients: 12, partition: {scheme: uniform}}
model: {name: mlp}
algorithm: {name: fedopt, server_lr: 0.02}
participation: {per_round: 6, quorum: 6}
training: {epochs: 1, batch: 32, lr: 0.2}
privacy: {mode: central, epsilon: 60, delta: 0.001, adaptive: {quantile: 0.6}}
fleet: [{kind: board, agents: 2, clients: 12}]
"""


@pytest.fixture(autouse=True)
def quick_accountant() -> Iterator[None]:
    pytest.importorskip("opacus", reason="needs the extra dp")  # loaded here, and not in each forked process
    with few_orders():
        yield


@pytest.mark.timeout(300)
def test_kills_change_no_bit_and_spend_nothing_twice(tmp_path: Path) -> None:
    folders = tmp_path / "calm", tmp_path / "killed"
    for folder in folders:
        folder.mkdir()
        (folder / "central.yaml").write_text(EXPERIMENT)
    command = "simulate", "central.yaml", "--out", "run"
    calm = run(*command, where=folders[0])
    assert calm.code == 0, calm.err
    gate = RoundGate(folders[1] / "gate", 7)
    with fedquilt(*command, where=folders[1], gate=gate) as process:
        for number in range(2):
            gate.finish_round(folders[1], number + 1)
            os.kill(psutil.Process(pids(folders[1])["coordinator"]).pid, signal.SIGKILL)
        gate.open()
        done = finish(process)
    assert done.code == 0, done.err
    assert fingerprint(folders[1]) == fingerprint(folders[0])
    spent = [[row["central_privacy"] for row in result(folder)["rounds"]] for folder in folders]
    assert spent[0] == spent[1]
    assert 59.9 < spent[0][-1]["epsilon"] <= 60
    replayed = run("replay", "run", where=folders[0])
    assert replayed.code == 0, replayed.err
    (folders[0] / "run" / "privacy" / "key").unlink()
    lost = run("replay", "run", "--out", "again", where=folders[0])
    assert lost.code != 0
    assert "the key of the secret noise is missing" in lost.err
