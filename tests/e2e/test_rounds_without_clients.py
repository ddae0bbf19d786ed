"""An algorithm whose odd rounds ask nobody: they cost nothing, and the run can be replayed."""

from __future__ import annotations

from pathlib import Path

from tests.support import warm
from tests.support.runs import EXPERIMENTS, PATIENCE, simulate

SOMETIMES = """
from dataclasses import dataclass
from fedquilt import FedAvg, State

@dataclass(frozen=True)
class Sometimes(FedAvg):
    def round(self, state, ctx):
        if ctx.round % 2 == 0:
            return (yield from super().round(state, ctx))
        if ctx.round > 1:
            assert (yield {}) == {}
        return State({name: state.arrays[name] for name in state.arrays})
"""


def test_rounds_that_ask_nobody_publish_nothing_and_wait_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "sometimes.py").write_text(SOMETIMES)
    changes = ("algorithm.name=sometimes:Sometimes", "rounds=5", "training.epochs=1", "participation.deadline=3600")
    options = (word for change in changes for word in ("--set", change))
    found = simulate(EXPERIMENTS / "digits-fedavg.yaml", tmp_path, *options, PYTHONPATH=str(tmp_path))
    rows = found["rounds"]
    assert [row["clients"] for row in rows] == [0, 8, 0, 8, 0]
    for row in rows[2::2]:  # receipts and telemetry may still be under way
        assert max(row["bytes_down"], row["bytes_up"]) < 0.1 * row["model_bytes"]
    assert [row["accuracy"] for row in rows[2::2]] == [row["accuracy"] for row in rows[1::2]]
    replay = warm.fedquilt(
        "replay", str(tmp_path / "run"), where=tmp_path, environment={"PYTHONPATH": str(tmp_path)}, patience=PATIENCE
    )
    assert replay.returncode == 0, replay.stderr
    assert "The journal has all 5 rounds. The global model is bit-identical" in replay.stdout
