"""The corpus, and a few thousand inputs made from it; ``make fuzz`` goes on from there."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.engine import CORPUS, seeds
from tests.fuzz.fuzz import fuzz
from tests.fuzz.mutate import mutate
from tests.fuzz.targets import TARGETS, run_one

INPUTS = 150
FEWER = {"run-folders": 50}
"""A target whose inputs take a hundred times as long as those of the others."""


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus_is_read_or_refused(target: str, tmp_path: Path) -> None:
    """What is named valid is read; what failed once gives nothing worse than a documented error."""
    for path in sorted((CORPUS / target).iterdir()):
        valid = run_one(target, path.read_bytes(), tmp_path)
        assert valid or not path.name.startswith("valid")


@pytest.mark.parametrize("target", TARGETS)
def test_changed_inputs_give_documented_errors_only(target: str, tmp_path: Path) -> None:
    source, corpus = random.Random(target), seeds(target)
    for _ in range(FEWER.get(target, INPUTS)):
        run_one(target, mutate(source, corpus, TARGETS[target].longest), tmp_path)


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=30)
@given(data=st.binary(max_size=200))
def test_any_bytes_give_documented_errors_only(
    target: str, data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run_one(target, data, tmp_path_factory.getbasetemp())


def test_every_target_has_valid_inputs() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
    assert all(any(path.name.startswith("valid") for path in folder.iterdir()) for folder in CORPUS.iterdir())


@pytest.mark.long
def test_a_failure_is_saved_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input that takes more memory than the limit fails, and can be run again."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sitecustomize.py").write_text(
        "import fedquilt_common.wire.bitmaps as bitmaps\n"
        "bitmaps.decode_bitmap = lambda text, count: list(range(count * 10**6)) if text else []\n"
    )
    outcome = fuzz("bitmaps", "mutator", 60.0, seed=1)  # it ends with the first failure
    assert "MemoryError" in outcome.failure
    saved = outcome.failure.partition("\n")[0]
    assert Path(saved).read_bytes()
    command = [sys.executable, "-m", "tests.fuzz.fuzz", "--replay", "bitmaps", saved]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1
