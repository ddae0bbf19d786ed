"""``fedquilt bench round`` that a signal stops."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from fedquilt_server.tools.bench import bench_rounds


def test_a_stopped_measurement_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert bench_rounds(1, 1, 0.01, 1, None, should_stop=lambda: True) is None
    assert list(tmp_path.iterdir()) == []
