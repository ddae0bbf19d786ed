"""The web application: one page, a small API, an event stream, a health check and metrics. Read only."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, FastAPI, Query, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field, TypeAdapter
from sse_starlette import EventSourceResponse

from fedquilt_common import __version__
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.snapshot import Snapshot, StatusStore
from fedquilt_server.web import view
from fedquilt_server.web.fragments import Renderer
from fedquilt_server.web.headers import SafeHeaders
from fedquilt_server.web.metrics import registry_of
from fedquilt_server.web.stream import updates

DESCRIPTION = "What a fedquilt coordinator is doing. Each answer is read from one snapshot; nothing changes the run."

Since = Annotated[int, Query(ge=0, description="Leave out the rounds up to and including this one.")]
_ROUNDS = TypeAdapter(list[RoundResult])


class HealthReport(BaseModel):
    """Whether the coordinator can do its work."""

    status: view.Health = Field(description="`ok`, `failed` (the run) or `broker-lost`")
    broker: bool = Field(description="whether the coordinator is connected to its broker")


def create_app(board: StatusStore) -> FastAPI:
    """The application over one run's snapshots. Setting ``app.state.closing`` ends its event streams."""
    app = FastAPI(
        title="fedquilt coordinator",
        version=__version__,
        description=DESCRIPTION,
        # FastAPI's own documentation pages load scripts from a CDN.
        docs_url=None,
        redoc_url=None,
    )
    app.state.closing = threading.Event()
    app.add_middleware(SafeHeaders)
    app.include_router(_page(board, Renderer(), app.state.closing))
    app.include_router(_api(board))
    app.include_router(_monitoring(board))
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"), name="static")
    return app


def _page(board: StatusStore, renderer: Renderer, closing: threading.Event) -> APIRouter:
    router = APIRouter(tags=["page"])

    @router.get("/", response_class=HTMLResponse, summary="The status page")
    async def page() -> HTMLResponse:
        return HTMLResponse(renderer.page(board.current))

    @router.get(
        "/events",
        summary="The status page's event stream",
        response_class=EventSourceResponse,
        responses={200: {"content": {"text/event-stream": {}}, "description": "Server-sent events, without end."}},
    )
    async def events() -> EventSourceResponse:
        """Sends parts of the page that changed, `history` (new points of the curves), `clock` (a heartbeat).

        An event's id is the version of the snapshot it comes from. A new reader is sent everything.
        """
        return EventSourceResponse(updates(board, renderer, closing))

    return router


def _api(board: StatusStore) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["api"])

    # Both answer with ready JSON: checking our own models again on the way out costs time and finds nothing,
    # and pydantic writes a loss that is not a number as null, which JSON can say.
    @router.get("/status", response_model=Snapshot, summary="The whole snapshot")
    async def status() -> Response:
        """The state of the run, its boards and its finished rounds at one moment."""
        return Response(board.current.model_dump_json(), media_type="application/json")

    @router.get("/rounds", response_model=list[RoundResult], summary="The finished rounds")
    async def rounds(since: Since = 0) -> Response:
        """One row a finished round, oldest first; the same rows as in `result.json`."""
        rows = [row for row in board.current.history if row.round > since]
        return Response(_ROUNDS.dump_json(rows), media_type="application/json")

    return router


def _monitoring(board: StatusStore) -> APIRouter:
    router = APIRouter(tags=["monitoring"])
    registry = registry_of(board)

    @router.get(
        "/healthz",
        response_model=HealthReport,
        summary="The health check",
        responses={503: {"model": HealthReport, "description": "The run failed, or goes on without its broker."}},
    )
    async def healthz(response: Response) -> HealthReport:
        """200 when the run is finished, or goes on with its broker there; else 503."""
        snapshot = board.current
        status = view.health(snapshot)
        response.status_code = 200 if status == "ok" else 503
        return HealthReport(status=status, broker=snapshot.broker_connected)

    @router.get("/metrics", response_class=PlainTextResponse, summary="Metrics for Prometheus")
    async def metrics() -> Response:
        """Prometheus' text format."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return router
