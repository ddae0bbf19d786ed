"""A run that is interrupted and resumed sends each round to TensorBoard once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.support.runs import PATIENCE, await_round, simulating

ROUNDS = 120  # so many that the interruption comes before the last one
IDLE = f"""
name: idle
rounds: {ROUNDS}
data: {{set: digits, clients: 2}}
model: {{name: ballast, megabytes: 0.1}}
algorithm: {{name: echo}}
fleet:
  - {{kind: pi, agents: 1, clients: 2}}
"""


def test_a_resumed_run_has_no_round_twice(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (tmp_path / "idle.yaml").write_text(IDLE)
    run = (tmp_path / "idle.yaml", tmp_path, "--tensorboard", str(tmp_path / "logs"))
    with simulating(*run) as process:
        await_round(tmp_path, 3)
        process.send_signal(signal.SIGINT)
        assert process.finish(PATIENCE).returncode == 130
    with simulating(*run) as process:
        assert process.finish(PATIENCE).returncode == 0
    (folder,) = (tmp_path / "logs").iterdir()
    assert len(list(folder.iterdir())) == 2  # a file for each start
    reader = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    assert [event.step for event in reader.Scalars("bytes/up")] == list(range(1, ROUNDS + 1))
