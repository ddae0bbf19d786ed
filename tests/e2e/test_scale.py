"""benchmarks/scale.py measures and draws."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "scale.py"


def test_the_quick_case_measures_and_draws(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(text) for text in (tmp_path / "scale.jsonl").read_text().splitlines()]
    assert [line["clients"] for line in lines] == [1, 3]
    for line in lines:
        assert len(line["seconds"]) == 4
        assert line["bytes_up"] > 10_000 * line["clients"]
        assert line["processes"]["coordinator"]["peak_bytes"] > 0
        assert line["machine"]["cores"]
    assert "clients (0.01 MB, 4 agents)" in (tmp_path / "scale.svg").read_text()
