"""A board with another processor type than the workstation: what agrees to the bit, and a mixed run.

The board is emulated, and slow: only with ``FEDQUILT_TEST_ARM64=1``, as ``make arm64-test`` runs it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.arm64 import board
from tests.arm64.compare import Difference, differences, table
from tests.support.runs import EXPERIMENTS, FEDQUILT, recording_broker

from fedquilt_common.models import MODELS

pytestmark = [
    pytest.mark.skipif(os.environ.get("FEDQUILT_TEST_ARM64") != "1", reason="many minutes: run make arm64-test"),
    pytest.mark.timeout(0),  # the emulation takes as long as the machine makes it take
]


@pytest.fixture(scope="module", autouse=True)
def made_board() -> None:
    if obstacle := board.find_obstacle():
        pytest.skip(obstacle)
    if not board.is_made():
        board.make()


EQUAL = (
    "agreed/", "augmented/", "labels/quantised", "labels/dequantised", "labels/mean", "labels/mixup", "drawn/uniform",
    "drawn/dropout", *(f"initial/{name}" for name in MODELS if name not in ("transformer", "casas-bilstm")),
)  # fmt: skip
"""What has the same bits on all processors. Embeddings start from normal numbers, which have not."""
HALVES = ("/fp16", "/bf16", "/amp")


def on_board(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the board's Python and return what it printed."""
    return subprocess.run(
        board.command(out, *arguments), env=board.environment(), capture_output=True, text=True, check=False
    )


SUITS = """\
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from pip._vendor.packaging.tags import sys_tags
from pip._vendor.packaging.utils import parse_wheel_filename
tags = set(sys_tags())
print([name for name in sys.argv[2:] if tags.isdisjoint(parse_wheel_filename(name)[3])])
"""


def test_every_wheel_suits_the_board_and_none_is_missing(tmp_path: Path) -> None:
    names = [wheel.name for wheel in board.WHEELS.glob("*.whl")]
    done = on_board(tmp_path, "-c", SUITS, f"/{board.SITE}", *names)
    assert done.stdout == "[]\n", done.stderr


@pytest.fixture(scope="module")
def found() -> list[Difference]:
    """How far the board's values are from this machine's; also printed, and kept in ``dist/arm64-values``."""
    out = board.FOLDER.with_name("arm64-values")
    out.mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-m", "tests.arm64.values", str(out / "here.npz")], check=True)
    done = on_board(out, "-m", "tests.arm64.values", "/out/board.npz")
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(out / "here.npz") as here, np.load(out / "board.npz") as there:
        rows = list(differences(dict(here), dict(there)))
    (out / "values.md").write_text(table(rows) + "\n")
    print(done.stdout, table(rows), sep="\n")
    return rows


def test_what_both_sides_compute_alike_has_the_same_bits(found: list[Difference]) -> None:
    assert len([each for each in found if each.name.startswith(EQUAL)]) > 30
    assert [each for each in found if each.name.startswith(EQUAL) and not each.is_equal] == []


def test_a_task_has_the_same_bits_after_other_tasks(found: list[Difference]) -> None:
    for name in ("here.npz", "board.npz"):
        with np.load(board.FOLDER.with_name("arm64-values") / name) as values:
            assert np.array_equal(values["epoch/digits-fedavg"], values["epoch/digits-fedavg/again"]), name


def test_other_numbers_differ_by_rounding_only(found: list[Difference]) -> None:
    """Relative to the change that the training made, which is small beside the rounding of half precision."""
    for each in found:
        if each.name.endswith(HALVES) and each.ulp is None:
            continue  # one of the two cannot train this model in this precision
        assert each.relative < (0.5 if each.name.endswith(HALVES) else 1e-4), each


def test_the_golden_vectors_hold_on_the_board(tmp_path: Path) -> None:
    done = on_board(
        tmp_path, "-m", "pytest", "-q", "--noconftest", "-c", "/dev/null", "--rootdir=/checkout",
        "--import-mode=importlib", "-p", "no:cacheprovider", "/checkout/tests/golden",
    )  # fmt: skip
    print(done.stdout[-1000:])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


@contextlib.contextmanager
def running(command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.terminate()


def test_a_run_with_a_board_of_each_kind(tmp_path: Path) -> None:
    """Clients 0-3 on this machine, 4-7 on the board; the run can be replayed here from the replies that it kept."""
    run, out = tmp_path / "run", tmp_path / "out"
    out.mkdir()
    with recording_broker(tmp_path) as (broker, _):
        agent = ["-m", "fedquilt_common.cli", "agent", "--broker", broker, "--once"]
        here = [sys.executable, *agent, "--id", "here", "--clients", "0-3", "--state", str(tmp_path / "state")]
        there = board.command(out, *agent, "--id", "board", "--clients", "4-7", "--state", "/out/state")
        coordinator = [*FEDQUILT, "coordinator", str(EXPERIMENTS / "digits-fedavg.yaml"), "--set", "rounds=2"]
        with running(here), running(there, env=board.environment()):
            subprocess.run(
                [*coordinator, "--broker", broker, "--out", str(run), "--no-page", "--keep-replies"], check=True
            )
    rounds = json.loads((run / "result.json").read_text())["rounds"]
    assert [(each["clients"], each["late"], each["rejected"]) for each in rounds] == [(8, 0, 0)] * 2
    subprocess.run([*FEDQUILT, "replay", str(run)], check=True)
    retrained = subprocess.run([*FEDQUILT, "replay", str(run), "--retrain"], check=False)
    assert retrained.returncode == 7
