"""Numbers of a torch module as numpy arrays, and back."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedquilt_common.errors import PayloadError
from fedquilt_common.types import Arrays


def to_arrays(module: nn.Module) -> dict[str, NDArray[Any]]:
    """Return the module's parameters and buffers by name.

    Returns:
        C-contiguous arrays in the module's shapes and dtypes; all floating-point numbers become fp32. Arrays that need
        no conversion share the module's memory.
    """
    return {name: _to_array(tensor.detach()) for name, tensor in module.state_dict().items()}


def _to_array(tensor: Tensor) -> NDArray[Any]:
    tensor = tensor.float() if tensor.is_floating_point() else tensor
    return np.asarray(tensor.cpu().numpy(), order="C")


def digest_arrays(arrays: Arrays) -> str:
    """Return the SHA-256, in hex, of arrays of any shapes with their names, shapes and dtypes."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {array.dtype} {array.shape}\n".encode())
        total.update(array.reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def load_arrays(module: nn.Module, arrays: Arrays) -> None:
    """Copy arrays into the module's parameters and buffers, converted to the module's dtypes.

    Args:
        module: on the processor.
        arrays: every parameter and buffer by name, in the module's shapes; booleans, integers or floats.

    Raises:
        PayloadError: the names or shapes are not the module's, or an array does not hold numbers.
    """
    state = module.state_dict()
    if state.keys() != arrays.keys():
        missing, foreign = sorted(state.keys() - arrays.keys()), sorted(arrays.keys() - state.keys())
        raise PayloadError(
            f"the arrays are not those of the model: missing {missing[:5]}, unexpected {foreign[:5]}; "
            "both sides must build the same model"
        )
    for name, own in state.items():
        _copy_into(own, np.asarray(arrays[name]), name)


def _copy_into(tensor: Tensor, array: NDArray[Any], name: str) -> None:
    if array.shape != tuple(tensor.shape) or array.dtype.kind not in "biuf":
        raise PayloadError(
            f"array '{name}' is {array.dtype} of shape {array.shape}, but the model has {tensor.dtype} of "
            f"shape {tuple(tensor.shape)}; both sides must build the same model"
        )
    if tensor.dtype == torch.bfloat16:  # numpy does not have it
        tensor.detach().copy_(torch.from_numpy(np.array(array, np.float32)))
        return
    # With numpy, because torch warns about arrays that are read-only, as memory maps are.
    np.copyto(tensor.detach().numpy(), array, casting="unsafe")
