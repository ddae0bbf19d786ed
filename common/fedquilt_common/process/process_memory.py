"""The memory of processes: resident memory from Linux' ``/proc``, and what torch takes of a GPU."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

PROC: Final = Path("/proc")
"""Where Linux describes processes."""
_RESET_PEAK: Final = "5"
"""What resets ``VmHWM`` in ``clear_refs``; see proc_pid_clear_refs(5)."""
_PEAK: Final = re.compile(r"^VmHWM:\s*(\d+) kB$", re.MULTILINE)


def resident_bytes(processes: Iterable[int], proc: Path = PROC) -> int | None:
    """Return the bytes of memory that some processes hold together.

    Their own pages are summed. Of the pages that come from files, such as libraries, the largest process's count once:
    the processes load the same libraries. The kernel's own figure for this, PSS, takes hundreds of times as long.

    Args:
        processes: their ids; those that have ended hold nothing.
        proc: where ``/proc`` is.

    Returns:
        None on a system without ``/proc``.
    """
    found = [fields for pid in processes if (fields := _status(proc / str(pid)))]
    if not found:
        return None
    own = sum(fields.get("RssAnon", fields.get("VmRSS", 0)) + fields.get("RssShmem", 0) for fields in found)
    return own + max(fields.get("RssFile", 0) for fields in found)


def reset_peak(process: Path = PROC / "self") -> bool:
    """Let the peak of this process's memory begin again; returns False where the system does not allow it."""
    try:
        (process / "clear_refs").write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def peak_bytes(process: Path = PROC / "self") -> int | None:
    """Return the most bytes that this process has held since the start or ``reset_peak``; None if unknown."""
    try:
        text = (process / "status").read_text(errors="replace")
    except OSError:
        return None
    found = _PEAK.search(text)  # a training process asks after each job, and parsing all fields takes longer
    return int(found[1]) * 1024 if found else None


def reset_gpu_peak() -> None:
    """Let the peak of torch's memory on the GPU begin again; nothing happens in a process that uses no GPU."""
    if (cuda := _used_cuda()) is not None:
        cuda.reset_peak_memory_stats()


def gpu_peak_bytes() -> int | None:
    """Return the most bytes that torch's tensors took on the GPU since the start or ``reset_gpu_peak``.

    Returns:
        None in a process that uses no GPU.
    """
    cuda = _used_cuda()
    return None if cuda is None else int(cuda.max_memory_allocated())


def free_gpu_bytes() -> int | None:
    """Return the bytes that this process can still allocate on its GPU, those that torch keeps for itself included.

    Returns:
        None in a process that uses no GPU. None even for a GPU without memory of its own, as on a Jetson: its bytes are
        those of the board, which the free memory of the system has counted already.
    """
    cuda = _used_cuda()
    if cuda is None or cuda.get_device_properties(cuda.current_device()).is_integrated:
        return None
    free, _ = cuda.mem_get_info()
    return int(free + cuda.memory_reserved() - cuda.memory_allocated())


def release_gpu_cache() -> None:
    """Return GPU memory that torch keeps for later tensors; on a Jetson the whole board can use it then."""
    if (cuda := _used_cuda()) is not None:
        cuda.empty_cache()


def _used_cuda() -> Any:
    """Return ``torch.cuda`` if this process has used it; neither imports torch nor takes memory of the GPU."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _status(process: Path) -> dict[str, int]:
    """Return the fields in kB of ``status`` in bytes; empty if the process has ended."""
    try:
        lines = (process / "status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines)
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in fields if len(words) == 3 and words[2] == "kB"}
