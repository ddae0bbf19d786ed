"""What a measurement must say of itself: the commit it was made at and the machine it was made on."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil


def commit() -> str:
    """The checked-out commit, marked when the tree has changes. Ask before a result is written: that changes it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def machine() -> dict[str, Any]:
    """What it ran on, and how busy that was before we began."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "load_before": round(psutil.getloadavg()[0], 2),
        "python": platform.python_version(),
    }
