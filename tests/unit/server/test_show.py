"""What a person reads in the terminal."""

from __future__ import annotations

import pytest

from fedquilt_server.results import Result, RoundResult
from fedquilt_server.show import print_table


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_the_table_keeps_every_digit_however_narrow_the_terminal(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    zeros = {name: 0 for name, field in RoundResult.model_fields.items() if field.is_required()}
    told = {"round": 1000, "accuracy": 0.8125, "loss": 1.2345, "bytes_up": 123_400_000, "waste_rate": 0.1874}
    row = RoundResult.model_validate({**zeros, **told, "trained": {"0": "S1"}, "scores": {"average_accuracy": 0.7533}})
    print_table(Result(name="n", run="r", algorithm="adaptivefl", dataset="digits", seed=1, rounds=[row]))
    line = next(line for line in capsys.readouterr().out.splitlines() if "1000" in line)
    assert line.split() == ["1000", "0.8125", "1.2345", "0.00", "0", "B", "123.4", "MB", "0", "0.7533", "0.1874"]
