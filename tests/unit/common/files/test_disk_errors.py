"""Errors of the disk name the place and the remedy."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.disk_errors import report_disk_errors, report_run_errors


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "Free disk space there"),
        (errno.EISDIR, "A folder is in the place of a file: move it away"),
        (errno.ENOENT, "Check that "),
        (errno.ENOTDIR, "Check that "),
        (errno.EIO, "Check that the disk is connected"),
        (errno.ESTALE, "Check that the disk is connected"),
        (errno.ENODEV, "Check that the disk is connected"),
        (errno.ENXIO, "Check that the disk is connected"),
        (getattr(errno, "EUCLEAN", errno.EIO), "Check that the disk is connected"),
    ],
)
def test_the_advice_fits_the_error(tmp_path: Path, number: int, advice: str) -> None:
    with pytest.raises(RunFolderError) as error, report_disk_errors(tmp_path):
        raise OSError(number, os.strerror(number), str(tmp_path / "file"))
    assert str(error.value).startswith(f"{tmp_path / 'file'} cannot be used: {os.strerror(number)}. {advice}")
    assert str(error.value).endswith(", then run the same command again")


def test_a_coordinator_resumes(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError) as error, report_run_errors(tmp_path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "file"))
    assert str(error.value).endswith("run the same command again to resume (`fedquilt coordinator` with --resume)")


@pytest.mark.parametrize("number", [errno.ENAMETOOLONG, errno.ELOOP, errno.EEXIST])
def test_a_path_that_can_be_no_folder_is_not_tried_again(tmp_path: Path, number: int) -> None:
    with pytest.raises(RunFolderError) as error, report_disk_errors(tmp_path):
        raise OSError(number, os.strerror(number), str(tmp_path / "file"))
    assert str(error.value).endswith(f"{os.strerror(number)}. Choose another folder than {tmp_path}")


def test_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Too many open files"), report_disk_errors(tmp_path):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
