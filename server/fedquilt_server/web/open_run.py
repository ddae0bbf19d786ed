"""The run that a request is about: a coordinator's page has one, the page of a folder has many."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

from fastapi import Depends, Request

from fedquilt_server.status.snapshot import StatusStore
from fedquilt_server.web.frames import FrameSource


@dataclass(frozen=True, eq=False)
class OpenRun:
    """A run that somebody looks at.

    Attributes:
        store: holds its newest snapshot.
        frames: makes what its page shows.
        closing: set when its event streams have to end.
        folder: the run folder; None for a page without downloads and other runs.
    """

    store: StatusStore
    frames: FrameSource
    closing: threading.Event
    folder: Path | None = None


def set_run(request: Request, run: OpenRun) -> None:
    """Choose the run of a request. A dependency of the router calls it before the route asks for the run."""
    request.state.open_run = run


async def _get_run(request: Request) -> OpenRun:
    return cast("OpenRun", request.state.open_run)


RequestedRun = Annotated[OpenRun, Depends(_get_run)]
"""The type of a route's parameter that receives the run."""
