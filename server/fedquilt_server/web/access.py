"""Who may read the page and control the run: whoever has the page's token.

A browser gets the token once, in the address ``/?token=...``, and keeps it in a cookie that no script and no other site
can use. Programs send it as a bearer token.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fedquilt_common.errors import FedquiltError
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_server.runs.page_address import TOKEN_FILE, TOKEN_VARIABLE, read_token
from fedquilt_server.runs.run_folder import claim_folder
from fedquilt_server.web.addresses import is_loopback

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

SHORTEST_TOKEN: Final = 16


class PageTokenError(FedquiltError):
    """The status page needs a token, or the one it was given cannot be used."""

    exit_code = 2


@dataclass(frozen=True)
class Access:
    """The rules of one page.

    Attributes:
        token: the secret; it is needed for every request that changes something.
        reads_need_token: whether it is needed for reading, too.
    """

    token: str
    reads_need_token: bool = False

    @property
    def cookie(self) -> str:
        """The name of the page's cookie. Browsers share cookies between ports, so each token has a name of its own."""
        return f"fedquilt-token-{hashlib.sha256(f'fedquilt page {self.token}'.encode()).hexdigest()[:16]}"

    def allows(self, connection: HTTPConnection) -> bool:
        """Whether a request carries the token, in its cookie or as a bearer token."""
        return self._is_token(connection.cookies.get(self.cookie, "")) or self.has_bearer(connection)

    def has_bearer(self, connection: HTTPConnection) -> bool:
        """Whether a request carries the token as a bearer token, which no other site can make a browser send."""
        scheme, _, given = connection.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self._is_token(given.strip())

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())


def choose_access(host: str, folder: Path, *, public: bool) -> Access:
    """Return the access rules for a page on an address.

    The token is that of the environment, else one that is made once and kept in the run folder. A page that other
    machines reach needs one from its user, who has to know it there.

    Args:
        host: the address that the page listens on.
        folder: the run folder.
        public: whether everybody who reaches the page may read it.

    Raises:
        RunFolderError: the token cannot be kept, or the folder holds no run but other files.
        PageTokenError: as ``choose_reader_access``.
    """
    token = _given_token(host, public=public)
    return Access(token or _keep_token(folder), not (is_loopback(host) or public))


def choose_reader_access(host: str, *, public: bool) -> Access | None:
    """Return the access rules for a page that controls nothing; None if everybody who reaches it may read it.

    Args:
        host: the address that the page listens on.
        public: whether everybody who reaches the page may read it.

    Raises:
        PageTokenError: other machines reach the page and there is no token; or the token is too short.
    """
    token = _given_token(host, public=public)
    return None if is_loopback(host) or public else Access(token, reads_need_token=True)


def _given_token(host: str, *, public: bool) -> str:
    """Return the token of the environment; empty without one."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if token and len(token) < SHORTEST_TOKEN:
        raise PageTokenError(
            f"{TOKEN_VARIABLE} has {len(token)} characters: a token needs at least {SHORTEST_TOKEN}. "
            "Make one with `openssl rand -hex 16`"
        )
    if not token and not is_loopback(host) and not public:
        raise PageTokenError(
            f"other machines can reach the page on {host}, so it needs a token: set {TOKEN_VARIABLE}, for example to "
            "the output of `openssl rand -hex 16`. With --public-page everybody may read the page without one"
        )
    return token


def _keep_token(folder: Path) -> str:
    """Return the token that a run folder keeps; one that is missing or damaged is replaced by a new one."""
    kept = read_token(folder)
    if len(kept) >= SHORTEST_TOKEN and kept.isascii() and kept.isprintable():
        return kept
    made, path = secrets.token_urlsafe(18), folder / TOKEN_FILE
    with report_disk_errors(folder):
        claim_folder(folder)
        path.touch(0o600)
        path.write_text(made + "\n")
    return made
