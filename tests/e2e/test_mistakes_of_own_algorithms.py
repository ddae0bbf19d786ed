"""A mistake in a user's own algorithm ends a simulation at once; the same command resumes it with corrected code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.runs import HURRY, PATIENCE, simulating

EXPERIMENT = """
name: own
rounds: 3
data: {set: digits, clients: 2}
model: {name: mlp, hidden: [8]}
algorithm: {name: "own_with_mistakes:Own"}
fleet:
  - {kind: pi, agents: 1, clients: 2}
"""
ALGORITHM = """
from dataclasses import dataclass
import numpy as np
from fedquilt import FedAvg, State

@dataclass(frozen=True)
class Own(FedAvg):
    def merge(self, state, replies, ctx):
        merged = super().merge(state, replies, ctx)
        if ctx.round == 2:
            MISTAKE
        return State(merged.arrays, report={"ages": [ctx.round]})
"""
MISTAKES = {
    "an error": ("raise ValueError('boom')", "round 2 (own_with_mistakes.py line 11): ValueError: boom. Correct it"),
    "no finite numbers": ("return State({n: x * np.nan for n, x in merged.arrays.items()})", "that are not finite"),
    "nothing": ("return None", "returned None; return the next state"),
}


def simulate(folder: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    """Return the exit code, ``result.json`` and standard error of a simulation in ``folder / "run"``."""
    with simulating(folder / "own.yaml", folder, *options, before=HURRY, PYTHONPATH=str(folder)) as process:
        done = process.finish(PATIENCE)
    return done.returncode, json.loads((folder / "run" / "result.json").read_text()), done.stderr


@pytest.mark.parametrize(("mistake", "words"), MISTAKES.values(), ids=MISTAKES)
def test_it_ends_at_once_and_is_resumed_when_it_is_corrected(mistake: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(EXPERIMENT)
    (tmp_path / "own_with_mistakes.py").write_text(ALGORITHM.replace("MISTAKE", mistake))
    code, result, shown = simulate(tmp_path)
    assert (code, result["status"], result["exit_code"], len(result["rounds"])) == (7, "failed", 7, 1)
    assert result["reason"].startswith("own_with_mistakes:Own.round, round 2")
    assert words in result["reason"]
    assert result["reason"] in shown
    assert "was restarted" not in shown
    (tmp_path / "own_with_mistakes.py").write_text(ALGORITHM.replace("MISTAKE", "pass"))
    code, result, _ = simulate(tmp_path)
    assert (code, result["status"], [row["report"]["ages"] for row in result["rounds"]]) == (
        0,
        "finished",
        [[1], [2], [3]],
    )


def test_numbers_that_the_precision_of_the_wire_cannot_hold(tmp_path: Path) -> None:
    mistake = "return State({n: x * 0 + np.float32(1e5) for n, x in merged.arrays.items()})"
    (tmp_path / "own.yaml").write_text(EXPERIMENT)
    (tmp_path / "own_with_mistakes.py").write_text(ALGORITHM.replace("MISTAKE", mistake))
    code, result, shown = simulate(tmp_path, "--set", "wire.down=fp16")
    assert (code, result["exit_code"], len(result["rounds"])) == (7, 7, 1)
    assert result["reason"].startswith(
        "round 2: what the algorithm gives away cannot be sent with the experiment's `wire`: "
    )
    assert "was restarted" not in shown
