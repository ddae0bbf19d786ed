"""Downloads from the run folder: the result, the tables and the newest global model, read from disk piece by piece."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

from fastapi import APIRouter, Header, HTTPException, Response
from pydantic import BaseModel, Field
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from fedquilt_common.errors import FedquiltError
from fedquilt_server.runs.open_files import open_model, open_regular
from fedquilt_server.status.results import Result
from fedquilt_server.status.run_file_names import RESULT, RunFile
from fedquilt_server.web.conditional import has_current
from fedquilt_server.web.long_responses import LongResponses
from fedquilt_server.web.open_run import OpenRun, RequestedRun

BLOCK: Final = 1 << 18
"""Bytes that a download holds in memory."""
_KINDS: Final = {".csv": "text/csv", ".jsonl": "application/x-ndjson", ".json": "application/json"}
_MODEL: Final = "application/octet-stream"


class MissingReason(BaseModel):
    """The response for something that the run does not have."""

    detail: str = Field(description="why it is missing, and what to do")


IfNoneMatch = Annotated[list[str], Header(default_factory=list, description="Entity tags of what the reader has.")]
_BUSY: Final[dict[int | str, dict[str, Any]]] = {
    404: {"model": MissingReason, "description": "The run does not have it, or not yet."},
    503: {"description": "Too many pages and downloads are open."},
}


def _kinds_of(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """Return the responses of a download for the schema."""
    content = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in kinds}
    return {**_BUSY, 200: {"content": content, "description": "The file, as an attachment."}}


_MODEL_RESPONSES: Final = {**_kinds_of(_MODEL), 304: {"description": "The reader has this model."}}


def download_routes(bound: LongResponses) -> APIRouter:
    """Return the routes that send files of a run folder.

    Args:
        bound: how many downloads may be open.
    """
    router = APIRouter(prefix="/api/v1", tags=["downloads"])

    # Plain functions, which FastAPI runs in threads: a slow disk must not delay other visitors.
    @router.get("/result", response_model=Result, responses=_BUSY, summary="The run's result.json")
    def result(run: RequestedRun) -> Response:
        """Send `result.json`: all finished rounds, and how the run ended. It may lack the latest rounds."""
        return FileDownload(_open(_folder_of(run) / RESULT), RESULT, _KINDS[".json"], bound)

    @router.get("/model", response_class=Response, responses=_MODEL_RESPONSES, summary="The newest global model")
    def model(run: RequestedRun, if_none_match: IfNoneMatch) -> Response:
        """Send the global model of the last finished round as safetensors, with floats in fp32.

        The header `ETag` is its SHA-256, as `global_sha256` in `result.json`. With `If-None-Match` the response to a
        reader that has this model is status 304 without the model. Personal models stay on the boards.
        """
        try:
            found = open_model(_folder_of(run))
        except FedquiltError as error:
            raise HTTPException(404, str(error)) from error
        name = f"{_plain(run.store.current.name) or 'model'}-round-{found.round}.safetensors"
        headers = {"etag": f'"{found.sha256}"'}
        if has_current(if_none_match, found.sha256):
            found.file.close()
            return Response(status_code=304, headers=headers)
        return FileDownload(found.file, name, _MODEL, bound, headers)

    @router.get(
        "/files/{name}", response_class=Response, responses=_kinds_of(*_KINDS.values()), summary="A file of the run"
    )
    def file(run: RequestedRun, name: RunFile) -> Response:
        """Send a table or log of the run folder; `docs/machine.md` describes them. It may lack the latest rows."""
        return FileDownload(_open(_folder_of(run) / name), name, _KINDS[Path(name).suffix], bound)

    return router


def _folder_of(run: OpenRun) -> Path:
    """Return the run folder; it may not exist yet.

    Raises:
        HTTPException: the page serves a run without a folder.
    """
    if run.folder is None:
        raise HTTPException(404, "This page has no run folder, so there is nothing to download")
    return run.folder


def _plain(name: str) -> str:
    """Return a name with only those characters that a file's name may have everywhere."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:60]


def _open(path: Path) -> BinaryIO:
    """Open a file of the run folder.

    Raises:
        HTTPException: there is none, or it cannot be read.
    """
    try:
        return open_regular(path)
    except FileNotFoundError as error:
        raise HTTPException(404, f"The run has no {path.name} yet; try again after the first round") from error
    except OSError as error:
        raise HTTPException(404, f"{path.name} cannot be read: {error.strerror}") from error


class FileDownload(StreamingResponse):
    """Sends an open file. It sends this file to the end, whatever replaces its name meanwhile.

    Args:
        file: is closed at the end.
        name: the name under which a browser keeps it.
        kind: media type.
        bound: how many downloads may be open.
        headers: further headers.
    """

    def __init__(
        self, file: BinaryIO, name: str, kind: str, bound: LongResponses, headers: Mapping[str, str] | None = None
    ) -> None:
        size = os.fstat(file.fileno()).st_size
        own = {"content-length": str(size), "content-disposition": f'attachment; filename="{name}"'}
        super().__init__(_blocks(file, size), media_type=kind, headers={**own, **(headers or {})})
        self._file, self._bound = file, bound

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file until its end, or until the visitor leaves."""
        with self._file:
            await self._bound.send(super().__call__, scope, receive, send)


def _blocks(file: BinaryIO, left: int) -> Iterator[bytes]:
    """Yield the first ``left`` bytes of a file; a log may have grown since."""
    while left and (block := file.read(min(left, BLOCK))):
        left -= len(block)
        yield block
