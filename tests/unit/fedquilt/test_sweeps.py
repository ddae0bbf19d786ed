"""What ``fq.sweep`` reads, starts and returns; real runs are in tests/e2e/test_sweep.py."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.finished_folder import finishing_text

import fedquilt as fq
from fedquilt import sweeps
from fedquilt_server.sweep.run_process import RunHost

DIGITS: dict[str, Any] = {
    "name": "digits", "data": {"set": "digits", "clients": 2}, "model": {"name": "mlp"},
    "algorithm": {"name": "fedavg"},
}  # fmt: skip


@dataclass(frozen=True)
class Quick(RunHost):
    """Ends each run at once, with the result of seed 1 and an error for any other."""

    def command(self, folder: Path, port: int) -> tuple[str, ...]:
        (folder / "path").write_text(os.pathsep.join(self.python_path))
        if folder.name.startswith("seed=1"):
            return (sys.executable, "-c", finishing_text(folder, accuracy=0.5))
        return (sys.executable, "-c", "import sys; sys.exit('fedquilt: the loss became nan')")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sweeps, "RunHost", Quick)
    monkeypatch.chdir(tmp_path)


def test_failed_runs_are_marked_and_raise_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    done = fq.sweep(DIGITS, {"seed": [1, 2]}, out="all", jobs=1, progress=False, rounds=3)
    assert (done.name, done.folder) == ("digits-sweep", Path("all"))
    (first,), (second,) = done.finished, done.failed
    assert (first.folder, first.settings, first.reason) == (Path("all/seed=1"), {"seed": 1}, "")
    assert first.run is not None
    assert (first.run.experiment.rounds, first.run.experiment.seed, first.run.result.final) == (3, 1, {"accuracy": 0.5})
    assert (second.status, second.reason, second.run) == ("failed", "the loss became nan", None)
    assert (tmp_path / "all" / "seed=1" / "path").read_text().split(os.pathsep)[0] == str(tmp_path)
    assert fq.load_sweep("all") == done


def test_a_sweep_comes_in_many_forms(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(f"{{name: s, experiment: {DIGITS}, vary: {{seed: [1, 2]}}}}")
    (tmp_path / "digits.yaml").write_text(str(DIGITS))
    labels = {"way": {"near": {"rounds": 1}, "far": {"rounds": 2}}}
    forms: list[tuple[Any, Any]] = [
        ("sweep.yaml", None), (Path("digits.yaml"), {"seed": range(1, 3)}), (fq.load_experiment(DIGITS), labels)
    ]  # fmt: skip
    for number, (experiment, vary) in enumerate(forms):
        assert len(fq.sweep(experiment, vary, out=str(number), progress=False).runs) == 2


@pytest.mark.parametrize(
    ("vary", "keys", "words"),
    [
        (None, {}, "experiment: nothing varies; add --vary"),
        ({"seed": [1, -1]}, {}, "vary seed=-1: seed = -1: must be"),
        ({"seed": 1}, {}, "vary seed: must be a list of values"),
        ({"seed": [1]}, {"rounds": 0}, "rounds=0: rounds = 0: must be"),
        ({"seed": [1]}, {"set": {"training.lr": 0}}, "set={'training.lr': 0}: training.lr = 0: must be"),
    ],
)
def test_what_is_wrong_is_named_with_the_argument(vary: Any, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(fq.ExperimentError) as caught:
        fq.sweep(DIGITS, vary, **keys)
    assert words in str(caught.value)
    assert not Path("runs").exists()


def test_rows_of_a_table_need_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    done = fq.sweep(DIGITS, {"seed": [1, 2]}, progress=False)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(fq.PackageMissingError, match="pip install pandas"):
        done.frame()


def test_a_folder_without_a_sweep_is_named(tmp_path: Path) -> None:
    with pytest.raises(fq.RunFolderError, match=r"holds no sweep\.json"):
        fq.load_sweep(tmp_path)
