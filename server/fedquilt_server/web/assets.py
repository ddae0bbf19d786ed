"""The page's scripts and style sheets. Their address names their content, so that a browser may keep them for ever."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER: Final = Path(__file__).parent / "static"
_IMPORT: Final = re.compile(r'^import .*"\./(\w+\.js)";$', re.MULTILINE)
FOR_EVER: Final = "public, max-age=31536000, immutable"


def digest_files(folder: Path = FOLDER) -> str:
    """Return a digest of the names and contents of all files in a folder."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def list_modules(entry: str, folder: Path = FOLDER) -> list[str]:
    """List a script and the modules that it imports. A page names them all, so that a browser fetches them at once."""
    found, waiting = set[str](), [entry]
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            waiting += _IMPORT.findall((folder / name).read_text(encoding="utf-8"))
    return sorted(found)


class LastingFiles(StaticFiles):
    """Serves files that never change at their address."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file, and allow the browser to keep it."""
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = FOR_EVER
        return response
