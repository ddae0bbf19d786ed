"""Slots of agents that are started with the same command: each agent has its own clients, also after a restart."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedquilt_client.slots import take_slot
from fedquilt_common.errors import ExperimentError

CLIENTS = (6, 7, 20, 21, 22)


def test_each_takes_the_next_share_and_no_more_than_there_are(tmp_path: Path) -> None:
    slots = [take_slot(tmp_path, CLIENTS, 2) for _ in range(3)]
    assert [(slot.number, slot.clients) for slot in slots] == [(0, (6, 7)), (1, (20, 21)), (2, (22,))]
    assert len({slot.state for slot in slots}) == 3
    with pytest.raises(ExperimentError, match="3 agents host the 5 clients already"):
        take_slot(tmp_path, CLIENTS, 2)
    slots[1].lock.close()
    again = take_slot(tmp_path, CLIENTS, 2)
    assert (again.number, again.state) == (1, slots[1].state)
    for slot in (slots[0], again, slots[2]):
        slot.lock.close()


def test_who_is_killed_leaves_its_slot(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from fedquilt_client.slots import take_slot\n"
        f"slot = take_slot(Path({str(tmp_path)!r}), {CLIENTS}, 2); print(slot.number, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "0\n"
        second = take_slot(tmp_path, CLIENTS, 2)
        assert second.number == 1
        other.kill()
    first = take_slot(tmp_path, CLIENTS, 2)
    assert first.number == 0
    for slot in (first, second):
        slot.lock.close()
