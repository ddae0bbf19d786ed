"""The kernel enforces a board's limits, where this process may create control groups."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedquilt_server.simulate.board_limits import BoardLimits, Limiter, LimitsError, find_limiter
from fedquilt_server.simulate.child_process import ChildSpec, spawn

LIMITS = BoardLimits(memory=64 << 20, cpus=0.5)
KILLED = -9
FILL = "bytearray(200 << 20)"
IN_A_CHILD = (
    f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {FILL!r}]).returncode == {KILLED})"
)


@pytest.fixture
def limiter() -> Iterator[Limiter]:
    try:
        found = find_limiter(LIMITS)
    except LimitsError as error:
        pytest.skip(f"limits cannot be enforced here: {error}")
    yield found
    found.close()


@pytest.mark.parametrize(("code", "exit_code"), [("pass", 0), (FILL, KILLED), (IN_A_CHILD, 1)])
def test_a_board_and_all_that_it_starts_are_killed_beyond_their_memory(
    limiter: Limiter, tmp_path: Path, code: str, exit_code: int
) -> None:
    spec = ChildSpec("weak-0", "agent", (sys.executable, "-c", code), tmp_path / "weak-0.log")
    assert spawn(limiter.limit(spec, LIMITS)).wait() == exit_code, spec.log.read_text()


def test_no_group_is_left(limiter: Limiter, tmp_path: Path) -> None:
    spec = limiter.limit(ChildSpec("weak-0", "agent", (sys.executable, "-c", "pass"), tmp_path / "weak-0.log"), LIMITS)
    assert spawn(spec).wait() == 0
    limiter.close()
    assert spec.group is None or not spec.group.parent.exists()
