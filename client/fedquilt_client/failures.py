"""What a training process reports to its agent when a job fails."""

from __future__ import annotations

import traceback
from typing import Final

from fedquilt_common.errors import (
    ExperimentError,
    FedquiltError,
    PackageMissingError,
    PrivacyBudgetError,
    RunFolderError,
    SliceError,
)
from fedquilt_common.training.out_of_memory import is_out_of_memory
from fedquilt_common.training_jobs import DECLINED, DISK_FAILURE

_TELL_NOTHING: Final = (ExperimentError, PackageMissingError, RunFolderError, SliceError)
"""Errors whose texts depend on the experiment and the board's files, not on the values of samples."""


class DamagedInputError(Exception):
    """A patch or a private memory on disk does not have its digest."""


def describe_failure(error: Exception, *, private: bool = False) -> dict[str, str]:
    """Return the event that reports an error to the agent.

    Args:
        error: what happened.
        private: the client trains with differential privacy. Then only errors leave the board that tell nothing of its
            samples; the agent's log has the others.
    """
    if isinstance(error, DamagedInputError):
        return {"event": "damaged", "path": str(error)}
    if is_out_of_memory(error):
        return {"event": "memory"}
    if isinstance(error, OSError):
        return {"event": "failed", "reason": str(error), "cause": DISK_FAILURE}
    if isinstance(error, PrivacyBudgetError):
        return {"event": "failed", "reason": str(error), "cause": DECLINED}
    if private and not isinstance(error, _TELL_NOTHING):
        traceback.print_exception(error)
        return {"event": "failed", "reason": f"{type(error).__name__}: the log of the board's agent says more"}
    if isinstance(error, FedquiltError):
        return {"event": "failed", "reason": str(error)}
    traceback.print_exception(error)  # a bug: the traceback goes into the agent's log
    return {"event": "failed", "reason": f"{type(error).__name__}: {error}"}
