"""The file in a run folder that holds the address of the run's status page."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from fedquilt_common.files.durable import write_atomically

PAGE: Final = "page.json"
TOKEN_VARIABLE: Final = "FEDQUILT_PAGE_TOKEN"  # noqa: S105 - a name
"""Environment variable with the page's token."""
TOKEN_FILE: Final = "page-token"  # noqa: S105
"""File of the run folder with the token that the coordinator made for its page."""


class PageAddress(BaseModel):
    """Where the latest coordinator of a run serves its page; another program may have the address by now."""

    model_config = ConfigDict(frozen=True)

    url: str
    run: str


def note_page(folder: Path, address: PageAddress) -> None:
    """Write the address into the run folder. A disk that is full keeps the old one: the run does not need it."""
    with contextlib.suppress(OSError):
        write_atomically(folder / PAGE, address.model_dump_json() + "\n")


def read_page(folder: Path) -> PageAddress | None:
    """Read the address from a run folder; None without a valid one."""
    with contextlib.suppress(OSError, ValidationError):
        return PageAddress.model_validate_json((folder / PAGE).read_bytes())
    return None


def read_token(folder: Path) -> str:
    """Read the page's token from a run folder; empty without one."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return (folder / TOKEN_FILE).read_text().strip()
    return ""
