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
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError('NVML_SUCCESS == r INTERNAL ASSERT FAILED at "CUDACachingAllocator.cpp":1016'),
        RuntimeError("std::bad_alloc"),
        RuntimeError("could not create a memory object"),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_errors_that_mean_out_of_memory(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
        ValueError("out of memory"),
        OSError(28, "No space left on device"),
    ],
)
def test_other_errors(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_the_module_does_not_import_torch() -> None:
    code = "import sys, fedquilt_common.training.out_of_memory; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
