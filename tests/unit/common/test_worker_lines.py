"""What a training process and its agent write to each other is read as it was written."""

from __future__ import annotations

import math

import pytest

from fedquilt_common.training_jobs import Spending
from fedquilt_common.worker_lines import (
    CancelledLine,
    CancelLine,
    DamagedLine,
    DoneLine,
    EnergyLine,
    FailedLine,
    MemoryLine,
    ProcessLine,
    ProgressLine,
    TrainedLine,
    TrainingLine,
    parse_agent_line,
    parse_process_line,
)

SPENT = Spending(ledger="e" * 64, entries=[{"noise": math.inf, "steps": 3}], seen={"e": 1}, stale=False)


@pytest.mark.parametrize(
    "line",
    [
        TrainingLine(number=1, need=1 << 40),
        ProgressLine(number=1, value=0.1),
        TrainedLine(number=1),
        DoneLine(number=1, digest="d" * 64, size=9, memory="m" * 64, head=3, memoryless=False, spent=SPENT, done=2),
        CancelledLine(number=1),
        MemoryLine(number=1),
        DamagedLine(number=1, path="/a b/ü"),
        FailedLine(number=1, reason="two\nlines", cause="disk"),
    ],
)
def test_a_line_of_a_training_process_is_one_line(line: ProcessLine) -> None:
    text = line.model_dump_json()
    assert "\n" not in text
    assert parse_process_line(text) == line


@pytest.mark.parametrize(
    "line", [CancelLine(cancel=3), EnergyLine(energy=3, joules=None), EnergyLine(energy=3, joules=2.5)]
)
def test_a_line_of_the_agent(line: CancelLine | EnergyLine) -> None:
    assert parse_agent_line(line.model_dump_json()) == line


@pytest.mark.parametrize(
    "text", ['{"number": 1, "event": "do', '{"number": 1, "event": "new"}', '{"event": "memory"}', ""]
)
def test_a_line_that_is_cut_or_unknown(text: str) -> None:
    with pytest.raises(ValueError, match="validation error"):
        parse_process_line(text)
