"""Addresses of downloads as messages and files show them."""

from __future__ import annotations

import re
from typing import Final

_USER: Final = re.compile(r"(?<=://)[^/?#]*@")


def hide_password(url: str) -> str:
    """Return an address without the user and the password that it may have, also one that is not valid."""
    return _USER.sub("", url)
