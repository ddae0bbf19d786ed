"""The provenance of a measurement: the commit and the machine."""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil


def commit() -> str:
    """Return the checked-out commit, marked if the tree has changes. Call it before you write a result there."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def machine(*, with_gpu: bool = False) -> dict[str, Any]:
    """Describe the machine, and its load before the measurement; ``with_gpu`` adds the GPU and torch's version."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "load_before": round(psutil.getloadavg()[0], 2),
        "python": platform.python_version(),
        **(_describe_gpu() if with_gpu else {}),
    }


def _describe_gpu() -> dict[str, Any]:
    import torch

    return {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}


def append_result(history: Path, line: dict[str, Any]) -> None:
    """Append a result to a file of ``benchmarks/results``."""
    history.parent.mkdir(exist_ok=True)
    with history.open("a") as file:
        file.write(json.dumps(line) + "\n")
