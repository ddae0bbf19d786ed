"""What a request receives that cannot be answered: people a page with a link back, programs short JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from fedquilt_server.web.fragments import create_environment

TITLES: Final = {
    404: "There is nothing here",
    422: "This address is not valid",
    503: "The runs cannot be read",
}
MOST_ERRORS: Final = 5
"""Mistakes of one request that the response names."""
LONGEST_NAME: Final = 60


def add_problem_pages(app: FastAPI, *, in_library: bool) -> None:
    """Let an application explain what is wrong with a request, without repeating the values that came with it.

    Args:
        app: the application.
        in_library: whether it serves a folder of runs, not one run.
    """
    template = create_environment().get_template("problem.html")

    def render(request: Request, status: int, reason: str, headers: Mapping[str, str] | None = None) -> HTMLResponse:
        changes = request.method == "POST"
        title = "The request was not carried out" if changes else TITLES.get(status, "This does not work")
        root = "../" * (request.url.path.count("/") - 1) or "./"
        page = template.render(title=title, reason=reason, root=root, in_library=in_library)
        return HTMLResponse(page, status, headers)

    def explain(request: Request, error: Exception) -> Response:
        assert isinstance(error, StarletteHTTPException)  # noqa: S101 - the type that it is registered for
        if _is_person(request):
            return render(request, error.status_code, str(error.detail), error.headers)
        return JSONResponse({"detail": error.detail}, error.status_code, error.headers)

    def explain_values(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101 - the type that it is registered for
        mistakes = shorten_mistakes(error.errors())
        if _is_person(request):
            return render(request, 422, describe_mistakes(mistakes))
        return JSONResponse({"detail": mistakes}, 422)

    app.add_exception_handler(StarletteHTTPException, explain)
    app.add_exception_handler(RequestValidationError, explain_values)


def _is_person(request: Request) -> bool:
    return "/api/" not in request.url.path and "text/html" in request.headers.get("accept", "")


def shorten_mistakes(errors: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the first mistakes of a request as FastAPI does, but without the values that the request had."""
    return [
        {"type": one["type"], "loc": [_shorten(part) for part in one["loc"]], "msg": one["msg"]}
        for one in errors[:MOST_ERRORS]
    ]


def _shorten(part: str | int) -> str | int:
    """Shorten a name: that of a field that does not exist comes from the request."""
    return part if isinstance(part, int) else part[:LONGEST_NAME]


def describe_mistakes(mistakes: Sequence[dict[str, Any]]) -> str:
    """Return what is wrong with the values of a request, for people."""
    return "; ".join(f"{one['loc'][-1]}: {one['msg'][:1].lower()}{one['msg'][1:]}" for one in mistakes)
