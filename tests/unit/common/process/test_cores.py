"""The number of cores is that of this process, not of the machine."""

from __future__ import annotations

import os
import sys

import psutil
import pytest

from fedquilt_common.process.cores import available_cores


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux binds processes to cores")
def test_cores_that_the_process_may_not_use_do_not_count() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_where_processes_are_not_bound_all_cores_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda: None)
    assert available_cores() == 1
