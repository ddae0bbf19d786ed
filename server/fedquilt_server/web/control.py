"""The routes that control the run. ``AccessCheck`` has checked the token and the origin before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedquilt_server.status.control import Action, ControlRequest
from fedquilt_server.status.snapshot import ENDED, StatusStore

RequestControl = Callable[[ControlRequest], None]
"""Passes a request to the coordinator, which carries it out soon."""
_LONGEST_FORM = 1024


class ControlBody(BaseModel):
    """The body of a control request."""

    model_config = ConfigDict(extra="forbid")

    action: Action
    board: Annotated[str, Field(max_length=200, description="the board to drop or readmit; else empty")] = ""


class ControlAnswer(BaseModel):
    """What was passed to the coordinator."""

    action: Action
    board: str


_ERRORS: dict[int | str, dict[str, object]] = {
    401: {"description": "The token is missing or wrong."},
    403: {"description": "The request comes from another site than the page."},
    404: {"description": "There is no such board."},
    409: {"description": "The run has ended."},
}


def control_routes(store: StatusStore, request_control: RequestControl) -> APIRouter:
    """Return the routes that control the run of ``store``."""
    router = APIRouter(tags=["control"])

    @router.post(
        "/api/v1/control",
        status_code=202,
        response_model=ControlAnswer,
        summary="Pause, continue or stop the run, drop or readmit a board",
        responses=_ERRORS,
    )
    async def control(body: ControlBody) -> ControlAnswer:
        """Pass a request to the coordinator. It is journaled before it has an effect; the snapshot shows the effect."""
        request_control(_check(store, body))
        return ControlAnswer(action=body.action, board=body.board)

    @router.post("/control", status_code=303, include_in_schema=False)
    async def control_form(request: Request) -> RedirectResponse:
        """Take the page's own forms, which work without scripts."""
        request_control(_check(store, await _read_form(request)))
        return RedirectResponse("/", 303)

    return router


async def _read_form(request: Request) -> ControlBody:
    form = bytearray()
    async for chunk in request.stream():
        form += chunk
        if len(form) > _LONGEST_FORM:
            raise HTTPException(413, "the form is too long")
    fields = {name: values[-1] for name, values in parse_qs(form.decode("utf-8", "replace")).items()}
    try:
        return ControlBody.model_validate(fields)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None


def _check(store: StatusStore, body: ControlBody) -> ControlRequest:
    """Return the request, if the run can carry it out.

    Raises:
        HTTPException: the run has ended, or there is no such board.
    """
    now = store.current
    if now.phase in ENDED:
        raise HTTPException(409, f"the run is {now.phase}: it takes no requests")
    takes_board = body.action in ("drop", "readmit")
    if takes_board and body.board not in {board.agent for board in now.boards}:
        raise HTTPException(404, f"there is no board {body.board!r}: see /api/v1/boards")
    return ControlRequest(body.action, body.board if takes_board else "")
