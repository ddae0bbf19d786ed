"""The options of ``fedquilt sweep`` that no other command has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SweepFileArgument = Annotated[Path, typer.Argument(help="Sweep file or experiment file (YAML).")]
SweepVaryOption = Annotated[
    list[str] | None,
    typer.Option(
        "--vary",
        metavar="KEY=VALUE,VALUE",
        help="Vary a key, such as seed=1,2,3, or choose labels of an axis of the sweep file; repeatable.",
    ),
]
SweepSetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a key in every run, such as training.lr=0.05; repeatable."),
]
SweepOutOption = Annotated[
    Path | None,
    typer.Option(help="Folder of the sweep; default runs/NAME, or runs/NAME-sweep for an experiment file."),
]
SweepJobsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1024,
        help="Runs at once; default: as many as have a processor core for each training process, at least one.",
    ),
]
SweepBrokerOption = Annotated[
    str | None,
    typer.Option(help="URL of the boards' broker: run only coordinators, one after another, and simulate no board."),
]
SweepInventoryOption = Annotated[
    Path | None,
    typer.Option(
        help="Inventory that assigns clients to boards.",
        show_default="inventory.yml of the federation that --cert belongs to",
    ),
]
SweepPortOption = Annotated[
    int, typer.Option(min=0, max=65535, help="Port of each run's status page; 0 chooses a free one.")
]
SweepJsonOption = Annotated[
    bool, typer.Option("--json", help="Print sweep.json with final scores; progress goes to stderr.")
]
