"""The number of cores is that of this process, not of the machine; work is spread over them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence

import psutil
import pytest

from fedquilt_common.process import cores
from fedquilt_common.process.cores import available_cores, map_in_threads


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


@pytest.mark.parametrize(("worth", "threads"), [(True, 2), (False, 1)])
def test_threads_share_neighbours_and_results_keep_their_order(
    worth: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "available_cores", lambda: 2)
    seen: list[tuple[int, list[int]]] = []

    def double(items: Sequence[int]) -> list[int]:
        seen.append((threading.get_ident(), list(items)))
        return [2 * item for item in items]

    assert map_in_threads(double, range(5), worth=worth) == [0, 2, 4, 6, 8]
    runs = sorted(items for _, items in seen)
    assert runs == ([[0, 1, 2], [3, 4]] if threads == 2 else [[0, 1, 2, 3, 4]])
    assert (threading.get_ident() in {thread for thread, _ in seen}) == (threads == 1)


def test_the_error_of_the_first_item_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "available_cores", lambda: 4)

    def fail(items: Sequence[int]) -> list[int]:
        raise ValueError(items[0])

    with pytest.raises(ValueError, match="0"):
        map_in_threads(fail, range(8), worth=True)
