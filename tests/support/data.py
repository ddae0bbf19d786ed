"""Where the tests find golden vectors and real data sets.

Golden vectors are part of the project. Real data sets are not: they are read from ``FEDQUILT_DATA``, else from
``datasets/`` in the folder that ``FEDQUILT_SHARED`` names, by default ``shared/`` beside the checkout.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "vectors"


def golden_vectors(name: str) -> Any:
    """Read the file ``name`` of tests/golden/vectors; its README.md explains the fields."""
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


def data_folder() -> Path:
    """Return the folder that has a sub-folder for each real data set; it may be missing."""
    if given := os.environ.get("FEDQUILT_DATA"):
        return Path(given)
    return Path(os.environ.get("FEDQUILT_SHARED") or ROOT.parent / "shared") / "datasets"


def has_real_data(name: str) -> bool:
    """Whether the real data set ``name`` is on this machine."""
    return (data_folder() / name).is_dir()


def real_data(name: str) -> Path:
    """Return the folder of data sets for ``load``; skip the calling test if it has no ``name``."""
    if not has_real_data(name):
        pytest.skip(
            f"needs the published files of {name} below FEDQUILT_DATA; docs/experiments.md, Data sets, names them"
        )
    return data_folder()
