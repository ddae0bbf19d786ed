"""``fedquilt model``: look at a model and its sub-models."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, TypeVar

import typer
from pydantic import ValidationError
from rich.console import Console

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.sections import Training
from fedquilt_server.tools.inspect_model import LEVELS, WIDTHS, inspect, question, show

_Number = TypeVar("_Number", int, float)

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
        wanted = _numbers("--widths", widths, float, "1,0.5,0.25") if widths else WIDTHS
        named = _levels(levels) if levels else LEVELS
        layers = _numbers("--starts", starts, int, "8,6,4") if starts else []
        report = inspect(question(name, params or [], shape, classes, tokens, training), wanted, named, layers)
    except ValidationError as error:
        raise ExperimentError(f"--precision {precision}: {error.errors()[0]['msg']}") from None
    except ValueError as error:
        raise ExperimentError(f"model inspect: {error}") from None
    if json_:
        print(json.dumps(report, indent=2))
    else:
        show(report, Console())


def _numbers(option: str, text: str, kind: Callable[[str], _Number], example: str) -> list[_Number]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise ExperimentError(f"{option} {text}: write numbers such as {example}") from None


def _levels(text: str) -> dict[str, float]:
    try:
        return {name: float(width) for name, width in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise ExperimentError(f"--levels {text}: write them as M=0.66,S=0.4") from None


def run(arguments: list[str]) -> None:
    """Entry of ``fedquilt model``."""
    app(arguments, prog_name="fedquilt")
