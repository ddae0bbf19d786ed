"""``fedquilt privacy show``: the owner of a board sees what is spent on its samples."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.packages import needs

from fedquilt_common.cli import run
from fedquilt_common.errors import RunFolderError
from fedquilt_common.privacy.accountant import Charge, epsilon_of
from fedquilt_common.privacy.ledger import LedgerEntry, append_entries, ledger_file
from fedquilt_common.privacy.samples_spent import keep_samples

CHARGE = Charge(1.1, 0.25, 4)


def spend(folder: Path, samples: list[int], run: str, client: int, epsilon: float, *, own: bool = False) -> str:
    """Add a training on samples to their ledger; returns its name."""
    name = keep_samples(folder, np.array(samples, np.uint64), own=own)
    append_entries(
        ledger_file(folder, name), [LedgerEntry(run, client, 1, 0, f"{run} {samples}", CHARGE, epsilon, 0.001)]
    )
    return name


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "state" / "runs").mkdir(parents=True)
    return tmp_path / "state"


def test_a_board_without_the_server_half_shows_its_ledgers(state: Path) -> None:
    code = (
        "import sys; sys.modules['fedquilt_server'] = None; from fedquilt_common.cli import run; "
        f"sys.exit(run(['privacy', 'show', '--state', {str(state)!r}, '--json']) + run(['privacy', 'audit', 'x']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("[]\n", 2), done.stderr
    assert "No such command 'audit'" in done.stderr


def show(state: Path, capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, dict[str, Any]]:
    assert run(["privacy", "show", "--state", str(state), "--json"]) == code
    return {row["samples"]: row for row in json.loads(capsys.readouterr().out)}


def test_a_ledger_alone_shows_what_its_last_training_noted(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digest = spend(state / "privacy", [1, 2], "first", 3, 0.75)
    row = show(state, capsys)[digest]
    assert (row["clients"], row["runs"], row["trainings"], row["steps"]) == ([3], ["first"], 1, 4)
    assert (row["epsilon"], row["delta"], row["related"]) == (0.75, 0.001, [])


def test_an_old_ledger_counts_what_a_grown_file_has_spent(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs("opacus", "needs the extra dp")
    old = spend(state / "privacy", [1, 2], "first", 3, 0.75)
    grown = spend(state / "privacy", [1, 2, 5], "second", 3, 1.25)
    other = spend(state / "privacy", [7, 8], "first", 4, 0.75)
    rows = show(state, capsys)
    both = epsilon_of([CHARGE, CHARGE], 0.001, "rdp")
    assert [rows[digest]["epsilon"] for digest in (old, grown, other)] == [both, both, 0.75]
    assert [rows[digest]["related"] for digest in (old, grown, other)] == [[grown], [old], []]
    assert run(["privacy", "show", "--state", str(state)]) == 0
    shown = capsys.readouterr().out
    assert shown.count(f"{both:.4f}") == 2
    assert "counts what the related ones have spent, too" in " ".join(shown.split())


def test_own_and_received_samples_count_each_other(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs("opacus", "needs the extra dp")
    received = spend(state / "privacy", [1, 2], "first", 3, 0.75)
    own = spend(state / "privacy", [7, 8], "second", 3, 1.25, own=True)
    rows = show(state, capsys)
    assert own.startswith("own/")
    assert [(rows[name]["epsilon"], rows[name]["related"]) for name in (received, own)] == [
        (epsilon_of([CHARGE, CHARGE], 0.001, "rdp"), [other]) for other in (own, received)
    ]


def test_the_epsilon_is_unknown_if_the_samples_are(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digest = spend(state / "privacy", [1, 2], "first", 3, 0.75)
    (state / "privacy" / f"{digest}.samples").unlink()
    assert show(state, capsys, RunFolderError.exit_code)[digest]["epsilon"] is None
    assert run(["privacy", "show", "--state", str(state)]) == RunFolderError.exit_code
    assert "cannot know which samples were trained on" in capsys.readouterr().err


def test_a_damaged_ledger_is_reported_beside_the_others(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = spend(state / "privacy", [1, 2], "first", 3, 0.75)
    grown, lost = spend(state / "privacy", [7, 8], "first", 4, 0.75), spend(state / "privacy", [7], "first", 4, 0.75)
    broken = ledger_file(state / "privacy", lost)
    broken.write_bytes(b"x" + broken.read_bytes()[1:])
    rows = show(state, capsys, RunFolderError.exit_code)
    assert {digest: row["epsilon"] for digest, row in rows.items()} == {kept: 0.75, grown: None}


def test_nothing_is_spent(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["privacy", "show", "--state", str(state)]) == 0
    assert "No training with differential privacy" in capsys.readouterr().out
