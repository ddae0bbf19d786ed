"""The files in ``examples/``, run with the commands of their docstrings."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import runpy
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
from tests.support import warm

from fedquilt import FedAvg, Reply, State

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
DIGITS = ROOT / "deploy" / "experiments" / "digits-fedavg.yaml"
PLUGINS = ("fedavgm", "own_dataset", "own_model")
ONE_AGENT = "fleet=[{kind: strong, agents: 1, clients: 8}]"
PATIENCE = 100.0


def simulate(folder: Path, *options: str) -> dict[str, Any]:
    """Run two rounds with the examples on the PYTHONPATH."""
    path = os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])
    short = ("--set", "rounds=2", "--set", "training.epochs=1", "--set", ONE_AGENT, "--json", "--out", "run")
    words = ("simulate", str(DIGITS), *short, *options)
    done = warm.fedquilt(*words, where=folder, environment={"PYTHONPATH": path}, patience=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def options_of(name: str) -> list[str]:
    """Return the settings in the docstring's command."""
    words = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text())) or ""
    options = re.findall(r"--set (\S+)", words)
    assert f"PYTHONPATH=examples fedquilt simulate {DIGITS.relative_to(ROOT)}" in words
    assert any(f"={name}:" in option for option in options)
    return options


def test_the_plugins_run_as_their_docstrings_say(tmp_path: Path) -> None:
    """All in one run: each replaces another part."""
    options = [option for name in PLUGINS for option in options_of(name)]
    assert len({option.partition("=")[0] for option in options}) == len(options)
    result = simulate(tmp_path, *(word for option in options for word in ("--set", option)))
    assert len(result["rounds"]) == 2
    assert result["rounds"][-1]["accuracy"] > 0.5
    assert result["rounds"][-1]["clients"] == 8


@pytest.mark.quick
def test_without_momentum_fedavgm_is_fedavg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    own = importlib.import_module("fedavgm").FedAvgM(beta=0)
    draw = np.random.default_rng(7)
    model, *trained = [{"weight": draw.random((3, 4), np.float32)} for _ in range(4)]
    replies = {client: Reply(arrays, weight=1.0 + client) for client, arrays in enumerate(trained)}
    ctx: Any = SimpleNamespace(parameters={"weight"})
    merged, plain = (one.merge(State(model), replies, ctx).arrays["weight"] for one in (own, FedAvg()))
    np.testing.assert_allclose(merged, plain, rtol=1e-5)
    assert not np.allclose(merged, model["weight"])


def run_script(path: Path) -> NoReturn:
    """Run a script as the program of this process."""
    runpy.run_path(str(path), run_name="__main__")
    sys.exit()


def test_the_notebook_runs_cell_by_cell(tmp_path: Path) -> None:
    text = (EXAMPLES / "notebook.py").read_text()
    assert text.count("\n# %% ") >= 4
    done = warm.fedquilt(where=tmp_path, before=partial(run_script, EXAMPLES / "notebook.py"), patience=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    predicted, true = (json.loads(line.partition(":")[2]) for line in lines if line.startswith(("predicted", "true")))
    assert sum(a == b for a, b in zip(predicted, true, strict=True)) >= 6
    (folder,) = (tmp_path / "runs").iterdir()
    assert lines[-1].startswith(f"{folder.relative_to(tmp_path)}: 3 rounds, best accuracy 0.")
    assert len(json.loads((folder / "result.json").read_text())["rounds"]) == 3


@pytest.mark.quick
def test_examples_import_nothing_of_fedquilt_but_the_public_package() -> None:
    for path in EXAMPLES.glob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
        assert {name for name in names if name.startswith("fedquilt")} == {"fedquilt"}, path


@pytest.mark.quick
def test_the_recipe_in_contributing_is_the_example() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    blocks = re.findall(r"^```python\n(.+?)^```$", text, re.MULTILINE | re.DOTALL)
    assert (EXAMPLES / "fedavgm.py").read_text() in blocks
