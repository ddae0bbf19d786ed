"""Recognise errors that mean out of memory; importing this module does not import torch."""

from __future__ import annotations

import errno
from typing import Final

_WORDINGS: Final = (
    "allocate memory",
    "out of memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "nvml_success == r internal assert failed",  # torch's allocator on a Jetson, while it reports an empty GPU memory
    "std::bad_alloc",
    "could not create a memory object",  # oneDNN
)
"""Parts of the texts of RuntimeErrors of torch and its libraries, in lower case."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error means that memory could not be allocated, on the processor or on a GPU.

    torch raises ``OutOfMemoryError`` for a GPU, and a plain RuntimeError for the processor and for CUDA's libraries.
    The system's calls fail with ``ENOMEM``.
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(wording in text for wording in _WORDINGS)
