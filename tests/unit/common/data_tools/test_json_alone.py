"""``--json`` leaves standard output to the JSON, even if a user's data set prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedquilt_common.data_tools.cli import run

MODULE = """
import numpy as np
from fedquilt import Dataset, Examples
print("imported")
def load(folder):
    print("loaded")
    part = Examples(np.zeros((40, 4), np.float32), np.arange(40) % 2)
    return Dataset("talks", part, part, 2)
"""
EXPERIMENT = "{name: a, data: {set: 'MODULE:load', clients: 4}, model: {name: mlp}, algorithm: {name: fedavg}}"


@pytest.mark.parametrize("command", ["inspect", "partition"])
def test_what_a_data_set_prints_goes_to_standard_error(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"talks_while_{command}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / "own.yaml").write_text(EXPERIMENT.replace("MODULE", name))
    monkeypatch.syspath_prepend(tmp_path)
    out = ["--out", str(tmp_path / "shards")] if command == "partition" else []
    with pytest.raises(SystemExit, match="0"):
        run(["data", command, str(tmp_path / "own.yaml"), "--allow-import", name, "--json", *out])
    printed = capsys.readouterr()
    assert json.loads(printed.out)
    assert printed.err == "imported\nloaded\n"
