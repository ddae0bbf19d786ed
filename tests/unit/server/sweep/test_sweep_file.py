"""Sweep files, and the options that change them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedquilt_common.errors import ExperimentError
from fedquilt_server.sweep.sweep_file import SweepSource, parse_axes, read_source, vary

DIGITS = "{name: digits, data: {set: digits, clients: 2}, model: {name: mlp}, algorithm: {name: fedavg}}"
SWEEP = """
name: two-methods
experiment: base.yaml
vary:
  seed: [1, 2]
  method:
    plain: {algorithm.name: fedavg}
    pulled: {algorithm: {name: fedprox, mu: 0.1}}
exclude:
  - {seed: 2, method: [pulled]}
published:
  - source: a paper, table 1
    figures:
      - {case: {method: plain}, scores: {accuracy: 0.9}}
"""


def read(folder: Path, text: str = SWEEP) -> SweepSource:
    (folder / "base.yaml").write_text(DIGITS)
    (folder / "sweep.yaml").write_text(text)
    return read_source(folder / "sweep.yaml")


def test_a_sweep_file_names_its_experiment_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    source = read(tmp_path)
    assert (source.name, source.base["name"], source.base_place) == ("two-methods", "digits", f"{tmp_path}/base.yaml")
    assert [(axis.name, axis.values) for axis in source.axes] == [("seed", [1, 2]), ("method", ["plain", "pulled"])]
    assert list(source.exclude) == [{"seed": [2], "method": ["pulled"]}]
    assert source.published[0].figures[0].scores == {"accuracy": 0.9}


def test_an_experiment_may_be_written_in_the_sweep_file(tmp_path: Path) -> None:
    source = read(tmp_path, SWEEP.replace("base.yaml", DIGITS))
    assert (source.base["name"], source.base_place) == ("digits", f"{tmp_path}/sweep.yaml: experiment")


def test_an_experiment_file_is_a_sweep_without_axes(tmp_path: Path) -> None:
    source = read(tmp_path, DIGITS)
    assert (source.name, source.axes) == ("digits-sweep", ())


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("name: two-methods", "nam: x", "nam = 'x': unknown key; did you mean 'name'?"),
        ("name: two-methods", "name: 3", "name = 3: must be text; put it in quotes"),
        ("experiment: base.yaml", "experiment: [a]", "experiment: must be the path of an experiment file"),
        ("experiment: base.yaml", "experiment: nothing.yaml", "nothing.yaml: no such file"),
        ("experiment: base.yaml", "", "experiment: is missing"),
        ("seed: [1, 2]", "seed: 1", "vary.seed: must be a list of values"),
        ("plain: {algorithm.name: fedavg}", "plain: fedavg", "vary.method.plain: must hold the keys that it sets"),
        ("seed: 2,", "sead: 2,", "exclude.0.sead: does not vary; did you mean 'seed'?"),
        ("seed: 2,", "seed: 4,", "exclude.0.seed: '4' is not one of its values"),
        ("seed: 2,", "seed: {a: 1},", "exclude.0.seed: must be a value of the axis, or a list of its values"),
        ("{seed: 2, method: [pulled]}", "{}", "exclude.0: is empty"),
        ("case: {method: plain}", "case: {method: plane}", "published.0.figures.0.case.method: 'plane' is not one of"),
        ("case: {method: plain}", "case: {method: [plain]}", "case.method = ['plain']: must be one number"),
        ("accuracy: 0.9", "accuracy: high", "published.0.figures.0.scores.accuracy = 'high': must be a number"),
        ("source: a paper, table 1", "sources: x", "unknown key; did you mean 'source'?"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_the_file_and_the_key(tmp_path: Path, before: str, after: str, words: str) -> None:
    assert before in SWEEP
    with pytest.raises(ExperimentError) as caught:
        read(tmp_path, SWEEP.replace(before, after))
    assert words in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))


def test_an_option_adds_an_axis_replaces_its_values_or_chooses_labels(tmp_path: Path) -> None:
    axes = parse_axes(["seed=7,8", "training.lr=1e-3", "method=pulled", "algorithm={name: fedavg},{name: fedopt}"])
    source = vary(read(tmp_path), axes, "--vary ")
    assert [(axis.name, axis.values) for axis in source.axes] == [
        ("seed", [7, 8]), ("method", ["pulled"]), ("training.lr", [0.001]), ("algorithm", ["fedavg", "fedopt"]),
    ]  # fmt: skip
    assert source.axes[0].choices[0].overrides[0].label == "--vary seed=7"


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["seed"], "--vary seed: write it as dotted.path=value,value"),
        (["=1"], "--vary =1: write it as"),
        (["seed=1", "seed=2"], "--vary seed=2: seed is given twice"),
        (["seed=[1"], "--vary seed=[1:1:"),
    ],
)
def test_an_option_that_is_wrong_is_named(texts: list[str], words: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        parse_axes(texts)
    assert words in str(caught.value)
