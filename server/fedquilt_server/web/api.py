"""The API of a run, version 1: its snapshot, rounds, boards, events, replies and coverage, as JSON or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Response
from pydantic import TypeAdapter

from fedquilt_server.runs.tables import rounds_csv
from fedquilt_server.status.reply_row import ReplyRow
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.run_event import RunEvent
from fedquilt_server.status.snapshot import BoardStatus, Snapshot
from fedquilt_server.web.open_run import RequestedRun
from fedquilt_server.web.quilt import ThinCoverage, thin_coverage

Since = Annotated[int, Query(ge=0, description="Return only what belongs to later rounds than this one.")]
SinceTime = Annotated[
    float, Query(ge=0, allow_inf_nan=False, description="Return only events after this Unix time in seconds.")
]
MostChannels = Annotated[
    int, Query(ge=1, description="Numbers per layer at most: adjacent channels are averaged. All of them if left out.")
]
DownloadFormat = Annotated[Literal["json", "csv"], Query(alias="format", description="`json`, or `csv` with a header.")]

_ROUNDS: Final = TypeAdapter(list[RoundResult])
_BOARDS: Final = TypeAdapter(list[BoardStatus])
_EVENTS: Final = TypeAdapter(list[RunEvent])
_REPLIES: Final = TypeAdapter(list[ReplyRow])
_CSV: Final[dict[int | str, dict[str, Any]]] = {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}
_ALL_CHANNELS: Final = 1_000_000
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def first_api_routes() -> APIRouter:
    """Return the routes that earlier versions had, too. `simulate` polls the first one."""
    router = APIRouter(prefix="/api", tags=["api"])

    # All routes return finished JSON: FastAPI would validate our own models again, which costs time. Pydantic writes a
    # NaN or infinite loss as null, because JSON has no such numbers.
    @router.get("/status", response_model=Snapshot, summary="The whole snapshot")
    async def status(run: RequestedRun, since: Since = 0) -> Response:
        """Return the state of the run, its boards, its finished rounds and the latest replies at one moment."""
        return _json(snapshot_since(run.store.current, since).model_dump_json())

    @router.get("/rounds", response_model=list[RoundResult], summary="The finished rounds")
    async def rounds(run: RequestedRun, since: Since = 0) -> Response:
        """Return one row per finished round, oldest first: the same rows as in `result.json`."""
        return _json(_ROUNDS.dump_json(rounds_since(run.store.current, since)))

    return router


def snapshot_since(snapshot: Snapshot, since: int) -> Snapshot:
    """Return the snapshot with only those rounds and replies that belong to later rounds than ``since``."""
    rows = [row for row in snapshot.reply_rows if row.place[0] > since]
    return snapshot.model_copy(update={"history": rounds_since(snapshot, since), "reply_rows": rows})


def rounds_since(snapshot: Snapshot, since: int) -> list[RoundResult]:
    """Return the finished rounds after ``since``."""
    return [row for row in snapshot.history if row.round > since]


def api_routes() -> APIRouter:
    """Return the routes of version 1."""
    router = APIRouter(prefix="/api/v1", tags=["api"])

    @router.get("/snapshot", response_model=Snapshot, summary="The whole snapshot")
    async def snapshot(run: RequestedRun, since: Since = 0) -> Response:
        """Return the state of the run at one moment. Coverage is not in it: it has its own route."""
        return _json(snapshot_since(run.store.current, since).model_dump_json())

    @router.get("/rounds", response_model=list[RoundResult], responses=_CSV, summary="The finished rounds")
    async def rounds(run: RequestedRun, since: Since = 0, form: DownloadFormat = "json") -> Response:
        """Return one row per finished round, oldest first. CSV has the columns that hold one number or text."""
        rows = rounds_since(run.store.current, since)
        return _csv(rounds_csv(rows), "rounds") if form == "csv" else _json(_ROUNDS.dump_json(rows))

    @router.get("/boards", response_model=list[BoardStatus], summary="The boards")
    async def boards(run: RequestedRun) -> Response:
        """Return the latest state of each agent, by name."""
        return _json(_BOARDS.dump_json(run.store.current.boards))

    @router.get("/events", response_model=list[RunEvent], summary="The latest events")
    async def events(run: RequestedRun, since: SinceTime = 0.0) -> Response:
        """Return the latest events, newest first. The run's `events.jsonl` holds all of them."""
        return _json(_EVENTS.dump_json([event for event in run.store.current.events if event.at > since]))

    @router.get("/replies", response_model=list[ReplyRow], responses=_CSV, summary="The replies of the latest rounds")
    async def replies(run: RequestedRun, since: Since = 0, form: DownloadFormat = "json") -> Response:
        """Return the replies of the latest rounds, oldest first. The run's `replies.csv` holds all of them."""
        rows = [row for row in run.store.current.reply_rows if row.place[0] > since]
        return _csv(_replies_csv(rows), "replies") if form == "csv" else _json(_REPLIES.dump_json(rows))

    @router.get("/coverage", response_model=ThinCoverage | None, summary="Which parts of the model were trained")
    async def coverage(run: RequestedRun, channels: MostChannels = _ALL_CHANNELS) -> Response:
        """Return how often each output channel was trained, and by which boards; null before the first reply."""
        found = run.store.current.coverage
        return _json(thin_coverage(found, channels).model_dump_json() if found else "null")

    return router


def _json(text: str | bytes) -> Response:
    return Response(text, media_type="application/json")


def _csv(table: str, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}.csv"'}
    return Response(table, media_type="text/csv", headers=headers)


def _replies_csv(rows: Iterable[ReplyRow]) -> str:
    """Write replies as CSV, with the columns of ``replies.csv``. None is an empty cell."""
    out, columns = io.StringIO(), list(ReplyRow.model_fields)
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(getattr(row, column)) for column in columns] for row in rows)
    return out.getvalue()


def _cell(value: object) -> object:
    """Return a cell; a text that a spreadsheet would run as a formula gets a quote before it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
