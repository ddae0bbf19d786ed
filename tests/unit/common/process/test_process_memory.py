"""The memory of processes: libraries count once, and the peak of a process can begin again."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from fedquilt_common.process.process_memory import (
    free_gpu_bytes,
    gpu_peak_bytes,
    peak_bytes,
    release_gpu_cache,
    reset_gpu_peak,
    reset_peak,
    resident_bytes,
)

MIB = 1 << 20
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def status(proc: Path, pid: int, **kilobytes: int) -> None:
    (proc / str(pid)).mkdir(parents=True)
    lines = ["Name:\tpython3", "Threads:\t2", *(f"{name}:\t  {value} kB" for name, value in kilobytes.items())]
    (proc / str(pid) / "status").write_text("\n".join(lines))


def test_pages_of_files_count_once(tmp_path: Path) -> None:
    status(tmp_path, 1, VmRSS=50, RssAnon=20, RssFile=30, RssShmem=0)
    status(tmp_path, 2, VmRSS=400, RssAnon=100, RssFile=290, RssShmem=10)
    status(tmp_path, 3, VmRSS=370, RssAnon=90, RssFile=280, RssShmem=0)
    assert resident_bytes([1, 2, 3, 99], tmp_path) == (20 + 100 + 10 + 90 + 290) * 1024
    assert resident_bytes([99], tmp_path) is None


def test_a_kernel_without_the_parts(tmp_path: Path) -> None:
    status(tmp_path, 1, VmRSS=50)
    assert resident_bytes([1], tmp_path) == 50 * 1024


@LINUX
def test_this_process() -> None:
    found = resident_bytes([os.getpid()])
    assert found is not None
    assert found == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)


@LINUX
def test_a_peak_begins_again() -> None:
    if not reset_peak():
        pytest.skip("this container forbids it")
    before = peak_bytes()
    with mmap.mmap(-1, 64 * MIB) as block:  # a bytearray may lie in memory that the process has freed and kept
        block[:: mmap.PAGESIZE] = bytes(64 * MIB // mmap.PAGESIZE)
        during = peak_bytes()
    assert reset_peak()
    after = peak_bytes()
    assert before is not None
    assert during is not None
    assert after is not None
    assert during >= before + 60 * MIB
    assert after <= during - 60 * MIB


def test_a_system_that_forbids_it(tmp_path: Path) -> None:
    assert not reset_peak(tmp_path / "missing")
    assert peak_bytes(tmp_path / "missing") is None


class Cuda:
    """Counts as ``torch.cuda`` does."""

    def __init__(self, *, used: bool, integrated: bool = False) -> None:
        self.used, self.peak, self.reserved, self.integrated = used, 5000, 700, integrated

    def is_initialized(self) -> bool:
        return self.used

    def reset_peak_memory_stats(self) -> None:
        self.peak = 100  # what is allocated stays

    def max_memory_allocated(self) -> int:
        return self.peak

    def current_device(self) -> int:
        return 0

    def get_device_properties(self, device: int) -> SimpleNamespace:
        return SimpleNamespace(is_integrated=self.integrated)

    def mem_get_info(self) -> tuple[int, int]:
        return 10_000 - self.reserved, 10_000

    def memory_reserved(self) -> int:
        return self.reserved

    def memory_allocated(self) -> int:
        return 400

    def empty_cache(self) -> None:
        self.reserved = 400


@pytest.mark.parametrize(("used", "before", "after"), [(True, 5000, 100), (False, None, None)])
def test_the_peak_on_a_gpu(used: bool, before: int | None, after: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=Cuda(used=used)))
    assert gpu_peak_bytes() == before
    reset_gpu_peak()
    assert gpu_peak_bytes() == after


def test_a_process_without_torch_has_no_peak_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    reset_gpu_peak()
    assert gpu_peak_bytes() is None
    assert "torch" not in sys.modules


@pytest.mark.parametrize(
    ("cuda", "free"),
    [(Cuda(used=True), 9600), (Cuda(used=True, integrated=True), None), (Cuda(used=False), None)],
    ids=["own memory", "the board's memory", "unused"],
)
def test_free_memory_of_a_gpu_counts_no_byte_twice(
    cuda: Cuda, free: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What torch keeps for later tensors is free; what a Jetson's GPU has is the board's, which counts already."""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert free_gpu_bytes() == free
    release_gpu_cache()
    assert free_gpu_bytes() == free
    assert cuda.reserved == (400 if cuda.used else 700)
