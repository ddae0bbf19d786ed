"""Simulations with exact sums: relays on none, some and all agents, and kills of relays, give the same bits."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from tests.e2e.test_simulate import Done, fedquilt, fingerprint, finish, pids, result, run
from tests.support.round_gate import RoundGate
from tests.support.runs import journal_events

EXPERIMENT = """
name: digits-relays
seed: 7
rounds: {rounds}
data: {{set: digits, clients: 12, partition: {{scheme: dirichlet, alpha: 0.5}}, holdout: 0.25}}
model: {{name: mlp}}
algorithm: {{name: {algorithm}}}
participation: {{per_round: 10, quorum: 10, deadline: 60}}
training: {{epochs: 3, batch: 8, lr: 0.1}}
exact_sums: true
fleet:
  - {{kind: site, agents: 2, clients: 8, relay: {sites}}}
  - {{kind: board, agents: 1, clients: 4, relay: {boards}}}
"""
ROUNDS = 4


def prepare(folder: Path, *, sites: bool, boards: bool, algorithm: str = "fedavg", rounds: int = ROUNDS) -> None:
    folder.mkdir()
    flags = {"sites": str(sites).lower(), "boards": str(boards).lower()}
    (folder / "relays.yaml").write_text(EXPERIMENT.format(algorithm=algorithm, rounds=rounds, **flags))


def simulate(folder: Path, *options: str, **choices: bool | str | int) -> Done:
    prepare(folder, **choices)  # type: ignore[arg-type]
    done = run("simulate", "relays.yaml", "--out", "run", *options, where=folder)
    assert done.code == 0, done.err
    return done


def members(folder: Path) -> int:
    """Return the replies that came in a sum."""
    return sum(event["carrier"] is not None for event in journal_events(folder / "run", "Replied"))


@pytest.mark.timeout(300)
def test_relays_and_their_deaths_change_no_bit(tmp_path: Path) -> None:
    none, some, every, killed = (tmp_path / name for name in ("none", "some", "every", "killed"))
    simulate(none, sites=False, boards=False)
    simulate(some, sites=False, boards=True)
    simulate(every, sites=True, boards=True)
    prepare(killed, sites=True, boards=True)
    gate = RoundGate(killed / "gate", 3)
    with fedquilt("simulate", "relays.yaml", "--out", "run", where=killed, gate=gate) as process:
        for number, who in enumerate(("site-0", "coordinator", "site-1")):
            gate.finish_round(killed, number + 1)
            os.kill(psutil.Process(pids(killed)[who]).pid, signal.SIGKILL)
        gate.open()
        done = finish(process)
    assert done.code == 0, done.err
    assert fingerprint(none) == fingerprint(some) == fingerprint(every) == fingerprint(killed)
    assert members(none) == 0 < members(some) < members(every)
    for folder in (none, some, every, killed):
        assert [row["clients"] for row in result(folder)["rounds"]] == [10] * ROUNDS
    assert result(every)["rounds"][-1]["bytes_up"] < result(none)["rounds"][-1]["bytes_up"] / 2
    replayed = run("replay", "run", where=every)
    assert replayed.code == 0, replayed.err


@pytest.mark.timeout(300)
def test_where_each_reply_is_needed_relays_add_nothing_up_and_the_run_says_so(tmp_path: Path) -> None:
    done = simulate(tmp_path / "needed", sites=True, boards=True, algorithm="fednova", rounds=1)
    assert members(tmp_path / "needed") == 0
    (warning,) = [text for text in result(tmp_path / "needed")["warnings"] if "exact_sums" in text]
    assert "the replies to 'fednova' travel one by one" in warning
    assert "fednova" in done.err + done.out
    simulate(tmp_path / "kept", "--keep-replies", sites=True, boards=True, rounds=1)
    assert members(tmp_path / "kept") == 0
    assert any("with --keep-replies" in text for text in result(tmp_path / "kept")["warnings"])
