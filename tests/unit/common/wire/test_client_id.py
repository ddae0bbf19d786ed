"""The secret suffix of MQTT client identifiers: kept, private, replaced when damaged."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from fedquilt_common.errors import RunFolderError
from fedquilt_common.wire.client_id import (
    SUFFIX_FILE,
    agent_client_id,
    coordinator_client_id,
    instance_of,
    keep_suffix,
)


def test_a_folder_keeps_its_suffix_and_no_two_have_the_same(tmp_path: Path) -> None:
    suffix = keep_suffix(tmp_path / "a")
    assert keep_suffix(tmp_path / "a") == suffix
    assert keep_suffix(tmp_path / "b") != suffix
    assert len(suffix) == 32
    assert stat.S_IMODE((tmp_path / "a" / SUFFIX_FILE).stat().st_mode) == 0o600
    assert [path.name for path in (tmp_path / "a").iterdir()] == [SUFFIX_FILE]


def test_a_readable_file_becomes_private_again(tmp_path: Path) -> None:
    suffix = keep_suffix(tmp_path)
    (tmp_path / SUFFIX_FILE).chmod(0o644)
    assert keep_suffix(tmp_path) == suffix
    assert stat.S_IMODE((tmp_path / SUFFIX_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 32, b"0" * 31, b"0" * 33, b"0" * 100_000, b"0" * 31 + b"\n", b"Z" * 32]
)
def test_a_damaged_file_is_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / SUFFIX_FILE).write_bytes(content)
    suffix = keep_suffix(tmp_path)
    assert len(suffix) == 32
    assert keep_suffix(tmp_path) == suffix


def test_a_file_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / SUFFIX_FILE / "inside").mkdir(parents=True)
    with pytest.raises(RunFolderError, match=r"mqtt-client cannot be written: .*check the disk's free space"):
        keep_suffix(tmp_path)


def test_identifiers_fit_brokers_and_the_instance_is_public(tmp_path: Path) -> None:
    suffix = keep_suffix(tmp_path)
    assert agent_client_id("lab", "pi-0", suffix) == f"fedquilt-lab-pi-0-{suffix}"
    assert coordinator_client_id("lab", suffix) == f"fedquilt-lab-coordinator-{suffix}"
    assert len(agent_client_id("f" * 64, "a" * 64, suffix)) == 171
    assert instance_of(suffix) == instance_of(suffix)
    assert instance_of(suffix) != instance_of("0" * 32)
    assert instance_of(suffix) not in suffix
