"""The folders in which a child process finds a user's packages."""

from __future__ import annotations

import os
from collections.abc import Sequence


def python_path_variable(folders: Sequence[str]) -> dict[str, str]:
    """Return the variable PYTHONPATH of a child process; nothing if neither it nor this process has folders.

    Args:
        folders: are searched before those in this process's PYTHONPATH.
    """
    inherited = os.environ.get("PYTHONPATH")
    paths = [*folders, *([inherited] if inherited else [])]
    return {"PYTHONPATH": os.pathsep.join(paths)} if paths else {}
