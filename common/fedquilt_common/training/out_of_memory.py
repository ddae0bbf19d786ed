"""Recognise errors that mean out of memory; importing this module does not import torch."""

from __future__ import annotations


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error means that memory could not be allocated, on the processor or on a GPU.

    torch raises ``OutOfMemoryError`` for a GPU, and a plain RuntimeError for the processor.
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("allocate memory" in text or "out of memory" in text)
