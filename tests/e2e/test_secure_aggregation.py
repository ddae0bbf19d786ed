"""A simulation with secure aggregation: crashes and drop-outs change nothing but who is in the sum."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file
from tests.e2e.test_simulate import fedquilt, fingerprint, finish, pids, result, run, wait_for
from tests.support.round_gate import RoundGate
from tests.support.runs import finished_rounds

from fedquilt_common.algorithm_api import Reply, Task

if TYPE_CHECKING:
    from fedquilt_common.secure_aggregation.client_half import SecureClient

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


@dataclass(frozen=True)
class LyingBoard:
    """Makes a client send other bytes than those of the protocol in round 2, while a file exists.

    Args:
        path: the file.
        client: who lies.
        array: of the reply that is changed.
    """

    path: Path
    client: int
    array: str

    def install(self) -> None:
        """Change the training processes that this process forks, or one that it forks: call it in a new process."""
        from fedquilt_common.secure_aggregation.client_half import SecureClient

        do = SecureClient.do

        def lie(half: SecureClient, task: Task, work: Callable[[Task], Reply]) -> Reply:
            reply = do(half, task, work)
            if self.array not in reply.arrays or not self._is_time(half):
                return reply
            return Reply({**reply.arrays, self.array: np.asarray(reply.arrays[self.array]) ^ 0x55})

        SecureClient.do = lie  # type: ignore[method-assign,assignment] # another name than self

    def _is_time(self, half: SecureClient) -> bool:
        return (half.ctx.client, half.ctx.round) == (self.client, 2) and self.path.exists()


def simulate_liar(folder: Path, client: int, array: str, quorum: int) -> Any:
    """Simulate three rounds, in the second of which a client lies while the file ``lie`` exists; how that ended."""
    text = EXPERIMENT.format(rounds=3, algorithm="fedavg", deadline=60, secure="true")
    (folder / "secure.yaml").write_text(text.replace("quorum: 4", f"quorum: {quorum}"))
    (folder / "lie").touch()
    liar = LyingBoard(folder / "lie", client, array)
    with fedquilt("simulate", "secure.yaml", "--out", "run", where=folder, gate=liar) as process:
        return finish(process)


@pytest.mark.timeout(300)
def test_a_client_that_spoils_a_sum_is_left_out(tmp_path: Path) -> None:
    done = simulate_liar(tmp_path, 5, "commitment", quorum=4)
    assert done.code == 0, done.err
    assert [row["clients"] for row in result(tmp_path)["rounds"]] == [6, 5, 5]
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    restarts = [event["text"] for event in events if event["kind"] == "round restarted"]
    assert restarts == ["Round 2 started again: client 5 shared wrong secrets, so the masks cannot be removed"]


@pytest.mark.timeout(300)
def test_a_run_resumes_after_a_sum_that_an_unknown_client_has_spoiled(tmp_path: Path) -> None:
    """Without spare shares, nobody can tell who lies; the run ends, but loses no more than the round."""
    failed = simulate_liar(tmp_path, 2, "shares", quorum=6)
    assert failed.code == 7, failed.err
    assert "not known who sent wrong ones. Find the board, and revoke or repair it" in " ".join(failed.err.split())
    (tmp_path / "lie").unlink()
    done = run("simulate", "secure.yaml", "--out", "run", where=tmp_path)
    assert done.code == 0, done.err
    assert [row["clients"] for row in result(tmp_path)["rounds"]] == [6, 6, 6]


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
