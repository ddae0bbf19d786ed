"""Sub-models over a real broker, with real agents: the results of each experiment, also when processes are killed."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.runs import EXPERIMENTS, PATIENCE, await_round, kill, simulate, simulating

from fedquilt_common.errors import UncuttableModelError
from fedquilt_common.experiment_file import load_experiment
from fedquilt_common.wire.codec import FileArrays
from fedquilt_server.runs.run import ActiveRun


def check_report(found: dict[str, Any], name: str, rounds: int) -> None:
    """Check what holds in every experiment: all clients train, and a round sends no more than one model."""
    assert (found["algorithm"], len(found["rounds"])) == (name, rounds)
    for row in found["rounds"]:
        assert row["clients"] == 20
        assert {int(client) for client in row["trained"]} == set(range(20))
        assert row["model_bytes"] > 1_600_000
        assert row["bytes_down"] <= 1.02 * row["model_bytes"]
        assert (row["waste_rate"] is not None) == (name == "adaptivefl")
    assert 0 <= found["final"]["average_accuracy"] <= 1


def check_adaptive_report(found: dict[str, Any], folder: Path) -> None:
    trained = found["rounds"][-1]["trained"]
    assert {trained[str(client)] for client in range(12, 20)} <= {"S2"}  # weak boards: S2 fits
    medium = {trained[str(client)] for client in range(6, 12)}  # M1 fits
    assert {"M1"} < medium <= {"S2", "M2", "S1", "M1"}
    assert found["rounds"][0]["waste_rate"] > 0
    sizes = {level: cost["params"] for level, cost in found["rounds"][-1]["sub_models"].items()}
    assert sizes["S2"] == 159_872
    replies = [*csv.DictReader((folder / "run" / "replies.csv").read_text().splitlines())]
    own = [row for row in replies if row["round"] == str(len(found["rounds"])) and row["train_seconds"]]
    assert {row["client"]: row["level"] for row in own if row["params"]} == trained
    assert all(int(row["params"]) == sizes[row["level"]] and int(row["flops"]) > 0 for row in own if row["params"])
    assert all(int(row["memory_peak"]) > 0 for row in own if row["agent"] == "strong-0")  # the others are private
    for board in csv.DictReader((folder / "run" / "boards.csv").read_text().splitlines()):
        told = {board["cores"], board["memory_total"], board["memory_used"], board["temperature"]}
        assert (told <= {"", "0"}) == (board["kind"] != "strong")  # the others are private


def test_what_fedrolex_reports_and_that_static_batch_norm_is_collected_after_the_last_round(tmp_path: Path) -> None:
    """The other experiments differ in the channels that they select; ``contract/test_experiments.py`` tests all."""
    package = tmp_path / "mine.py"
    package.write_text(
        "from torch import nn\nfrom fedquilt_common.models.static_norm import Scaler, StaticBatchNorm\n"
        "def small(input_shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 768), Scaler(),\n"
        "                         StaticBatchNorm(768), nn.ReLU(), nn.Linear(768, classes))\n"
    )
    raw = yaml.safe_load((EXPERIMENTS / "digits-fedrolex.yaml").read_text())
    fleet = [{"kind": "full", "clients": 10}, {"kind": "sixteenth", "clients": 10}]
    raw |= {"model": {"name": "mine:small"}, "rounds": 2, "fleet": fleet}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(raw))
    found = simulate(tmp_path / "mine.yaml", tmp_path, PYTHONPATH=str(tmp_path))
    assert set(found["rounds"][0]["trained"].values()) == {1.0, 0.0625}
    model = FileArrays(tmp_path / "run" / "global.safetensors")
    assert int(model["5.num_batches_tracked"]) == 1
    assert abs(model["5.running_mean"]).max() > 0
    last = found["rounds"][-1]
    assert last["bytes_down"] > 1.5 * found["rounds"][0]["bytes_down"]  # the whole model once more
    last["bytes_down"] -= last["model_bytes"]
    check_report(found, "fedrolex", 2)
    assert found["final"]["accuracy"] > 0.4


def test_a_model_that_cannot_be_cut_is_refused_before_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd.py").write_text(
        "from torch import nn\n"
        "class Odd(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.inner = nn.Bilinear(64, 64, 10)\n"
        "    def forward(self, x):\n        x = x.flatten(1)\n        return self.inner(x, x)\n"
        "def build(input_shape, classes):\n    return Odd()\n"
    )
    raw = yaml.safe_load((EXPERIMENTS / "digits-fedrolex.yaml").read_text())
    raw["model"] = {"name": "odd:build"}
    (tmp_path / "odd.yaml").write_text(yaml.safe_dump(raw))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UncuttableModelError, match="'inner': nothing is known about the channels of a Bilinear"):
        ActiveRun(load_experiment(tmp_path / "odd.yaml"), tmp_path / "run", resume=False)


def test_a_board_that_ran_out_of_memory_trains_something_smaller(tmp_path: Path) -> None:
    """Its worker runs out of memory with the first whole model; the round continues, and the agent logs it."""
    (tmp_path / "greedy.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedquilt_common.algorithms.adaptivefl import AdaptiveFL\n"
        "class Hungry:\n"
        "    def __init__(self, ctx): self.ctx = ctx\n"
        "    def __getattr__(self, name): return getattr(self.ctx, name)\n"
        "    def fits(self, part):\n"
        "        fits = self.ctx.fits(part)\n"
        "        if fits and part.entries > 300000: raise MemoryError\n"
        "        return fits\n"
        "@dataclass(frozen=True)\n"
        "class Greedy(AdaptiveFL):\n"
        "    def work(self, task, ctx): return super().work(task, Hungry(ctx))\n"
    )
    raw = yaml.safe_load((EXPERIMENTS / "digits-adaptivefl.yaml").read_text())
    raw["algorithm"]["name"] = "greedy:Greedy"
    raw |= {"rounds": 2, "evaluate_every": 2, "fleet": [{"kind": "strong", "agents": 1, "clients": 20}]}
    (tmp_path / "greedy.yaml").write_text(yaml.safe_dump(raw))
    found = simulate(tmp_path / "greedy.yaml", tmp_path, PYTHONPATH=str(tmp_path))
    for row in found["rounds"]:
        assert len(row["trained"]) == 20
        assert set(row["trained"].values()) <= {"M2", "S2"}
    assert [row["accuracy"] is None for row in found["rounds"]] == [True, False]
    logs = "".join(path.read_text() for path in (tmp_path / "run" / "logs").glob("strong-*"))
    assert "training was killed: out of memory" in logs


def test_what_adaptivefl_reports_and_that_a_killed_board_changes_no_bit_of_it(tmp_path: Path) -> None:
    """Kill a board that trains sub-models in the middle of the second round: it fetches its patches again."""
    calm, stormy = tmp_path / "calm", tmp_path / "stormy"
    experiment = EXPERIMENTS / "digits-adaptivefl.yaml"
    options = ("--set", "rounds=2", "--set", "evaluate_every=2", "--set", "training.epochs=1")
    calm.mkdir()
    found = simulate(experiment, calm, *options)
    check_report(found, "adaptivefl", 2)
    check_adaptive_report(found, calm)
    stormy.mkdir()
    with simulating(experiment, stormy, *options) as process:
        await_round(stormy, 1)
        kill(stormy, "medium-0")
        assert process.finish(PATIENCE).returncode == 0
    models = [(folder / "run" / "global.safetensors").read_bytes() for folder in (calm, stormy)]
    assert models[0] == models[1]
