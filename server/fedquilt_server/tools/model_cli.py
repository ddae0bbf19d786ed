"""The command ``fedquilt model``: inspect a model and its sub-models."""

from __future__ import annotations

import json
from typing import Annotated, cast, get_args

import typer
from pydantic import ValidationError

from fedquilt_common.command_app import CommandApp
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.rejections import list_problems
from fedquilt_common.submodels.adaptivefl_pool import Start
from fedquilt_common.submodels.selection import Rounding
from fedquilt_common.terminal import make_console
from fedquilt_common.user_imports import print_to_stderr
from fedquilt_server.tools.inspect_model import LEVELS, WIDTHS, inspect_model, print_report, read_options

app = CommandApp()
model_app = CommandApp(help="Inspect a model and its sub-models.")
app.add_typer(model_app, name="model")


@app.callback()
def group() -> None:
    """Group the commands, so that typer keeps ``model`` as a sub-command."""


@model_app.command("inspect")
def inspect_(
    name: Annotated[str, typer.Argument(help="Name of a model, or package:factory for your own.")],
    params: Annotated[
        list[str] | None, typer.Option("--set", help="Parameter of the model, such as hidden=[512]; repeatable.")
    ] = None,
    shape: Annotated[str | None, typer.Option("--input", help="Shape of one sample, such as 3x32x32 or 561.")] = None,
    classes: Annotated[int | None, typer.Option(min=0, help="Number of outputs; 0 for regression.")] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Samples are integers, such as tokens of a text.")] = False,
    widths: Annotated[str | None, typer.Option(help="Widths to report, such as 1,0.5,0.25.")] = None,
    rounding: Annotated[
        str, typer.Option(help="How --widths round channels: floor, or ceil as HeteroFL does by default.")
    ] = "floor",
    levels: Annotated[str | None, typer.Option(help="AdaptiveFL's levels, such as M=0.66,S=0.4.")] = None,
    starts: Annotated[
        str | None, typer.Option(help="AdaptiveFL's start layers, numbers or names, such as 8,6,4.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Batch size for the memory estimate.")] = 32,
    precision: Annotated[
        str, typer.Option(help="Precision for the memory estimate: fp32, amp, fp16 or bf16.")
    ] = "fp32",
    optimiser: Annotated[str, typer.Option(help="Optimiser for the memory estimate, such as sgd or adam.")] = "sgd",
    momentum: Annotated[
        float | None, typer.Option(help="Momentum for the memory estimate; by default 0.9 with sgd, otherwise 0.")
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Estimate the memory of training with differential privacy.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Report a model's channel groups, its parameters and operations at each width, and AdaptiveFL's model pool."""
    training = _read_training(batch, precision, optimiser, momentum)
    try:
        with print_to_stderr(wanted=json_):
            options = read_options(name, params or [], shape, classes, tokens, training, private)
            report = inspect_model(
                options,
                _read_widths(widths) if widths else WIDTHS,
                _read_levels(levels) if levels else LEVELS,
                _read_starts(starts) if starts else [],
                _read_rounding(rounding),
            )
    except ValueError as error:
        raise ExperimentError(f"model inspect: {error}") from None
    if json_:
        print(json.dumps(report, indent=2))
    else:
        print_report(report, make_console())


def _read_training(batch: int, precision: str, optimiser: str, momentum: float | None) -> Training:
    if momentum is None:
        momentum = 0.9 if optimiser == "sgd" else 0.0
    given = {"batch": batch, "precision": precision, "optimiser": optimiser, "momentum": momentum}
    try:
        return Training.model_validate(given)
    except ValidationError as error:
        problem = list_problems(error)[0]
        raise ExperimentError(f"--{problem.path} {given[problem.path]}: {problem.why}") from None


def _read_rounding(text: str) -> Rounding:
    if text not in get_args(Rounding):
        raise ExperimentError(f"--rounding {text}: choose {' or '.join(get_args(Rounding))}")
    return cast(Rounding, text)


def _read_starts(text: str) -> list[Start]:
    parts = [part.strip() for part in text.split(",")]
    return [int(part) if part.lstrip("-").isdecimal() else part for part in parts]


def _read_widths(text: str) -> list[float]:
    try:
        widths = [float(part) for part in text.split(",")]
    except ValueError:
        widths = []
    if not widths or not all(0 < width <= 1 for width in widths):
        raise ExperimentError(f"--widths {text}: write numbers above 0 and at most 1, such as 1,0.5,0.25")
    return widths


def _read_levels(text: str) -> dict[str, float]:
    try:
        return {name: float(width) for name, width in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise ExperimentError(f"--levels {text}: write them as M=0.66,S=0.4") from None


def run(arguments: list[str]) -> None:
    """Run ``fedquilt model`` with these arguments."""
    app(arguments, prog_name="fedquilt")
