"""The web application over a folder of runs: the list, each run's page and API, and comparisons. It only reads."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field

from fedquilt_common.errors import RunFolderError
from fedquilt_server.library.run_library import LibraryRun, RunLibrary
from fedquilt_server.web.access import Access
from fedquilt_server.web.api import api_routes
from fedquilt_server.web.app import bare_app, page_routes, stream_routes
from fedquilt_server.web.connections import MOST_CONNECTIONS
from fedquilt_server.web.downloads import download_routes
from fedquilt_server.web.library_view import LibraryRenderer
from fedquilt_server.web.long_responses import LongResponses
from fedquilt_server.web.neighbours import neighbour_routes
from fedquilt_server.web.open_run import set_run
from fedquilt_server.web.open_runs import OpenRuns
from fedquilt_server.web.problem_pages import add_problem_pages
from fedquilt_server.web.run_comparison import MOST_COMPARED, RunComparison, RunsSideBySide
from fedquilt_server.web.run_table import RunQuery, select_runs
from fedquilt_server.web.runs_api import list_runs, runs_routes

DESCRIPTION: Final = "The runs of a folder: finished, running and failed ones. Nothing here changes a run."
RunId = Annotated[str, Path(description="Identifier of a run, as `/api/v1/runs` lists it.")]
RunIds = Annotated[
    list[str],
    Query(alias="run", default_factory=list, max_length=100, description="Identifiers of the runs to compare."),
]
SearchText = Annotated[str, Query(alias="q", max_length=200, description="Words that a run must contain.")]
Status = Annotated[str, Query(max_length=20, description="Show only runs with this status.")]
Sort = Annotated[str, Query(max_length=20, description="Column to sort by; with `-`, the highest value first.")]
PageNumber = Annotated[int, Query(alias="page", ge=1, le=1_000_000, description="Number of the page of the list.")]
_NO_RUN: Final[dict[int | str, dict[str, Any]]] = {
    404: {"description": "There is no such run."},
    503: {"description": "The folder of the runs cannot be read."},
}


class LibraryHealth(BaseModel):
    """The response of the health check."""

    status: str = Field(description="always `ok`")


def create_library_app(
    library: RunLibrary,
    hosts: Container[str] | None = None,
    connections: int = MOST_CONNECTIONS,
    access: Access | None = None,
) -> FastAPI:
    """Create the application for a folder of runs. Set the event ``app.state.closing`` to end its event streams.

    Args:
        library: the runs.
        hosts: names with a dot to which the page answers; None for this machine's own.
        connections: how many connections the server holds; half of them may be event streams.
        access: who may read; None lets everybody read.
    """
    app = bare_app("fedquilt runs", DESCRIPTION, hosts, access)
    opened = OpenRuns(library, app.state.closing)
    view = LibraryRenderer(library.folder)
    streams = LongResponses(connections // 2)

    # It is no coroutine, so that it runs in a thread: it reads files.
    def choose_run(request: Request, run_id: RunId) -> None:
        try:
            found = opened.find(run_id)
        except RunFolderError as error:
            raise HTTPException(503, str(error)) from None
        if found is None:
            raise HTTPException(404, "there is no such run; it may have been moved or deleted")
        set_run(request, found)

    app.include_router(_list_routes(library, view))
    app.include_router(_comparison_routes(library, view))
    app.include_router(runs_routes(library))
    own = [page_routes(streams), stream_routes(streams), api_routes(), download_routes(streams)]
    for router in (*own, neighbour_routes(library)):
        app.include_router(router, prefix="/runs/{run_id}", dependencies=[Depends(choose_run)], responses=_NO_RUN)
    add_problem_pages(app, in_library=True)
    return app


def _list_routes(library: RunLibrary, view: LibraryRenderer) -> APIRouter:
    router = APIRouter()

    @router.get("/", response_class=HTMLResponse, summary="The list of runs", tags=["page"], responses=_NO_RUN)
    def runs(
        text: SearchText = "", status: Status = "", sort: Sort = RunQuery.sort, page: PageNumber = 1
    ) -> HTMLResponse:
        return HTMLResponse(view.runs(select_runs(list_runs(library), RunQuery(text, status, sort, page))))

    @router.get("/healthz", summary="The health check", tags=["monitoring"])
    async def healthz() -> LibraryHealth:
        """Return 200 while the page answers."""
        return LibraryHealth(status="ok")

    return router


def _comparison_routes(library: RunLibrary, view: LibraryRenderer) -> APIRouter:
    router = APIRouter()

    @router.get("/compare", response_class=HTMLResponse, summary="A comparison of runs", tags=["page"],
                responses=_NO_RUN)  # fmt: skip
    def compare(run_ids: RunIds) -> HTMLResponse:
        return HTMLResponse(view.comparison(RunsSideBySide(choose_runs(list_runs(library), run_ids))))

    @router.get(
        "/api/v1/comparison",
        response_model=RunComparison,
        summary="Runs side by side",
        tags=["api"],
        responses=_NO_RUN,
    )
    def comparison(run_ids: RunIds) -> Response:
        """Return curves, scores, costs, and the settings that differ. Long runs have fewer points than rounds."""
        found = RunsSideBySide(choose_runs(list_runs(library), run_ids))
        return Response(found.as_data().model_dump_json(), media_type="application/json")

    return router


def choose_runs(runs: Sequence[LibraryRun], ids: Sequence[str]) -> list[LibraryRun]:
    """Return the runs with these identifiers, each once.

    Raises:
        HTTPException: one is unknown, or there are fewer than two, or too many.
    """
    known, wanted = {run.id: run for run in runs}, list(dict.fromkeys(ids))
    if not 2 <= len(wanted) <= MOST_COMPARED:
        raise HTTPException(404, f"choose 2 to {MOST_COMPARED} runs to compare; you chose {len(wanted)}")
    if not known.keys() >= set(wanted):
        raise HTTPException(404, "one of these runs is not there; it may have been moved or deleted")
    return [known[id] for id in wanted]
