"""A simulation with differential privacy: crashes change no bit of the model, and no entry of a ledger."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_simulate import fedquilt, fingerprint, finish, pids, result, run
from tests.support.accounting import few_orders
from tests.support.packages import needs
from tests.support.round_gate import RoundGate
from tests.support.runs import workers_of

from fedquilt_common.privacy.ledger import SUFFIX, read_ledger

needs("opacus", "needs the extra dp")
ROUNDS = 4
EXPERIMENT = f"""
name: digits-private
seed: 7
rounds: {ROUNDS}
data: {{set: digits, clients: 4, partition: {{scheme: uniform}}}}
model: {{name: mlp}}
algorithm: {{name: fedavg}}
training: {{epochs: 1, batch: 32, lr: 0.2}}
privacy: {{epsilon: 8, delta: 0.001}}
fleet:
  - {{kind: strong, agents: 2, clients: 3}}
  - {{kind: careful, clients: 1, privacy: {{epsilon: 3}}}}
"""


def spent(folder: Path) -> dict[tuple[int, int], Any]:
    """Return the steps and the epsilon of each client and round; fails if a task is there twice."""
    paths = (folder / "run" / "agents").glob(f"*/privacy/*{SUFFIX}")
    entries = [entry for path in paths for entry in read_ledger(path)]
    assert len({(entry.client, entry.round) for entry in entries}) == len(entries)
    return {(entry.client, entry.round): (entry.charge, entry.training, entry.epsilon) for entry in entries}


@pytest.fixture(autouse=True)
def quick_accountant() -> Iterator[None]:
    with few_orders():
        yield


@pytest.mark.timeout(300)
def test_kills_change_neither_bits_nor_ledgers(tmp_path: Path) -> None:
    folders = tmp_path / "calm", tmp_path / "killed"
    for folder in folders:
        folder.mkdir()
        (folder / "private.yaml").write_text(EXPERIMENT)
    command = "simulate", "private.yaml", "--out", "run"
    calm = run(*command, where=folders[0])
    assert calm.code == 0, calm.err
    gate = RoundGate(folders[1] / "gate")
    with fedquilt(*command, where=folders[1], gate=gate) as process:
        for number, who in enumerate(("strong-0", "coordinator", "strong-1")):
            gate.finish_round(folders[1], number + 1)
            victim = pids(folders[1])[who]
            os.kill((workers_of(victim) or [victim])[-1] if number == 0 else victim, signal.SIGKILL)
        gate.open()
        done = finish(process)
    assert done.code == 0, done.err
    assert fingerprint(folders[1]) == fingerprint(folders[0])
    assert spent(folders[1]) == spent(folders[0])
    assert len(spent(folders[0])) == 4 * ROUNDS
    rows = result(folders[0])["privacy"]
    assert [row["client"] for row in rows] == [0, 1, 2, 3]
    assert [row["budget"] for row in rows] == [8, 8, 8, 3]
    assert all(0.9 * row["budget"] < row["epsilon"] <= row["budget"] for row in rows)
    shown = run("privacy", "show", "--state", "run/agents/careful-0", where=folders[0])
    assert f"{rows[3]['epsilon']:.4f}" in shown.out
