"""``sweep.json``, which the sweep writes and the report reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedquilt_common.errors import RunFolderError
from fedquilt_server.sweep.manifest import (
    PublishedFigure,
    PublishedTable,
    SweepManifest,
    SweptRun,
    holds_sweep,
    read_manifest,
    write_manifest,
)

MANIFEST = SweepManifest(
    name="digits",
    vary={"seed": [1, 2], "method": ["plain", "prox"]},
    published=[
        PublishedTable(
            source="a paper, table 1", figures=[PublishedFigure(case={"method": "prox"}, scores={"accuracy": 0.9})]
        )
    ],
    runs=[
        SweptRun(
            folder="seed=1,method=prox", settings={"seed": 1, "method": "prox"}, label="seed=1, method=prox",
            status="failed", reason="the loss is not finite", exit_code=7,
        )
    ],
)  # fmt: skip


def test_the_file_reads_back_as_it_was_written(tmp_path: Path) -> None:
    assert not holds_sweep(tmp_path)
    write_manifest(tmp_path, MANIFEST)
    assert holds_sweep(tmp_path)
    assert read_manifest(tmp_path) == MANIFEST


def test_the_file_has_its_version_first() -> None:
    raw = json.loads(MANIFEST.to_json())
    assert list(raw) == ["schema", "name", "vary", "published", "changed", "runs"]
    assert raw["schema"] == 1
    assert raw["runs"][0]["settings"] == {"seed": 1, "method": "prox"}


def test_the_case_of_a_run_leaves_its_seed_out() -> None:
    assert MANIFEST.runs[0].case == {"method": "prox"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "file"),
        ('{"schema": 2, "name": "x", "vary": {}, "runs": []}', "schema"),
        ('{"schema": 1, "name": "x", "vary": {}}', "runs"),
        (
            '{"schema": 1, "name": "x", "vary": {}, "runs": [{"folder": "../x", "settings": {}, "label": ""}]}',
            "runs.0.f",
        ),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(RunFolderError, match=rf"sweep\.json: is damaged \({named}"):
        read_manifest(tmp_path)


def test_a_folder_without_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"holds no sweep\.json; name the folder of a sweep"):
        read_manifest(tmp_path)
