"""Where the golden vectors lie."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("FEDQUILT_SHARED", REPOSITORY.parent / "shared"))


@pytest.fixture(scope="session")
def vectors() -> Callable[[str], Any]:
    """The content of a file of golden vectors."""

    def read(name: str) -> Any:
        path = SHARED / "golden" / name
        if not path.is_file():
            pytest.skip(f"needs {name} in ../shared/golden (or FEDQUILT_SHARED)")
        return json.loads(path.read_text(encoding="utf-8"))

    return read
