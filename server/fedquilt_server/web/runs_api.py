"""The list of runs as an API."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException
from pydantic import Field

from fedquilt_common.errors import RunFolderError
from fedquilt_server.library.run_library import LibraryRun, RunLibrary
from fedquilt_server.library.run_list import RunRow


class ListedRun(RunRow):
    """One run of a folder, and where its page is."""

    id: str = Field(description="stays the same as long as the run folder keeps its place")
    address: str = Field(description="of the run's page, from the root of this server")


def runs_routes(library: RunLibrary) -> APIRouter:
    """Return the route that lists the runs of a library."""
    router = APIRouter(prefix="/api/v1", tags=["api"])

    # A route that is no coroutine runs in a thread, because it reads files.
    @router.get(
        "/runs", response_model=list[ListedRun], summary="The runs", responses={503: {"description": "No such folder."}}
    )
    def runs() -> list[ListedRun]:
        """Return every run of the folder, in alphabetical order: the same fields as `fedquilt runs --json`."""
        return [listed_run(run) for run in list_runs(library)]

    return router


def list_runs(library: RunLibrary) -> list[LibraryRun]:
    """Return the runs of a library.

    Raises:
        HTTPException: its folder cannot be read.
    """
    try:
        return list(library.list())
    except RunFolderError as error:
        raise HTTPException(503, str(error)) from None


def listed_run(run: LibraryRun) -> ListedRun:
    """Return a run as the API lists it."""
    return ListedRun(**run.row.model_dump(), id=run.id, address=f"runs/{run.id}/")
