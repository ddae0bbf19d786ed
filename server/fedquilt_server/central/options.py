"""Options that ``fedquilt central`` and ``fedquilt data noise-matrix`` share."""

from __future__ import annotations

from typing import Annotated

import typer

from fedquilt_common.experiment.section import MOST

Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Change a key, such as training.lr=0.05; repeatable.")
]
Epochs = Annotated[
    int | None, typer.Option(min=1, max=MOST, help="Passes over all samples.", show_default="rounds x training.epochs")
]
Threads = Annotated[int, typer.Option(min=1, max=1024, help="CPU threads; another number gives other bits.")]
