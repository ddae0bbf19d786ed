"""Which files of a data set are there, by their names alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedquilt_common.data_tools.published import PUBLISHED

PHONE, WATCH = "wisdm-p", "wisdm-w"


@pytest.mark.parametrize(
    ("archive", "complete"),
    [
        ("raw.tar", {PHONE, WATCH}), ("wisdm-dataset.zip", {PHONE, WATCH}), ("raw_phone.tar.xz", {PHONE}),
        ("inner/raw_watch.tgz", {WATCH}), (".raw.tar", set()),
    ],
)  # fmt: skip
def test_an_archive_of_wisdm_is_of_both_devices_unless_it_names_one(
    archive: str, complete: set[str], tmp_path: Path
) -> None:
    (tmp_path / archive).parent.mkdir(exist_ok=True)
    (tmp_path / archive).write_bytes(b"")
    assert {name for name in (PHONE, WATCH) if not list(PUBLISHED[name].find_missing(tmp_path))} == complete
