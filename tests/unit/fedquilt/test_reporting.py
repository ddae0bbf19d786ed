"""What ``fq.report`` accepts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.recorded_runs import write_run

import fedquilt as fq


@pytest.mark.parametrize(
    "form",
    [str, Path, lambda folder: [folder], lambda folder: iter([str(folder)]), fq.load_run, lambda f: [fq.load_run(f)]],
)
def test_a_run_comes_in_several_forms(form: Callable[[Path], Any], tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    made = fq.report(form(folder), out=tmp_path / "out", format="csv")
    assert made.contents.counted == 1
    assert made.files[0].parent == tmp_path / "out"


def test_settings_are_those_of_the_command(tmp_path: Path) -> None:
    paper = tmp_path / "paper.yaml"
    paper.write_text("{source: x, figures: [{case: {algorithm.name: fedavg}, scores: {accuracy: 0.5}}]}")
    made = fq.report(write_run(tmp_path / "a"), tmp_path / "x.md", "md", published=str(paper), target=0.85)
    assert made.files == (tmp_path / "x.md",)
    assert made.contents.target == 0.85
    assert "published-1" in made.contents.tables


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fq.RunFolderError, match="name at least one run folder"):
        fq.report([])
    with pytest.raises(fq.RunFolderError, match="there is no such folder"):
        fq.report(tmp_path / "nowhere", format="csv")
    with pytest.raises(TypeError):
        fq.report(3)  # type: ignore[arg-type]
