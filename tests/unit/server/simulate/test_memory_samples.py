"""Whose a process is, the system is asked once; a fork is looked at again until it has its name."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest

from fedquilt_common.process.forked import WORKER_NAME
from fedquilt_server.simulate import memory_samples
from fedquilt_server.simulate.memory_samples import Memory, MemorySampler

SERVER, AGENT, WORKER, FORK, STRANGER = range(101, 106)


class Processes:
    """The processes of a system: the name and the parent of each, and which were asked about."""

    def __init__(self) -> None:
        self.known = {SERVER: ("server", 1), AGENT: ("agent", 1), STRANGER: ("other", 1)}
        self.asked: list[int] = []

    def process(self, pid: int) -> SimpleNamespace:
        self.asked.append(pid)
        if pid not in self.known:
            raise psutil.NoSuchProcess(pid)
        name, parent = self.known[pid]
        return SimpleNamespace(name=lambda: name, ppid=lambda: parent)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    found = Processes()
    monkeypatch.setattr(psutil, "pids", lambda: list(found.known))
    monkeypatch.setattr(psutil, "Process", found.process)
    monkeypatch.setattr(memory_samples, "_peak", lambda pid: pid)
    return found


def sample(sampler: MemorySampler) -> dict[int, Memory]:
    memories = {SERVER: Memory(), AGENT: Memory()}
    sampler.sample(memories, {SERVER})
    return memories


def test_each_process_is_asked_about_once(processes: Processes) -> None:
    sampler = MemorySampler()
    processes.known[WORKER] = ("python", AGENT)
    first, second = sample(sampler), sample(sampler)
    assert first == second == {SERVER: Memory(SERVER, 0), AGENT: Memory(AGENT, WORKER)}
    assert sorted(processes.asked) == [WORKER, STRANGER]


def test_a_fork_belongs_to_nobody_until_it_has_its_name(processes: Processes) -> None:
    sampler = MemorySampler()
    processes.known[FORK] = ("server", SERVER)
    assert sample(sampler)[AGENT].workers == sample(sampler)[SERVER].workers == 0
    processes.known[FORK] = (f"{WORKER_NAME}{AGENT}", SERVER)
    assert sample(sampler) == {SERVER: Memory(SERVER, 0), AGENT: Memory(AGENT, FORK)}


def test_a_number_that_another_process_gets_later_is_asked_about_again(processes: Processes) -> None:
    sampler = MemorySampler()
    processes.known[WORKER] = ("python", AGENT)
    sample(sampler)
    del processes.known[WORKER]
    assert sample(sampler)[AGENT].workers == 0
    processes.known[WORKER] = ("other", 1)
    assert sample(sampler)[AGENT].workers == 0
    assert processes.asked.count(WORKER) == 2


def test_a_process_that_ends_while_it_is_asked_about_is_left_out(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "pids", lambda: [*processes.known, WORKER])
    assert sample(MemorySampler())[AGENT].workers == 0
