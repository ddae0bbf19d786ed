"""``fedquilt privacy``: what training has spent of the privacy of the samples on this board."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedquilt_client.memory_cli import IdOption, StateOption, find_state
from fedquilt_client.store import LEDGERS
from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_common.privacy.ledger import SUFFIX, LedgerEntry, read_ledger

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
privacy_app = typer.Typer(
    no_args_is_help=True, help="See what training has spent of the privacy of the samples on this board."
)
app.add_typer(privacy_app, name="privacy")


@app.callback()
def group() -> None:
    """Keep ``privacy`` a sub-command."""


@privacy_app.command()
def show(
    state: StateOption = None,
    id: IdOption = None,
    json_: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """List the samples that were trained on with differential privacy, and what that has spent in all runs."""
    damages: list[RunFolderError] = []
    rows = list(_describe_ledgers(find_state(state, id) / LEDGERS, damages))
    if json_:
        print(json.dumps(rows, indent=2))
    else:
        _print(rows)
    for damage in damages:
        print(f"fedquilt: {damage}", file=sys.stderr)
    raise typer.Exit(RunFolderError.exit_code if damages else 0)


def _describe_ledgers(folder: Path, damages: list[RunFolderError]) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            with report_disk_errors(folder):
                entries = read_ledger(path)
        except RunFolderError as error:
            damages.append(error)
            continue
        if entries:
            yield _describe(path.name.removesuffix(SUFFIX), entries)


def _describe(digest: str, entries: list[LedgerEntry]) -> dict[str, Any]:
    last = entries[-1]
    return {
        "samples": digest,
        "clients": sorted({entry.client for entry in entries}),
        "runs": list(dict.fromkeys(entry.run for entry in entries)),
        "trainings": len(entries),
        "steps": sum(entry.charge.steps for entry in entries),
        "epsilon": last.epsilon,
        "delta": last.delta,
    }


def _print(rows: list[dict[str, Any]]) -> None:
    if not rows:
        print("No training with differential privacy has used samples of this board.")
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("samples", "clients", "runs", "trainings", "steps", "epsilon", "delta"):
        table.add_column(name, justify="left" if name in ("samples", "clients", "runs") else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["samples"][:12], ", ".join(map(str, row["clients"])), ", ".join(row["runs"]), str(row["trainings"]),
            str(row["steps"]), f"{row['epsilon']:.4f}", f"{row['delta']:g}",
        )  # fmt: skip
    console = Console()
    console.width = max(console.width, Console(width=1000).measure(table).maximum)
    console.print(table)


def run(arguments: list[str]) -> None:
    """Entry of ``fedquilt privacy``."""
    app(arguments, prog_name="fedquilt")
