"""What commands answer to a user's mistakes: in options, in paths, and in a model of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedquilt_common import cli

EXPERIMENT = """
name: small
rounds: 1
data: {set: digits, clients: 4}
model: {name: mlp, hidden: [8]}
algorithm: {name: fedavg}
fleet: [{agents: 1, clients: 4}]
"""
NETS = """
import sys
import torch

class Net(torch.nn.Module):
    def __init__(self, input_shape, classes):
        super().__init__()
        self.layer = torch.nn.Linear(64, classes)

    def forward(self, x):
        return self.layer(x.flatten(1))

class Raises(Net):
    def forward(self, x):
        if len(x) > 2:
            raise KeyError("train only")
        return super().forward(x)

class Leaves(Net):
    def forward(self, x):
        if len(x) > 2:
            sys.exit(0)
        return super().forward(x)

class NoGradient(Net):
    def forward(self, x):
        return super().forward(x).detach()

class Prints(Net):
    def forward(self, x):
        print("a line")
        return super().forward(x)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with an experiment, a package of models and a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("small.yaml").write_text(EXPERIMENT)
    Path("mistaken_nets.py").write_text(NETS)
    Path("afile").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("simulate", "small.yaml", "--out", ""), 2, "fedquilt: --out is empty; name a folder\n"),
        (("central", "small.yaml", "--out="), 2, "fedquilt: --out is empty; name a folder\n"),
        (("simulate", "small.yaml", "--out", "afile"), 6, "fedquilt: afile is a file, not a folder: choose another"),
        (
            ("simulate", "small.yaml", "--out", "afile/sub"),
            6,
            "fedquilt: afile is a file, not a folder: choose another",
        ),
        (("demo", "--out", "afile"), 6, "fedquilt: afile is a file, not a folder: choose another folder\n"),
        (("central", "small.yaml", "--out", "afile/sub"), 6, "fedquilt: afile is a file, not a folder: choose another"),
        (
            ("watch", "nofolder"),
            6,
            "fedquilt: nofolder: there is no such folder, and it is not an address of a page; write ",
        ),
        (("watch", "runs/demo"), 6, "fedquilt: runs/demo: there is no such folder"),
        (("simulate", "small.yaml", "--linger", "-5"), 2, "--linger"),
        (("simulate", "small.yaml", "--linger", "inf"), 2, "inf is not a finite number of seconds"),
        (("coordinator", "small.yaml", "--broker", "mqtt://h", "--linger", "nan"), 2, "--linger"),
        (
            ("coordinator", "small.yaml", "--broker", "mqtt://h", "--federation", "a b"),
            4,
            "fedquilt: --federation: federation 'a b' cannot be used in a topic",
        ),
        (("coordinator", "small.yaml", "--broker", "mqtt://h", "--patience", "inf"), 2, "inf is not a finite number"),
        (("replay", "r", "--evaluate", "--what-if", "deadline=3"), 4, "--evaluate has no effect with --what-if"),
        (("replay", "r", "--threads", "1", "--what-if", "deadline=3"), 4, "--threads has no effect with --what-if"),
        (("replay", "r", "--seed", "0"), 4, "--seed is for a prediction; remove it, or add --what-if"),
        (
            ("data", "inspect", "digits", "--figure", "bubbles"),
            4,
            "--figure bubbles: there is no file for it; add --png",
        ),
    ],
)
def test_mistakes_in_options(
    arguments: tuple[str, ...], code: int, words: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(place.iterdir())
    assert cli.run(list(arguments)) == code
    assert words in " ".join(capsys.readouterr().err.replace("│", " ").split(" "))
    assert sorted(place.iterdir()) == before


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            "Raises",
            "the model mistaken_nets:Raises raised KeyError: 'train only' (mistaken_nets.py line 16) in round 1; "
            "correct it, and run the same command again",
        ),
        (
            "Leaves",
            "model mistaken_nets:Leaves called sys.exit(0) (mistaken_nets.py line 22); remove that call, and run",
        ),
        (
            "NoGradient",
            "training the model mistaken_nets:NoGradient raised ValueError: the loss has no gradient; compute the",
        ),
    ],
)
def test_a_model_that_fails_in_training_ends_a_central_training_with_its_place(
    model: str, words: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"model={{name: 'mistaken_nets:{model}'}}"
    assert cli.run(["central", "small.yaml", "--out", "run", "--set", name]) == 7
    assert words in capsys.readouterr().err
    result = json.loads((place / "run" / "result.json").read_text())
    assert (result["status"], result["exit_code"]) == ("failed", 7)
    assert words in result["reason"]


def test_what_a_model_prints_is_no_part_of_the_json(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "mistaken_nets:Prints"
    assert cli.run(["central", "small.yaml", "--out", "run", "--json", "--set", f"model={{name: '{name}'}}"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["status"] == "finished"
    assert "a line" in shown.err
    assert cli.run(["model", "inspect", name, "--input", "64", "--classes", "10", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == name
    assert cli.run(["central", "small.yaml", "--out", "two", "--set", "algorithm={name: fedbuff, buffer: 9}"]) == 4
    assert capsys.readouterr().err.endswith("lower it, or raise participation.per_round\n")
