"""Addresses of downloads as files record them."""

from __future__ import annotations

import re
from typing import Final

_USER: Final = re.compile(r"(?<=://)[^/?#]*@")


def drop_user(url: str) -> str:
    """Return a valid address without the user and the password that it may have."""
    return _USER.sub("", url)
