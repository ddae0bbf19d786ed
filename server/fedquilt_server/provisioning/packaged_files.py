"""Reads the templates that are installed with this package."""

from __future__ import annotations

from importlib import resources


def read_packaged(name: str) -> str:
    """Return the text of a file that is installed beside this module."""
    return resources.files("fedquilt_server.provisioning").joinpath(name).read_text(encoding="utf-8")
