"""Options and messages that the commands share which run an experiment."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from fedquilt_server.status.console import STANDARD_ERROR, print_message
from fedquilt_server.status.privacy_text import describe_declined
from fedquilt_server.status.results import Result
from fedquilt_server.web.access import Access

ExperimentFile = Annotated[Path, typer.Argument(help="Experiment file (YAML).")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Change a key, such as training.lr=0.05; repeatable.")]
Out = Annotated[Path | None, typer.Option("--out", help="Run folder; default runs/NAME.")]
DemoOut = Annotated[Path | None, typer.Option("--out", help="Run folder; default runs/demo-DATE-TIME.")]
JsonResult = Annotated[
    bool, typer.Option("--json", help="Print the result of a finished run as JSON; progress goes to stderr.")
]
KeepReplies = Annotated[
    bool, typer.Option("--keep-replies", help="Keep the replies of closed rounds, for `fedquilt replay`.")
]
CoordinatorBrokerOption = Annotated[str, typer.Option(help="mqtt://host[:port] or mqtts://...")]
CoordinatorResumeOption = Annotated[
    bool, typer.Option("--resume", help="Resume the run in the folder, if there is one.")
]
CoordinatorHostOption = Annotated[str, typer.Option(help="Address of the status page.")]
CoordinatorPortOption = Annotated[
    int, typer.Option(min=0, max=65535, help="Port of the status page; 0 chooses a free one.")
]
CoordinatorPageOption = Annotated[bool, typer.Option(help="Serve the status page.")]
CoordinatorPublicPageOption = Annotated[
    bool,
    typer.Option(
        "--public-page",
        help="Let everybody who reaches the page read it and download the model without the page's token.",
    ),
]


def _check_finite(seconds: float) -> float:
    if not math.isfinite(seconds):
        raise typer.BadParameter(f"{seconds} is not a finite number of seconds; write one such as 60.")
    return seconds


LingerOption = Annotated[
    float, typer.Option(min=0.0, callback=_check_finite, help="Seconds to keep the page after the run.")
]
CoordinatorPatienceOption = Annotated[
    float,
    typer.Option(
        min=1.0, callback=_check_finite, help="Seconds without progress after which failing clients end the run."
    ),
]
CoordinatorBrokerWaitOption = Annotated[
    float,
    typer.Option(
        min=1.0,
        callback=_check_finite,
        help="Seconds for which the broker may be unreachable at the start. A refusal is not waited for.",
    ),
]
CoordinatorInventoryOption = Annotated[
    Path | None,
    typer.Option(
        help="Inventory of the federation: a client that it assigns to a board is hosted by this board only.",
        show_default="inventory.yml of the federation that --cert belongs to",
    ),
]


def print_control(url: str, access: Access | None) -> None:
    """Print the address with the token in a terminal; a log keeps no secret."""
    if access is not None and STANDARD_ERROR.isatty():
        print_message(f"To control the run, open {url}?token={access.token}")


def print_remarks(result: Result) -> None:
    """Print why a run ended early and what the summary would warn of, for a user who redirects JSON to a file."""
    if result.status == "finished" and result.reason:
        print_message(f"Ended after round {len(result.rounds)}: {result.reason}")
    if declined := describe_declined(result.privacy):
        print_message(f"Declined: {declined}")
    for warning in result.warnings:
        print_message(f"Warning: {warning}")
