"""The dtypes of the arrays of a reply, which a task declares."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from fedquilt_common.algorithm_api.records import Task

_SINGLE: Final = np.dtype(np.float32)


def reply_dtype(task: Task, name: str) -> np.dtype[Any]:
    """Return the dtype in which the server half receives an array of a reply: floats are float32.

    Args:
        task: the task that the reply answers.
        name: of the array; one that the task neither sends nor lists in ``dtypes`` has floats.
    """
    if name in task.dtypes:
        declared = np.dtype(task.dtypes[name])
    else:
        declared = np.dtype(task.arrays[name].dtype) if name in task.arrays else _SINGLE
    return _SINGLE if declared.kind == "f" else declared
