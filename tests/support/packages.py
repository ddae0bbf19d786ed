"""Skips tests without the packages that they need."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(package: str, reason: str) -> None:
    """Skip the test, or the module that is being imported, if a package is not installed. It is not loaded."""
    if find_spec(package) is None:
        pytest.skip(reason, allow_module_level=True)
