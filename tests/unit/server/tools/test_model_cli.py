"""``fedquilt model inspect``: Table 1 of AdaptiveFL, a user's own models, and refused options."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support import warm
from typer.testing import CliRunner

from fedquilt_common import cli
from fedquilt_common.errors import FedquiltError
from fedquilt_server.tools.model_cli import app

TABLE_1 = {  # parameters and operations, AdaptiveFL (Jia et al., DAC 2024), Table 1
    "L1": (33.65, 333.22), "M1": (16.81, 272.17), "M2": (15.41, 239.95), "M3": (14.84, 203.41),
    "S1": (8.39, 239.00), "S2": (6.48, 191.31), "S3": (5.67, 139.07),
}  # fmt: skip


def inspect(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["model", "inspect", *arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_heads_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["model", "inspect", "convnet", "--json"]) == 0
    heads = json.loads(capsys.readouterr().out)["heads"]
    assert [head["layers"] for head in heads] == [["fc3"], ["fc2", "fc3"], ["fc1", "fc2", "fc3"]]
    assert [head["entries"] for head in heads][:2] == [193 * 10, 193 * 10 + 385 * 192]
    assert cli.run(["model", "inspect", "convnet"]) == 0
    assert "head_layers: 2 is fc2, fc3, 75,850 of 797,962 numbers" in capsys.readouterr().out


def test_privacy_needs_more_memory() -> None:
    plain, private = inspect("convnet"), inspect("convnet", "--private")
    assert private["private"]
    assert private["training_memory"] > 4 * plain["training_memory"]


def test_vgg16_is_table_1() -> None:
    report = inspect("vgg16")
    pool = {row["name"]: (row["params"] / 1e6, row["flops"] / 1e6) for row in report["pool"]}
    assert list(pool) == list(TABLE_1)
    for name, (params, flops) in TABLE_1.items():
        assert pool[name][0] == pytest.approx(params, abs=0.01)
        assert pool[name][1] == pytest.approx(flops, abs=0.006)
    assert [row["ratio"] for row in report["pool"]] == pytest.approx([1, 0.5, 0.46, 0.44, 0.25, 0.19, 0.17], abs=0.006)


def test_each_width_has_its_channels_parameters_and_memory() -> None:
    report = inspect("mlp", "--input", "8x8", "--set", "hidden=[40, 20]", "--widths", "1,0.5,0.1", "--batch", "4")
    assert [group["widths"] for group in report["groups"]] == [
        {"1.0": 40, "0.5": 20, "0.1": 4}, {"1.0": 20, "0.5": 10, "0.1": 2},
    ]  # fmt: skip
    assert [row["params"] for row in report["widths"]] == [
        64 * a + a + a * b + b + b * 10 + 10 for a, b in ((40, 20), (20, 10), (4, 2))
    ]
    assert [row["flops"] for row in report["widths"]] == [
        64 * a + a * b + b * 10 for a, b in ((40, 20), (20, 10), (4, 2))
    ]
    memory = [row["training_memory"] for row in report["widths"]]
    assert memory == sorted(memory, reverse=True)


@pytest.mark.parametrize(("rounding", "channels"), [("floor", 1), ("ceil", 2)])
def test_widths_are_rounded_as_the_algorithm_does(rounding: str, channels: int) -> None:
    report = inspect("mlp", "--input", "8x8", "--set", "hidden=[3]", "--widths", "0.5", "--rounding", rounding)
    assert report["groups"][0]["widths"] == {"0.5": channels}
    assert report["widths"][0]["params"] == (64 + 1 + 10) * channels + 10


def test_the_tables_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["model", "inspect", "mlp", "--input", "64", "--set", "hidden=[40]"]) == 0
    shown = capsys.readouterr().out
    assert "3,010 parameters" in shown
    assert "AdaptiveFL's pool" in shown or "last layer" in shown
    assert "0.00 M" not in shown  # a small model keeps its digits


def shell(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Inspect a model in a process that finds modules in ``folder``."""
    return warm.fedquilt("model", "inspect", *arguments, where=folder, environment={"PYTHONPATH": str(folder)})


OWN = """
from collections import namedtuple
import torch
from torch import nn
def good(input_shape, classes, width=4):
    return nn.Sequential(nn.Conv2d(input_shape[0], width, 3), nn.GroupNorm(2, width), nn.ReLU(), nn.Flatten(),
                         nn.LazyLinear(classes) if width < 0 else nn.Linear(width * 36, classes))
def grouped(input_shape, classes):
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1, groups=4),
                         nn.Conv2d(64, 16, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, classes))
def whole(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, classes))
def odd(input_shape, classes):
    return nn.Sequential(nn.Conv2d(1, 4, 1), nn.FractionalMaxPool2d(2, 2), nn.Flatten(), nn.Linear(16, classes))
class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.base, self.head = nn.Linear(64, 16), nn.Linear(16, 10)
    def forward(self, x):
        x = self.base(x.flatten(1))
        torch._assert(x.shape[1] == 16, "fixed")
        return self.head(x)
class Extra(Fixed):
    def forward(self, x):
        x = self.head(self.base(x.flatten(1)))
        return (x, x) if self.training else x
Out = namedtuple("Out", "logits aux")
class Named(Fixed):
    def forward(self, x):
        x = self.head(self.base(x.flatten(1)))
        return Out(x, x + 1)
class Frozen(Fixed):
    def forward(self, x):
        with torch.no_grad():
            x = self.base(x.flatten(1))
        return self.head(x.view(-1, 16))
def frozen(input_shape, classes):
    return Frozen()
def fixed(input_shape, classes):
    return Fixed()
def extra(input_shape, classes):
    return Extra()
def named(input_shape, classes):
    return Named()
"""


def test_an_own_model_needs_no_annotation(tmp_path: Path) -> None:
    (tmp_path / "lab.py").write_text(OWN)
    done = shell(tmp_path, "lab:good", "--input", "1x8x8", "--set", "width=8", "--json", "--widths", "1,0.5")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [row["params"] for row in report["widths"]] == [9 * w + w + 2 * w + 36 * w * 10 + 10 for w in (8, 4)]


def test_start_layers_have_numbers_or_names(tmp_path: Path) -> None:
    hidden = ("mlp", "--set", "hidden=[64,64,64]", "--json", "--starts")
    named, numbered, repeated = (
        json.loads(shell(tmp_path, *hidden, starts).stdout) for starts in ("fc2, fc3", "1, 2", "2,fc3")
    )
    assert named["pool"] == numbered["pool"] != []
    assert "(layers [2, 2], counted from 0): some are the same layer" in repeated["pool_error"]


def test_starts_whose_sub_models_are_the_same_have_no_pool() -> None:
    """Layer 2 of this network is the second convolution of a residual block."""
    small = ("resnet18", "--set", "width=0.25", "--input", "3x8x8", "--widths", "1", "--starts")
    refused, pool = inspect(*small, "3,2"), inspect(*small, "3,1")
    assert refused["pool"] == []
    assert "layer 2 has no channels of its own" in refused["pool_error"]
    assert len(pool["pool"]) == 5


@pytest.mark.parametrize(
    ("name", "problem", "heads"),
    [
        ("odd", "algorithms with sub-models refuse this model: the model cannot be cut: '1': nothing is known", 1),
        (
            "fixed",
            "algorithms with sub-models refuse this model: the model cannot be cut: its sub-model with 8 of 16",
            1,
        ),
        (
            "frozen",
            "algorithms with sub-models refuse this model: the model cannot be cut: forward contains or compares sizes",
            1,
        ),
        ("extra", "model.name = lab:extra: the model returns 2 outputs of shape (10), (10) in training, but 1", 0),
    ],
)
def test_what_a_run_refuses_is_reported_with_the_heads(tmp_path: Path, name: str, problem: str, heads: int) -> None:
    (tmp_path / "lab.py").write_text(OWN)
    done = shell(tmp_path, f"lab:{name}", "--input", "1x8x8", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    (found,) = report["problems"]
    assert found.startswith(problem)
    assert [head["entries"] for head in report["heads"]] == [16 * 10 + 10] * heads
    shown = shell(tmp_path, f"lab:{name}", "--input", "1x8x8").stdout
    assert "Error: " in shown
    assert shown.count("head_layers: 1 is ") == heads


def test_a_named_tuple_of_outputs_is_pointed_out(tmp_path: Path) -> None:
    (tmp_path / "lab.py").write_text(OWN)
    report = json.loads(shell(tmp_path, "lab:named", "--input", "1x8x8", "--json").stdout)
    assert report["problems"] == []
    assert "a named tuple (logits, aux), whose last output, aux, is trained" in report["warnings"][-1]


def test_grouped_convolutions_show_their_channels(tmp_path: Path) -> None:
    (tmp_path / "lab.py").write_text(OWN)
    report = json.loads(shell(tmp_path, "lab:grouped", "--widths", "1,0.5", "--json").stdout)
    assert [(g["name"], g["size"], g["each"]) for g in report["groups"]] == [("0", 8, 4), ("1", 16, 4), ("2", 16, 1)]
    conv, grouped, deep, fc = 3 * 9 * 32 + 32, 8 * 9 * 64 + 64, 64 * 16 + 16, 16 * 10 + 10
    assert report["params"] == conv + grouped + deep + fc
    assert report["flops"] == 1024 * (3 * 9 * 32 + 8 * 9 * 64 + 64 * 16) + 160
    assert report["widths"][1]["params"] == 28 * 16 + 37 * 32 + 33 * 8 + 90
    assert report["kept_whole"] == {}
    assert report["warnings"] == []
    shown = shell(tmp_path, "lab:grouped", "--widths", "1,0.5").stdout
    assert "64 (16 x 4)" in shown
    assert "is not" not in shown


def test_what_stays_whole_and_what_suits_badly_is_shown(tmp_path: Path) -> None:
    (tmp_path / "lab.py").write_text(OWN)
    report = json.loads(shell(tmp_path, "lab:whole", "--json").stdout)
    assert report["whole_share"] == 1.0
    assert "no channels can be cut" in report["warnings"][0]
    assert report["widths"][-1]["ratio"] == 1.0
    (norms,) = inspect("resnet18", "--set", "width=0.1")["warnings"]
    assert "BatchNorm2d" in norms
    assert "norm: static" in norms
    assert inspect("resnet18", "--set", "width=0.1", "--set", "norm=static")["warnings"] == []
    assert "Warning: no channels" in " ".join(shell(tmp_path, "lab:whole").stdout.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["vgg61"], "did you mean 'vgg16'?"),
        (["mlp", "--input", "3x"], "--input 3x: write the shape of one sample as 3x32x32 or 561"),
        (["mlp", "--set", "hidden"], "--set hidden: write it as key=value"),
        (["mlp", "--widths", "wide"], "--widths wide: write numbers above 0 and at most 1, such as 1,0.5,0.25"),
        (["mlp", "--rounding", "up"], "--rounding up: choose floor or ceil"),
        (["mlp", "--widths", "1,0"], "--widths 1,0: write numbers above 0 and at most 1, such as 1,0.5,0.25"),
        (["mlp", "--levels", "M"], "--levels M: write them as M=0.66,S=0.4"),
        (["mlp", "--precision", "fp8"], "--precision fp8: "),
        (["mlp", "--optimiser", "adam", "--momentum", "0.5"], "--momentum 0.5: the optimiser 'adam' has no momentum"),
        (["convnet", "--input", "64"], "no images"),
    ],
)
def test_what_it_refuses_says_what_to_write(arguments: list[str], words: str) -> None:
    error = CliRunner().invoke(app, ["model", "inspect", *arguments]).exception
    assert isinstance(error, FedquiltError)
    assert error.exit_code == 4
    assert words in str(error)
