"""The web application: the status page, a small API, an event stream, a health check and metrics. All are read-only."""

from __future__ import annotations

import threading
from collections.abc import Container
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
from fedquilt_server.web.access import Access, AccessCheck
from fedquilt_server.web.connections import MOST_CONNECTIONS
from fedquilt_server.web.control import RequestControl, control_routes
from fedquilt_server.web.fragments import Renderer
from fedquilt_server.web.headers import SecurityHeaders
from fedquilt_server.web.hosts import HostCheck, HostNames
from fedquilt_server.web.metrics import create_registry
from fedquilt_server.web.stream import BoundedEventStream, EventStreams, stream_updates

DESCRIPTION = "The state of a fedquilt run. Each response comes from one snapshot. Only POST requests change the run."

Since = Annotated[int, Query(ge=0, description="Return only the rounds after this one.")]
_ROUNDS = TypeAdapter(list[RoundResult])


class HealthReport(BaseModel):
    """The response of the health check."""

    status: view.Health = Field(description="`ok`, `failed` (the run failed) or `broker-lost`")
    broker: bool = Field(description="whether the coordinator is connected to the broker")


def create_app(
    store: StatusStore,
    hosts: Container[str] | None = None,
    connections: int = MOST_CONNECTIONS,
    access: Access | None = None,
    request_control: RequestControl | None = None,
) -> FastAPI:
    """Create the application for one run. Set the event ``app.state.closing`` to end its event streams.

    Args:
        store: where the coordinator writes the snapshots.
        hosts: names with a dot to which the page answers; None for this machine's own.
        connections: how many connections the server holds; half of them may be event streams.
        access: who may read and control; None lets everybody read and nobody control.
        request_control: passes control requests to the coordinator; None for a page without control.
    """
    app = FastAPI(
        title="fedquilt coordinator",
        version=__version__,
        description=DESCRIPTION,
        # FastAPI's documentation pages would load scripts from a CDN.
        docs_url=None,
        redoc_url=None,
    )
    app.state.closing = threading.Event()
    if access is not None:
        app.add_middleware(AccessCheck, access=access)
    app.add_middleware(HostCheck, allowed=HostNames() if hosts is None else hosts)
    app.add_middleware(SecurityHeaders)
    app.include_router(_page_routes(store, app.state.closing, EventStreams(connections // 2)))
    app.include_router(_api_routes(store))
    app.include_router(_monitoring_routes(store))
    if access is not None and request_control is not None:
        app.include_router(control_routes(store, request_control))
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"), name="static")
    return app


def _page_routes(store: StatusStore, closing: threading.Event, streams: EventStreams) -> APIRouter:
    router = APIRouter(tags=["page"])
    renderer = Renderer()

    @router.get("/", response_class=HTMLResponse, summary="The status page")
    async def page() -> HTMLResponse:
        return HTMLResponse(renderer.page(store.current))

    @router.get(
        "/events",
        summary="The status page's event stream",
        response_class=EventSourceResponse,
        responses={
            200: {"content": {"text/event-stream": {}}, "description": "Server-sent events, without end."},
            503: {"description": "Too many pages are open."},
        },
    )
    async def events() -> EventSourceResponse:
        """Send the parts of the page that changed, `history` (new points of the curves) and `clock` (a heartbeat).

        The id of an event is the version of its snapshot. A new reader receives all parts.
        """
        return BoundedEventStream(stream_updates(store, renderer, closing), streams)

    return router


def _api_routes(store: StatusStore) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["api"])

    # Both routes return finished JSON: FastAPI would validate our own models again, which costs time. Pydantic writes a
    # NaN or infinite loss as null, because JSON has no such numbers.
    @router.get("/status", response_model=Snapshot, summary="The whole snapshot")
    async def status(since: Since = 0) -> Response:
        """Return the state of the run, its boards and its finished rounds at one moment."""
        snapshot = store.current
        rows = [row for row in snapshot.history if row.round > since]
        shown = snapshot.model_copy(update={"history": rows})
        return Response(shown.model_dump_json(), media_type="application/json")

    @router.get("/rounds", response_model=list[RoundResult], summary="The finished rounds")
    async def rounds(since: Since = 0) -> Response:
        """Return one row per finished round, oldest first: the same rows as in `result.json`."""
        rows = [row for row in store.current.history if row.round > since]
        return Response(_ROUNDS.dump_json(rows), media_type="application/json")

    return router


def _monitoring_routes(store: StatusStore) -> APIRouter:
    router = APIRouter(tags=["monitoring"])
    registry = create_registry(store)

    @router.get(
        "/healthz",
        response_model=HealthReport,
        summary="The health check",
        responses={503: {"model": HealthReport, "description": "The run failed, or the broker is not connected."}},
    )
    async def healthz(response: Response) -> HealthReport:
        """Return 200 if the run is finished, or in progress with the broker connected; otherwise 503."""
        snapshot = store.current
        status = view.health_status(snapshot)
        response.status_code = 200 if status == "ok" else 503
        return HealthReport(status=status, broker=snapshot.broker_connected)

    @router.get("/metrics", response_class=PlainTextResponse, summary="Metrics for Prometheus")
    async def metrics() -> Response:
        """Return the metrics in Prometheus' text format."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return router
