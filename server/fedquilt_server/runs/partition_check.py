"""Check that the clients of a run still have the samples with which it began."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fedquilt_common.errors import RunFolderError

PARTITION: Final = "partition"
"""Key of the journal: digest of the partition with which the run began; journals of earlier versions lack it."""


def check_partition(folder: Path, recorded: str | None, digest: str | None) -> None:
    """Check the partition of a run that is resumed, replayed or audited.

    Args:
        folder: the run folder.
        recorded: what the journal has under ``PARTITION``; None: nothing.
        digest: of ``Workbench.partition_digest``, as the experiment gives it now.

    Raises:
        RunFolderError: it is another one.
    """
    if recorded is not None and recorded != (digest or ""):
        raise RunFolderError(
            f"{folder}: its clients had other samples when the run began. Use the data set of that time, and the "
            "version of fedquilt that began the run"
        )
