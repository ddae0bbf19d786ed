"""The command ``fedquilt privacy audit``. It imports the rest of the server when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from fedquilt_common.process.signals import StopSignal
    from fedquilt_server.privacy_audit.report import AuditReport


def add_to(group: typer.Typer) -> None:
    """Add the command to a group of commands."""
    group.command("audit")(audit)


def audit(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run; the command does not change it.")],
    models: Annotated[
        Literal["auto", "global", "own"],
        typer.Option(help="Models to attack; auto: the global model if there is one, else the clients' own."),
    ] = "auto",
    state: Annotated[
        list[Path] | None,
        typer.Option(
            help="State folder of a board, for the clients' own models; repeatable.",
            show_default="those of a simulated run",
        ),
    ] = None,
    shadows: Annotated[
        int,
        typer.Option(min=0, max=1024, help="Shadow models for each model, even, from 4; 0: the loss threshold only."),
    ] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the audit; the same one gives the same numbers.")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="Print the report as JSON; progress goes to stderr.")] = False,
) -> None:
    """Attack the models of a finished run by membership inference: how much they reveal of the samples behind them.

    Members are samples that clients trained on, non-members are samples of the same data set and classes that no client
    trained on. The attacks are a threshold on the loss, and likelihood ratios from shadow models.
    """
    from fedquilt_common.process.signals import StopSignal
    from fedquilt_server.privacy_audit.report import print_report
    from fedquilt_server.privacy_audit.shadows import AuditStoppedError
    from fedquilt_server.status.console import print_message

    stop = StopSignal()
    try:
        report = _audit(run, models, state or [], shadows, seed, stop)
    except AuditStoppedError:
        print_message("Interrupted. The same command starts the audit again")
        raise typer.Exit(stop.exit_code) from None
    if json_:
        typer.echo(report.model_dump_json(indent=2))
    else:
        print_report(report)


def _audit(
    run: Path, models: Literal["auto", "global", "own"], states: list[Path], shadows: int, seed: int, stop: StopSignal
) -> AuditReport:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from fedquilt_server.privacy_audit.audit import AuditSettings, audit_run
    from fedquilt_server.status.console import ERROR_CONSOLE, STANDARD_ERROR

    columns = (TextColumn("[bold]shadow models"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=ERROR_CONSOLE, disable=not STANDARD_ERROR.isatty()) as bar:
        task = bar.add_task("shadows", total=None)
        settings = AuditSettings(
            models,
            states,
            shadows,
            seed,
            stop,
            lambda count: bar.update(task, total=count),
            lambda: bar.advance(task),
        )
        return audit_run(run, settings)
