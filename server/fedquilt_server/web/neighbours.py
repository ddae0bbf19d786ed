"""The other runs in the folder of a run: a list, and the curves of one, with which the page compares the run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Annotated, Final

from fastapi import APIRouter, HTTPException, Response
from fastapi import Path as PathParameter
from pydantic import BaseModel, ConfigDict, Field

from fedquilt_common.errors import RunFolderError
from fedquilt_server.library.recorded_run import RecordedStatus, read_run
from fedquilt_server.library.run_library import LibraryRun, RunLibrary
from fedquilt_server.status.scores import choose_metric
from fedquilt_server.web.curves import make_curves
from fedquilt_server.web.open_run import RequestedRun

CURVES_KEPT: Final = 16
"""Runs whose curves stay in memory; a thinned run takes about 100 kB."""
NeighbourId = Annotated[str, PathParameter(description="Identifier of a run, as `/api/v1/runs` lists it.")]


class NeighbourRun(BaseModel):
    """A run beside this one, or the run itself; null for what is not recorded."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(description="its place below the folder in which both are")
    label: str = Field(description="its path below that folder, for people; control characters are replaced")
    own: bool = Field(description="whether it is the run of this page")
    comparable: bool = Field(description="whether it has rounds, and the data set and the score of this page's run")
    algorithm: str | None
    dataset: str | None
    seed: int | None
    status: RecordedStatus
    rounds: int = Field(description="finished rounds")
    planned_rounds: int | None = Field(description="rounds of the experiment")
    score: str | None = Field(description="the score that `final` and `best` are of, such as accuracy")
    final: float | None = Field(description="score of the last evaluated round")
    best: float | None = Field(description="best score of all rounds")


class RunCurves(BaseModel):
    """The points of a run's curves, by column; null is a gap. A long run has fewer points than rounds."""

    start: int = Field(description="always 0")
    measure: str = Field(description="the score in `value`, such as `accuracy`, `r2` or `map50`")
    title: str = Field(description="its heading")
    share: bool = Field(description="whether it is from 0 to 1 and shown in per cent")
    round: list[float | None]
    value: list[float | None]
    personal: list[float | None] = Field(description="the same score of the clients' own models")
    loss: list[float | None]
    down: list[float | None]
    up: list[float | None]
    sending: list[float | None]
    training: list[float | None]
    waiting: list[float | None]
    averaging: list[float | None]
    joules: list[float | None]
    bytes: list[float | None] = Field(description="sum since the run began, both ways")
    seconds: list[float | None] = Field(description="sum since the run began")


class CurveTexts:
    """The curves of runs as JSON, drawn again only if a run has changed. Several threads may use it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._texts: OrderedDict[str, tuple[object, str]] = OrderedDict()

    def read(self, run: LibraryRun) -> str:
        """Return the curves of a run as JSON."""
        with self._lock:
            stamps, text = self._texts.pop(run.id, (None, ""))
            if stamps != run.stamps:
                rounds = read_run(run.folder).rounds
                text = make_curves(rounds, choose_metric(rounds)).text
            self._texts[run.id] = (run.stamps, text)
            while len(self._texts) > CURVES_KEPT:
                self._texts.popitem(last=False)
            return text


def neighbour_routes(library: RunLibrary) -> APIRouter:
    """Return the routes of the runs beside a run.

    Args:
        library: has the run and those beside it.
    """
    router = APIRouter(prefix="/api/v1", tags=["api"], responses={503: {"description": "Their folder cannot be read."}})
    curves = CurveTexts()

    # Plain functions, which FastAPI runs in threads, because they read files.
    @router.get("/runs", response_model=list[NeighbourRun], summary="The runs beside this one")
    def runs(run: RequestedRun) -> list[NeighbourRun]:
        """Return the runs in the folder of this one, in alphabetical order, itself included."""
        return list(list_neighbours(_list(library), run.folder))

    @router.get(
        "/runs/{id}/curves",
        response_model=RunCurves,
        summary="The curves of a run beside this one",
        responses={404: {"description": "There is no such run."}},
    )
    def curves_of(id: NeighbourId) -> Response:
        """Return the points that the page draws of another run."""
        found = next((run for run in _list(library) if run.id == id), None)
        if found is None:
            raise HTTPException(404, "there is no such run; it may have been moved or deleted")
        return Response(curves.read(found), media_type="application/json")

    return router


def _list(library: RunLibrary) -> Sequence[LibraryRun]:
    try:
        return library.list()
    except RunFolderError as error:
        raise HTTPException(503, str(error)) from None


def list_neighbours(runs: Sequence[LibraryRun], folder: Path | None) -> Iterator[NeighbourRun]:
    """Yield all runs, each with whether it can be compared with the run in ``folder``."""
    own = next((run for run in runs if run.folder == folder), None)
    for run in runs:
        known = run.row.model_dump(include=set(NeighbourRun.model_fields))
        yield NeighbourRun(id=run.id, label=run.path, own=run is own, comparable=_is_comparable(run, own), **known)


def _is_comparable(run: LibraryRun, own: LibraryRun | None) -> bool:
    """Whether a run has rounds, and the data set and score of ``own``, which may have no round yet."""
    if own is None or run is own or not run.row.rounds or run.row.dataset != own.row.dataset:
        return False
    return own.row.score is None or run.row.score == own.row.score
