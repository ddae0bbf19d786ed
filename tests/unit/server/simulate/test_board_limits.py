"""The limits of simulated boards: by control groups in a folder that imitates the kernel's, by systemd, or not."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedquilt_common.experiment_file import parse_experiment
from fedquilt_common.process.forked import FORK_SERVER
from fedquilt_server.simulate import limited_boards
from fedquilt_server.simulate.board_limits import (
    BoardLimits,
    CgroupLimiter,
    Limiter,
    LimitsError,
    SystemdLimiter,
    find_limiter,
)
from fedquilt_server.simulate.child_process import ChildSpec, spawn
from fedquilt_server.simulate.fork_servers import ForkServers
from fedquilt_server.simulate.limited_boards import RECORD, LimitedBoards, limit_boards
from fedquilt_server.simulate.plan import SimulationPlan, make_plan
from fedquilt_server.simulate.process_specs import agent_child_specs

BOTH = BoardLimits(512 << 20, 0.5)
FLEET = """
name: limits
rounds: 1
data: {set: digits, clients: 3}
model: {name: mlp}
algorithm: {name: fedavg}
fleet:
  - {kind: strong, clients: 1}
  - {kind: weak, agents: 2, clients: 2, memory: 512MiB, cpus: 0.5}
"""


class Tree:
    """A root with ``proc`` and ``sys`` as cgroup v2 has them. It is made of plain files, so nothing is limited."""

    def __init__(self, root: Path, controllers: str = "cpuset cpu io memory", processes: str = "") -> None:
        self.root = root
        self.own = root / "sys/fs/cgroup/user.slice/own.scope"
        self.own.mkdir(parents=True)
        (self.own / "cgroup.controllers").write_text(controllers + "\n")
        (self.own / "cgroup.subtree_control").write_text("\n")
        (self.own / "cgroup.procs").write_text(processes or f"{os.getpid()}\n")
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_text("0::/user.slice/own.scope\n")
        (root / "proc/self/mounts").write_text("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")

    @property
    def groups(self) -> Path:
        return self.own / f"fedquilt-simulate-{os.getpid()}"


def sleeper(folder: Path, code: str = "import time; time.sleep(600)") -> ChildSpec:
    return ChildSpec("weak-0", "agent", (sys.executable, "-c", code), folder / "weak-0.log")


def test_a_board_gets_a_group_with_its_limits(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    limiter = CgroupLimiter(BOTH.controllers, tree.root)
    spec = limiter.limit(sleeper(tmp_path), BOTH)
    assert spec.group == tree.groups / "weak-0"
    assert {path.name: path.read_text() for path in spec.group.iterdir()} == {
        "memory.max": str(512 << 20),
        "memory.swap.max": "0",
        "cpu.max": "50000 100000",
    }
    # the kernel refuses controllers for the groups below one that has processes of its own
    assert (tree.own / "fedquilt-simulate" / "cgroup.procs").read_text() == str(os.getpid())
    for group in (tree.own, tree.groups):
        assert (group / "cgroup.subtree_control").read_text() == "+cpu +memory"


def test_a_board_without_a_limit_of_a_kind_has_none(tmp_path: Path) -> None:
    tree = Tree(tmp_path, controllers="memory")
    limits = BoardLimits(memory=1 << 30)
    assert limits.controllers == ("memory",)
    group = CgroupLimiter(limits.controllers, tree.root).limit(sleeper(tmp_path), limits).group
    assert group is not None
    assert not (group / "cpu.max").exists()


def test_a_process_enters_its_group_before_its_program_begins(tmp_path: Path) -> None:
    group = tmp_path / "group"
    group.mkdir()
    code = f"from pathlib import Path; print(Path({str(group / 'cgroup.procs')!r}).read_text(), flush=True)"
    process = spawn(replace(sleeper(tmp_path, code), group=group))
    assert process.wait(60) == 0
    assert (tmp_path / "weak-0.log").read_text() == "0\n"


def test_other_processes_in_the_own_group_are_left_alone(tmp_path: Path) -> None:
    tree = Tree(tmp_path, processes=f"1\n{os.getpid()}\n")
    CgroupLimiter(BOTH.controllers, tree.root)
    assert not (tree.own / "fedquilt-simulate").exists()  # a real kernel refuses the next step then


def test_groups_are_removed_once_they_are_empty(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    limiter = CgroupLimiter(BOTH.controllers, tree.root)
    group = limiter.limit(sleeper(tmp_path), BOTH).group
    assert group is not None
    for path in (*group.iterdir(), tree.groups / "cgroup.subtree_control"):
        path.unlink()  # a real group can be removed with its files
    limiter.close()
    assert not tree.groups.exists()
    limiter.close()


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda tree: (tree.own / "cgroup.controllers").write_text("memory\n"), "does not control cpu$"),
        (lambda tree: (tree.root / "proc/self/mounts").write_text(""), "no control groups of version 2"),
        (lambda tree: (tree.root / "proc/self/cgroup").write_text("4:memory:/x\n"), "no control groups of version 2"),
        (lambda tree: make_folder(tree.own / "cgroup.subtree_control"), "no control groups can be created below .*own"),
    ],
    ids=["controller", "mount", "version 1", "refused"],
)
def test_where_groups_cannot_be_created_the_error_says_why(tmp_path: Path, break_it, words: str) -> None:  # type: ignore[no-untyped-def]
    tree = Tree(tmp_path)
    break_it(tree)
    with pytest.raises(LimitsError, match=words):
        CgroupLimiter(BOTH.controllers, tree.root)


def make_folder(path: Path) -> None:
    """Replace a file by a folder, which cannot be written."""
    path.unlink()
    path.mkdir()


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``systemd-run`` that runs the command without limits, after the lines of ``answer``; returns that file."""
    program, answer = tmp_path / "systemd-run", tmp_path / "answer"
    program.write_text(f'#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\n. {answer}\nexec "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return answer


def test_systemd_runs_a_board_as_a_scope(systemd: Path, tmp_path: Path) -> None:
    systemd.write_text("echo started\n")
    limited = SystemdLimiter().limit(sleeper(tmp_path), BOTH)
    assert [word for word in limited.argv if word.startswith("--property")] == [
        "--property=MemoryMax=536870912", "--property=MemorySwapMax=0", "--property=CPUQuota=50%"
    ]  # fmt: skip
    process = spawn(limited)
    end = time.monotonic() + 60
    while "started" not in (tmp_path / "weak-0.log").read_text():
        assert time.monotonic() < end
        time.sleep(0.01)
    process.terminate()
    assert process.wait() == -signal.SIGTERM


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("echo 536870912; echo 50000 100000; exit", None),
        ("echo 536870912; echo max 100000; exit", "systemd does not control cpu for this user"),
        ("echo 'Failed to connect to bus' >&2; exit 1", "systemd-run: Failed to connect to bus"),
        ("exit 3", "systemd-run: exit code 3"),
        ("exit 0", "systemd does not control cpu and memory"),
    ],
)
def test_systemd_is_asked_whether_it_limits(systemd: Path, answer: str, words: str | None) -> None:
    systemd.write_text(answer + "\n")
    if words is None:
        SystemdLimiter().check(BOTH)
        assert find_limiter(BOTH).name == "systemd"
    else:
        with pytest.raises(LimitsError, match=words):
            SystemdLimiter().check(BOTH)


def test_without_systemd_the_own_group_is_used(systemd: Path, tmp_path: Path) -> None:
    systemd.write_text("exit 1\n")
    root = tmp_path / "root"
    Tree(root)
    assert find_limiter(BOTH, root).name == "control groups"


def test_where_nothing_can_limit_all_reasons_are_given(systemd: Path, tmp_path: Path) -> None:
    systemd.write_text("echo no bus >&2; exit 1\n")
    with pytest.raises(LimitsError, match=r"systemd-run: no bus; this system has no control groups of version 2"):
        find_limiter(BOTH, tmp_path)


class Noting:
    """A limiter that notes what it is asked."""

    name = "nobody"

    def __init__(self) -> None:
        self.limited: list[tuple[str, BoardLimits]] = []
        self.closed = False

    def limit(self, spec: ChildSpec, limits: BoardLimits) -> ChildSpec:
        self.limited.append((spec.name, limits))
        return spec

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def plan(tmp_path: Path) -> SimulationPlan:
    return make_plan(parse_experiment(FLEET, "fleet.yaml"), tmp_path)


def enforce(monkeypatch: pytest.MonkeyPatch, limiter: Limiter | LimitsError) -> None:
    def find(limits: BoardLimits) -> Limiter:
        assert limits == BOTH
        if isinstance(limiter, LimitsError):
            raise limiter
        return limiter

    monkeypatch.setattr(limited_boards, "find_limiter", find)


def test_enforced_limits_are_reported_recorded_and_removed(
    plan: SimulationPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter, said = Noting(), list[str]()
    enforce(monkeypatch, limiter)
    servers = ForkServers(agent_socket=Path("socket"), agent_environment={FORK_SERVER: "workers"})
    with limit_boards(plan, said.append) as boards:
        strong, *weak = agent_child_specs(plan, servers, boards)
        assert not limiter.closed
    assert limiter.closed
    assert limiter.limited == [("weak-0", BOTH), ("weak-1", BOTH)]
    assert said == ["The limits of 2 boards (fleet.N.memory, fleet.N.cpus) are enforced by nobody"]
    assert json.loads((plan.folder / RECORD).read_text()) == {
        "enforced": True, "by": "nobody", "reason": "",
        "boards": {name: {"memory": 512 << 20, "cpus": 0.5} for name in ("weak-0", "weak-1")},
    }  # fmt: skip
    # a limited board has memory of its own; the others share theirs
    assert strong.fork_server is not None
    assert strong.env is not None
    assert strong.env[FORK_SERVER] == "workers"
    assert all(spec.fork_server is None and FORK_SERVER not in (spec.env or {}) for spec in weak)


@pytest.mark.parametrize("wanted", [True, False])
def test_limits_that_are_not_enforced_are_reported_once(
    wanted: bool, plan: SimulationPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()
    enforce(monkeypatch, LimitsError("no bus"))
    with limit_boards(replace(plan, limits=wanted), said.append) as boards:
        agent_child_specs(plan, ForkServers(), boards)
    reason = "no bus" if wanted else "--no-limits"
    assert said == [f"The limits of 2 boards (fleet.N.memory, fleet.N.cpus) are not enforced: {reason}"]
    assert json.loads((plan.folder / RECORD).read_text())["enforced"] is False


def test_a_fleet_without_limits_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_boards, "find_limiter", lambda limits: pytest.fail("nobody asked for limits"))
    said = list[str]()
    text = FLEET.replace(", memory: 512MiB, cpus: 0.5", "")
    with limit_boards(make_plan(parse_experiment(text, "fleet.yaml"), tmp_path), said.append) as boards:
        assert boards == LimitedBoards()
    assert (said, list(tmp_path.iterdir())) == ([], [])


def test_gpus_are_not_enforced_and_that_is_said(tmp_path: Path) -> None:
    said = list[str]()
    text = FLEET.replace(", memory: 512MiB, cpus: 0.5", ", gpus: 1")
    with limit_boards(make_plan(parse_experiment(text, "fleet.yaml"), tmp_path), said.append):
        pass
    (sentence,) = said
    assert "(fleet.N.gpus) are not enforced: only `--ray` reserves them" in sentence
    assert set(json.loads((tmp_path / "limits.json").read_text())["gpus"].values()) == {1.0}


@pytest.fixture
def real() -> Iterator[Limiter]:
    """What enforces limits on this machine."""
    try:
        limiter = find_limiter(BoardLimits(64 << 20, 0.5))
    except LimitsError as error:
        pytest.skip(f"this machine enforces no limits: {error}")
    yield limiter
    limiter.close()


def test_the_kernel_ends_a_process_that_takes_more_memory(real: Limiter, tmp_path: Path) -> None:
    limits = BoardLimits(64 << 20, 0.5)
    process = spawn(real.limit(sleeper(tmp_path, "b = b'x' * (200 << 20)"), limits))
    assert process.wait(60) == -signal.SIGKILL
    process = spawn(real.limit(sleeper(tmp_path, "b = b'x' * (8 << 20)"), limits))
    assert process.wait(60) == 0


def test_the_kernel_holds_a_process_to_its_processors(real: Limiter, tmp_path: Path) -> None:
    code = (
        "import time; begin = time.monotonic(), time.process_time()\n"
        "while time.monotonic() < begin[0] + 2: pass\n"
        "print((time.process_time() - begin[1]) / (time.monotonic() - begin[0]), flush=True)"
    )
    process = spawn(real.limit(sleeper(tmp_path, code), BoardLimits(64 << 20, 0.5)))
    assert process.wait(60) == 0
    assert float((tmp_path / "weak-0.log").read_text()) < 0.6
