"""``fedquilt init`` writes an experiment that loads, runs, and explains itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support import warm

from fedquilt_common import cli
from fedquilt_common.experiment_file import load_experiment
from fedquilt_common.files.yaml_text import load_yaml


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["first", "a", "my.very-long_name-of-an-experiment"])
def test_the_file_loads_under_its_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["init", name]) == 0
    assert f"fedquilt simulate {name}.yaml" in capsys.readouterr().out
    loaded = load_experiment(Path(f"{name}.yaml"))
    assert (loaded.name, loaded.data.set, loaded.data.clients) == (name, "digits", 4)
    text = Path(f"{name}.yaml").read_text()
    assert f"#     fedquilt simulate {name}.yaml" in text
    assert "starter" not in text
    assert max(map(len, text.splitlines())) <= 120


def test_every_section_is_explained() -> None:
    assert cli.run(["init", "first"]) == 0
    text = Path("first.yaml").read_text()
    assert load_yaml(text, "first").keys() == {
        "name", "seed", "rounds", "data", "model", "algorithm", "participation", "training", "wire", "fleet",
    }  # fmt: skip
    assert text.count("#") >= 20


def test_an_existing_file_is_left_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Path("first.yaml").write_text("mine")
    assert cli.run(["init", "first"]) == 4
    assert "first.yaml: exists already; choose another name" in capsys.readouterr().err
    assert Path("first.yaml").read_text() == "mine"


@pytest.mark.parametrize("name", ["", "../up", "a/b", "-x.yaml", "a b", "x" * 65])
def test_a_name_that_is_none_is_refused(name: str, tmp_path: Path) -> None:
    assert cli.run(["init", "--", name]) == 4
    assert list(tmp_path.iterdir()) == []


def test_the_file_runs(tmp_path: Path) -> None:
    """With fewer rounds and agents, to be quick."""
    assert cli.run(["init", "first"]) == 0
    fewer = ("--set", "rounds=2", "--set", "fleet=[{kind: strong, agents: 1, clients: 4}]")
    done = warm.fedquilt("simulate", "first.yaml", "--json", *fewer, where=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(json.loads(done.stdout)["rounds"]) == 2
    assert (tmp_path / "runs" / "first" / "result.json").exists()
