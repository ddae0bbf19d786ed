"""Options of the commands that serve a page."""

from __future__ import annotations

from typing import Annotated

import typer

from fedquilt_server.web.hosts import OPTION, host_name


def _check_host_names(names: list[str] | None) -> list[str] | None:
    for name in names or ():
        if not name or host_name(name) != name.lower():
            raise typer.BadParameter(f"{name!r} is not a host name: give a name such as lab.example.org")
    return names


AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        OPTION,
        metavar="NAME",
        callback=_check_host_names,
        help="Another host name for the page; repeatable. IP addresses and local names always work.",
    ),
]
