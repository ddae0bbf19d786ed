"""The web application: the status page, a small API, an event stream, a health check, metrics and control."""

from __future__ import annotations

import threading
from collections.abc import Container
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field
from sse_starlette import EventSourceResponse

from fedquilt_common import __version__
from fedquilt_server.library.run_library import RunLibrary
from fedquilt_server.status.snapshot import StatusStore
from fedquilt_server.web import view
from fedquilt_server.web.access import Access
from fedquilt_server.web.access_check import AccessCheck
from fedquilt_server.web.api import Since, api_routes, first_api_routes
from fedquilt_server.web.assets import FOLDER, LastingFiles, digest_files
from fedquilt_server.web.compression import PageCompression
from fedquilt_server.web.connections import MOST_CONNECTIONS
from fedquilt_server.web.control import RequestControl, control_routes
from fedquilt_server.web.downloads import download_routes
from fedquilt_server.web.frames import FrameSource
from fedquilt_server.web.head_requests import HeadRequests
from fedquilt_server.web.headers import SecurityHeaders
from fedquilt_server.web.hosts import HostCheck, HostNames
from fedquilt_server.web.long_responses import LongResponses
from fedquilt_server.web.metrics import create_registry
from fedquilt_server.web.neighbours import neighbour_routes
from fedquilt_server.web.open_run import OpenRun, RequestedRun, set_run
from fedquilt_server.web.problem_pages import add_problem_pages
from fedquilt_server.web.snapshot_stream import stream_snapshots
from fedquilt_server.web.stream import BoundedEventStream, stream_updates

DESCRIPTION = "The state of a fedquilt run. Each response comes from one snapshot. Only POST requests change the run."

LastFrame = Annotated[str, Header(max_length=64, description="The frame of the last event, after a lost connection.")]
FrameId = Annotated[str, Query(max_length=64, description="The frame that the page shows: it receives what changed.")]
_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {"text/event-stream": {}}, "description": "Server-sent events, without end."},
    503: {"description": "Too many pages and downloads are open."},
}


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
    folder: Path | None = None,
) -> FastAPI:
    """Create the application for one run. Set the event ``app.state.closing`` to end its event streams.

    Args:
        store: where the coordinator writes the snapshots.
        hosts: names with a dot to which the page answers; None for this machine's own.
        connections: how many connections the server holds; half of them may be event streams and downloads.
        access: who may read and control; None lets everybody read and nobody control.
        request_control: passes control requests to the coordinator; None for a page without control.
        folder: the run folder, for downloads and for comparisons with the runs beside it; None for a page without.
    """
    app = bare_app("fedquilt coordinator", DESCRIPTION, hosts, access)
    streams = LongResponses(connections // 2)
    controls = access if request_control is not None else None
    place = None if folder is None else folder.absolute()
    run = OpenRun(store, FrameSource(store, has_folder=place is not None), app.state.closing, place)

    async def choose_run(request: Request) -> None:
        set_run(request, run)

    routers = [page_routes(streams, controls), first_api_routes(), stream_routes(streams), api_routes()]
    if place is not None:
        routers += [download_routes(streams), neighbour_routes(RunLibrary(place.parent, levels=1))]
    for router in routers:
        app.include_router(router, dependencies=[Depends(choose_run)])
    app.include_router(_monitoring_routes(store))
    if access is not None and request_control is not None:
        app.include_router(control_routes(store, request_control))
    add_problem_pages(app, in_library=False)
    return app


def bare_app(title: str, description: str, hosts: Container[str] | None, access: Access | None) -> FastAPI:
    """Create an application without routes: with its checks, security headers and static files."""
    # FastAPI's documentation pages would load scripts from a CDN.
    app = FastAPI(title=title, version=__version__, description=description, docs_url=None, redoc_url=None)
    app.state.closing = threading.Event()
    if access is not None:
        app.add_middleware(AccessCheck, access=access)
    app.add_middleware(HostCheck, allowed=HostNames() if hosts is None else hosts)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(PageCompression)
    app.add_middleware(HeadRequests)  # the outermost one: it shows what the others make of GET
    app.mount(f"/static/{digest_files()}", LastingFiles(directory=FOLDER), name="lasting")
    app.mount("/static", StaticFiles(directory=FOLDER), name="static")
    return app


def page_routes(streams: LongResponses, controls: Access | None = None) -> APIRouter:
    """Return the routes of a run's page; a reader whom ``controls`` allows it gets the forms that control the run."""
    router = APIRouter(tags=["page"])

    @router.get("/", response_class=HTMLResponse, summary="The status page")
    async def page(request: Request, run: RequestedRun) -> HTMLResponse:
        return HTMLResponse(run.frames.page(control=controls is not None and controls.allows(request)))

    @router.get(
        "/events",
        summary="The status page's event stream",
        response_class=EventSourceResponse,
        responses=_STREAM,
    )
    async def events(run: RequestedRun, frame: FrameId = "", last_event_id: LastFrame = "") -> EventSourceResponse:
        """Send what changed on the page: HTML of small parts, JSON of single cells and points, and a heartbeat.

        The id of an event is that of its frame. A reader of an unknown frame receives everything. These events serve
        the page's own script and may change with any version; other programs use the API.
        """
        return BoundedEventStream(stream_updates(run.frames, last_event_id or frame, run.closing), streams)

    return router


def stream_routes(streams: LongResponses) -> APIRouter:
    """Return the route of the stream of whole snapshots."""
    router = APIRouter(prefix="/api/v1", tags=["api"])

    @router.get("/stream", summary="Each new snapshot", response_class=EventSourceResponse, responses=_STREAM)
    async def stream(run: RequestedRun, since: Since = 0) -> EventSourceResponse:
        """Send an event `snapshot` for each change, a few times a second at most, and `clock` as a heartbeat.

        Its data is that of `snapshot`, without `reply_rows`. Each event holds the rounds that no earlier one held. The
        stream ends with the coordinator; the last event shows how the run ended.
        """
        return BoundedEventStream(stream_snapshots(run.store, since, run.closing), streams)

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
