"""``fedquilt replay`` of a killed run whose clients keep private memory: trained again, bit for bit, without boards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

from tests.support.runs import EXPERIMENTS, FEDQUILT, PATIENCE, await_round, command

ROUNDS = 2


def test_a_killed_run_with_private_memory_is_replayed_without_boards(tmp_path: Path) -> None:
    options = ("--set", "rounds=50", "--set", "training.epochs=1")
    start = command(EXPERIMENTS / "digits-ditto.yaml", tmp_path, *options)
    with subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True) as run:
        try:
            await_round(tmp_path, ROUNDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
    done = subprocess.run(
        [*FEDQUILT, "replay", str(tmp_path / "run"), "--json"],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    closed = [row for row in report["rounds"] if row["state_equal"]]
    assert (report["difference"], report["finished"]) == (None, False)
    assert len(closed) >= ROUNDS
    assert all(row["replies"] == row["equal"] == row["trained"] > 0 for row in closed)
    assert report["end"].startswith("The journal ends")
