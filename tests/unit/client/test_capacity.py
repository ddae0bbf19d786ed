"""How much memory training can take: control groups, budgets, and what follows when training runs out of memory."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from fedquilt_client import hardware
from fedquilt_client.capacity import LOWERED, RESERVE, free_capacity, lower_limit, oom_kills, read_limit
from fedquilt_client.energy import EnergyReading
from fedquilt_client.reports import out_of_memory_message, telemetry_message
from fedquilt_client.store import RunStore
from fedquilt_client.worker_pool import (
    JobEvent,
    JobFailed,
    JobFinished,
    JobOutOfMemory,
    JobProgress,
    JobRestarted,
    WorkerPool,
)
from fedquilt_common.submodels.patch_layout import patch_layout, write_patch
from fedquilt_common.submodels.slices import full_slice
from fedquilt_common.wire.codec import FileArrays
from fedquilt_common.wire.messages import REPLY_KEY, ReplyHeader
from fedquilt_common.wire.round_messages import SliceMessage

if TYPE_CHECKING:
    from tests.unit.client.conftest import Kit

MIB = 1 << 20


def write(root: Path, files: dict[str, Any]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


def usable(size: int) -> int:
    return int(size * (1 - RESERVE))


def test_the_tightest_control_group_counts_without_its_file_cache(tmp_path: Path) -> None:
    root = write(tmp_path, {
        "proc/self/cgroup": "0::/machine/board",
        "sys/fs/cgroup/memory.max": "max", "sys/fs/cgroup/memory.current": 900 * MIB,
        "sys/fs/cgroup/machine/memory.max": 64 * MIB, "sys/fs/cgroup/machine/memory.current": 60 * MIB,
        "sys/fs/cgroup/machine/memory.stat": f"anon 5\ninactive_file {20 * MIB}",
        "sys/fs/cgroup/machine/board/memory.max": 50 * MIB, "sys/fs/cgroup/machine/board/memory.current": 40 * MIB,
    })  # fmt: skip
    assert free_capacity(root=root) == usable(10 * MIB)
    write(root, {"sys/fs/cgroup/machine/board/memory.current": 10 * MIB})
    assert free_capacity(root=root) == usable(24 * MIB)


def test_version_1_of_control_groups(tmp_path: Path) -> None:
    root = write(tmp_path, {
        "proc/self/cgroup": "5:cpu,cpuacct:/elsewhere\n4:memory:/docker/abc\n0::/",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
        "sys/fs/cgroup/memory/memory.usage_in_bytes": 5,
        "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": 30 * MIB,
        "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": 25 * MIB,
        "sys/fs/cgroup/memory/docker/abc/memory.stat": f"total_inactive_file {3 * MIB}",
    })  # fmt: skip
    assert free_capacity(root=root) == usable(8 * MIB)


def test_a_budget_is_shared_and_never_more_than_what_is_free(tmp_path: Path) -> None:
    assert free_capacity(8 * MIB, root=tmp_path) == 8 * MIB
    assert free_capacity(8 * MIB, sharing=4, root=tmp_path) == 2 * MIB
    assert free_capacity(1 << 60, root=tmp_path) <= usable(psutil.virtual_memory().total)
    root = write(tmp_path, {
        "proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": 4, "sys/fs/cgroup/memory.current": 9,
    })  # fmt: skip
    assert free_capacity(8 * MIB, root=root) == 0


def test_kills_for_memory_are_counted_wherever_the_system_tells(tmp_path: Path) -> None:
    assert oom_kills(tmp_path) == 0
    root = write(tmp_path, {
        "proc/vmstat": "nr_free 7\noom_kill 2", "proc/self/cgroup": "0::/board",
        "sys/fs/cgroup/board/memory.events": "oom 9\noom_kill 3", "sys/fs/cgroup/memory.events": "oom_kill x",
    })  # fmt: skip
    assert oom_kills(root) == 5
    assert oom_kills() >= 0


def test_the_profile_and_the_vitals_are_of_the_tightest_control_group(tmp_path: Path) -> None:
    """systemd's MemoryMax limits the agent's own group, not the root of all groups."""
    group = "sys/fs/cgroup/system.slice/agent.service/memory"
    root = write(tmp_path, {
        "proc/self/cgroup": "0::/system.slice/agent.service",
        "sys/fs/cgroup/system.slice/memory.max": "max", "sys/fs/cgroup/system.slice/memory.current": 9 * MIB,
        f"{group}.max": 5 * MIB, f"{group}.current": 2 * MIB,
    })  # fmt: skip
    assert hardware.board_profile("pi4", None, root=root).memory == 5 * MIB
    assert hardware.board_profile("pi4", MIB, root=root).memory == MIB
    assert hardware.read_vitals(root=root).memory_used == 2 * MIB
    write(root, {f"{group}.max": 1 << 59})
    total = psutil.virtual_memory().total
    assert hardware.board_profile("pi4", None, root=root).memory == total
    assert hardware.read_vitals(root=root).memory_used != 2 * MIB


def test_a_private_board_says_nothing_of_its_resources() -> None:
    profile = hardware.board_profile("pi4", 512 * MIB, private=True)
    assert profile.kind == "pi4"
    assert (profile.memory, profile.cores, profile.gpu, profile.machine) == (0, 0, "", "")
    assert set(vars(hardware.NO_VITALS).values()) == {None}


@pytest.mark.parametrize(
    ("celsius", "hottest"),
    [([48.3, 51.5], 51.5), ([51.5, 9.2e15, float("nan")], 51.5), ([-273.2, 65261.8], None), ([], None)],
)
def test_a_sensor_that_is_not_connected_is_no_temperature(
    celsius: list[float], hottest: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"chip": [SimpleNamespace(current=value) for value in celsius]}
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: found, raising=False)
    vitals = hardware.read_vitals()
    assert vitals.temperature == hottest
    assert telemetry_message("pi", 1, vitals, EnergyReading(), {}, 5.0).temperature == hottest


def test_a_limit_is_kept_and_only_ever_lowered(kit: Kit) -> None:
    file = RunStore(kit.folder / "run-1", kit.run()).limit
    assert read_limit(file) is None
    assert lower_limit(file, 1000) == int(LOWERED * 1000) == read_limit(file)
    assert lower_limit(file, 5000) == 900 == read_limit(file)  # began before there was a limit, so it does not raise it
    assert lower_limit(RunStore(kit.folder / "run-1", kit.run()).limit, 800) == 720


def test_running_out_of_memory_is_explained(kit: Kit) -> None:
    text = out_of_memory_message(kit.job(kit.run()), 10 * MIB, 8 * MIB)
    assert "10 MiB" in text
    assert "8 MiB" in text


class Driver:
    """A pool that reads the number of processes killed for memory from ``oom_kills``."""

    def __init__(self, oom_kills: Callable[[], int]) -> None:
        self.posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.events: list[JobEvent] = []
        self.pool = WorkerPool(1, 1, self.posted.put, self.events.append, oom_kills=oom_kills)

    def next(self) -> JobEvent:
        while True:
            while not self.events:
                self.posted.get(timeout=60)()
            event = self.events.pop(0)
            if not isinstance(event, JobProgress | JobRestarted):
                return event


@pytest.fixture
def drive() -> Iterator[Callable[[Callable[[], int]], Driver]]:
    made: list[Driver] = []

    def make(kills: Callable[[], int]) -> Driver:
        made.append(Driver(kills))
        return made[-1]

    yield make
    for driver in made:
        driver.pool.close()


@pytest.fixture(scope="module")
def warm_driver() -> Iterator[Driver]:
    """A pool whose process stays, for jobs that do it no harm."""
    driver = Driver(lambda: 0)
    yield driver
    driver.pool.close()


KILLED = "if not ctx.client: ctx.on_need(1 << 30)\nos.kill(os.getpid(), signal.SIGKILL)"


def job(kit: Kit, code: str, client: int = 0, **changes: Any) -> Any:
    name = f"own{next(kit.numbers)}"
    run = kit.run(name, algorithm={"name": kit.package(name, code)})
    return kit.job(run, client, allowed=[name], **changes)


def test_a_process_killed_for_memory_is_told_with_what_it_had_asked_for(drive: Any, kit: Kit) -> None:
    kills = iter(range(1000))
    driver = drive(lambda: next(kills))
    given = job(kit, KILLED)
    driver.pool.submit(given)
    assert driver.next() == JobOutOfMemory(given, 1 << 30)
    assert driver.pool.jobs == []


def test_a_process_killed_by_somebody_is_no_matter_of_memory(drive: Any, kit: Kit) -> None:
    driver = drive(lambda: 7)
    driver.pool.submit(job(kit, KILLED))
    assert isinstance(driver.next(), JobFailed)


def test_without_an_estimate_nothing_can_be_made_smaller(drive: Any, kit: Kit) -> None:
    kills = iter(range(1000))
    driver = drive(lambda: next(kills))
    driver.pool.submit(job(kit, KILLED, client=1))
    assert isinstance(driver.next(), JobFailed)


@pytest.mark.parametrize(
    "error", ["MemoryError", "RuntimeError('DefaultCPUAllocator: can\\'t allocate memory: you tried 9 bytes')",
              "RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')",
              "OSError(12, 'Cannot allocate memory')"],
    ids=["python", "torch", "cuda", "system"],
)  # fmt: skip
def test_an_error_of_memory_is_the_same_as_being_killed(drive: Any, kit: Kit, error: str) -> None:
    driver = drive(lambda: 0)
    for client in (0, 1):  # the second job waits while the first one trains
        driver.pool.submit(job(kit, f"if not ctx.client: ctx.on_need(5)\nraise {error}", client))
    assert isinstance(event := driver.next(), JobOutOfMemory)
    assert event.need == 5
    assert isinstance(driver.next(), JobFailed)


def small_cgroup(limit: int) -> Path | None:
    """Make a control group for the test; return None without the right to make one."""
    top = Path("/sys/fs/cgroup/memory")
    group = top / f"fedquilt-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit))
    except OSError:
        return None
    return group


def test_the_kernels_own_kill_is_recognised(drive: Any, kit: Kit) -> None:
    group = small_cgroup(400 * MIB)
    if group is None:
        pytest.skip(
            "needs memory control groups, version 1, that this user may write to: run it as root on such a machine"
        )
    driver = drive(oom_kills)
    try:
        code = f"open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\nctx.on_need(1 << 29)\n"
        given = job(kit, code + "x = bytearray(1 << 29)")
        driver.pool.submit(given)
        assert driver.next() == JobOutOfMemory(given, 1 << 29)
    finally:
        driver.pool.close()
        group.rmdir()


POOL = {"name": "adaptivefl", "levels": {"M": 0.66, "S": 0.4}, "starts": [2, 1]}


@pytest.mark.parametrize(
    ("room", "member"), [({"budget": 1 << 30}, "L1"), ({"budget": 17 * MIB}, "M1"), ({"limit": 31 * MIB // 2}, "M2"),
                         ({"budget": 116 * MIB, "sharing": 8}, "S2"), ({"budget": 4096}, "")],
    ids=["plenty", "less", "after a kill", "shared by eight", "next to nothing"],
)  # fmt: skip
def test_a_board_trains_the_largest_nested_member_that_fits(
    warm_driver: Driver, kit: Kit, room: dict[str, int], member: str
) -> None:
    room = dict(room)
    import torch

    from fedquilt_common.models import build_model
    from fedquilt_common.submodels.adaptivefl_pool import make_pool
    from fedquilt_common.tracing.trace import blueprint_for
    from fedquilt_common.training.module_arrays import to_arrays

    run = kit.run(
        algorithm=POOL, model={"name": "mlp", "hidden": [512, 512, 256]}, training={"batch": 16, "momentum": 0.5}
    )
    build = build_model("mlp", {"hidden": [512, 512, 256]}, (1, 8, 8), 10)
    anatomy = blueprint_for(build, torch.zeros(1, 1, 8, 8).numpy()).anatomy
    part = full_slice(anatomy)
    patch = write_patch(kit.folder / "patch", to_arrays(build()), patch_layout([part])[0], "fp32")
    message = SliceMessage(base=0, kept=[kept.encode() for kept in part.kept])
    limit = kit.folder / "limit"
    if "limit" in room:
        limit.write_text(str(room.pop("limit")))
    warm_driver.pool.submit(kit.job(run, patches=[patch.path], slices=[message], slice=0, limit_file=limit, **room))
    event = warm_driver.next()
    assert isinstance(event, JobFinished), event
    reply = FileArrays(event.job.reply)
    shapes = {name: reply.shape(name) for name in reply}
    trained = [m.name for m in make_pool(anatomy, POOL["levels"], POOL["starts"]) if m.part.shapes == shapes]  # type: ignore[arg-type]
    assert trained == ([member] if member else [])
    if not member:
        assert shapes == {}
        assert ReplyHeader.model_validate_json(reply.metadata[REPLY_KEY]).metrics == {"fits": -1.0}
