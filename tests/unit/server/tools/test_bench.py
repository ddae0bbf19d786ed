"""What `fedquilt bench round` prints."""

from __future__ import annotations

import pytest
from tests.support.recorded_runs import make_round

from fedquilt_server.simulate.memory_samples import Memory
from fedquilt_server.status.results import Result
from fedquilt_server.status.units import DASH
from fedquilt_server.tools.bench import BenchResult


def test_each_process_has_a_row_of_memory(capsys: pytest.CaptureFixture[str]) -> None:
    result = Result.model_validate({
        "name": "bench", "run": "bench-1", "status": "finished", "algorithm": "echo", "dataset": "digits", "seed": 0,
        "rounds": [make_round(1, None)], "coordinator_memory": {"idle": 50_000_000, "peak": 53_500_000},
    })  # fmt: skip
    memory = {"broker": Memory(11_000_000), "coordinator": Memory(99), "bench-0": Memory(48_000_000, 61_000_000)}
    BenchResult(result, memory).print()
    lines = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    assert ["broker", DASH, "11.0", "MB", DASH, DASH] in lines
    assert ["coordinator", "50.0", "MB", "53.5", "MB", "3.5", "MB", DASH] in lines
    assert ["bench-0", DASH, "48.0", "MB", DASH, "61.0", "MB"] in lines
