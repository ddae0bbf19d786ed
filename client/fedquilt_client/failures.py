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
from fedquilt_common.user_imports import describe_error, find_place
from fedquilt_common.worker_lines import DamagedLine, FailedLine, FailureLine, MemoryLine

_TELL_NOTHING: Final = (ExperimentError, PackageMissingError, RunFolderError, SliceError)
"""Errors whose texts depend on the experiment and the board's files, not on the values of samples."""


class DamagedInputError(Exception):
    """A patch or a private memory on disk does not have its digest."""


def describe_failure(number: int, error: Exception, *, private: bool = False) -> FailureLine:
    """Return the line that reports an error to the agent.

    Args:
        number: of the job.
        error: what happened.
        private: the client trains with differential privacy. Then only errors that reveal nothing of its samples leave
            the board; the agent's log has the others.
    """
    if isinstance(error, DamagedInputError):
        return DamagedLine(number=number, path=str(error))
    if is_out_of_memory(error):
        return MemoryLine(number=number)
    if isinstance(error, OSError):
        return FailedLine(number=number, reason=_printable(str(error)), cause="disk")
    if isinstance(error, PrivacyBudgetError):
        return FailedLine(number=number, reason=_printable(str(error)), cause="declined")
    if private and not isinstance(error, _TELL_NOTHING):
        traceback.print_exception(error)
        reason = f"{type(error).__name__}: see the log of the board's agent"
        return FailedLine(number=number, reason=reason)
    if isinstance(error, FedquiltError):
        return FailedLine(number=number, reason=_printable(str(error)))
    traceback.print_exception(error)  # a bug: the traceback goes into the agent's log
    return FailedLine(number=number, reason=_printable(f"{describe_error(error)} ({find_place(error, '')})"))


def _printable(text: str) -> str:
    """Return an error's text in UTF-8: the name of a file may have bytes that are not UTF-8."""
    return text.encode(errors="backslashreplace").decode()
