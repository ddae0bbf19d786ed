"""Which errors mean out of memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedquilt_common.training.out_of_memory import is_out_of_memory


class OutOfMemoryError(RuntimeError):
    """Has the name of torch's error for a GPU."""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OutOfMemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
    ],
)
def test_errors_that_mean_out_of_memory(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", [RuntimeError("mat1 and mat2 shapes"), ValueError("out of memory"), OSError(12, "x")])
def test_other_errors(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_the_module_does_not_import_torch() -> None:
    code = "import sys, fedquilt_common.training.out_of_memory; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
