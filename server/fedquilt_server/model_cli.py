"""``fedquilt model``: look at a model and its sub-models."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment import Training
from fedquilt_server.inspect_model import LEVELS, WIDTHS, inspect, question, show

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
model_app = typer.Typer(no_args_is_help=True, help="Look at a model and its sub-models.")
app.add_typer(model_app, name="model")


@app.callback()
def group() -> None:
    """Keep ``model`` a sub-command."""


@model_app.command("inspect")
def inspect_(
    name: Annotated[str, typer.Argument(help="A model's name, or package:factory for your own.")],
    params: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter of the model, such as hidden=[512]; repeatable.")
    ] = None,
    shape: Annotated[str | None, typer.Option("--input", help="Shape of one sample, such as 3x32x32 or 561.")] = None,
    classes: Annotated[int | None, typer.Option(min=0, help="Outputs; 0 for regression.")] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Samples are whole numbers, as words are.")] = False,
    widths: Annotated[str | None, typer.Option(help="Widths to show, such as 1,0.5,0.25.")] = None,
    levels: Annotated[str | None, typer.Option(help="AdaptiveFL's levels, such as M=0.66,S=0.4.")] = None,
    starts: Annotated[str | None, typer.Option(help="AdaptiveFL's start layers, such as 8,6,4.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="For the memory estimate.")] = 32,
    precision: Annotated[str, typer.Option(help="For the memory estimate: fp32, amp, fp16 or bf16.")] = "fp32",
    json_: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Channel groups, parameters and operations of a model at each width, and AdaptiveFL's model pool."""
    try:
        training = Training.model_validate({"batch": batch, "precision": precision, "momentum": 0.9})
        wanted = [float(width) for width in widths.split(",")] if widths else WIDTHS
        named = {key: float(value) for key, value in _pairs(levels)} if levels else LEVELS
        layers = [int(start) for start in starts.split(",")] if starts else []
        report = inspect(question(name, params or [], shape, classes, tokens, training), wanted, named, layers)
    except ValidationError as error:
        raise ExperimentError(f"--precision {precision}: {error.errors()[0]['msg']}") from None
    except ValueError as error:
        raise ExperimentError(f"model inspect: {error}") from None
    if json_:
        print(json.dumps(report, indent=2))
    else:
        show(report, Console())


def _pairs(text: str) -> list[list[str]]:
    pairs = [part.split("=") for part in text.split(",")]
    if any(len(pair) != 2 for pair in pairs):
        raise ExperimentError(f"--levels {text}: write them as M=0.66,S=0.4")
    return pairs


def run(arguments: list[str]) -> None:
    """Entry of ``fedquilt model``."""
    app(arguments, prog_name="fedquilt")
