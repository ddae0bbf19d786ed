"""docs/experiments.md: its example files are valid, and its example of errors is what fedquilt prints.

The files in deploy/experiments/ are valid, too.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment_file import load_experiment, parse_experiment

ROOT = Path(__file__).parents[3]
READY = sorted((ROOT / "deploy" / "experiments").rglob("*.yaml"))
PAGE = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
FILES, ERRORS = PAGE.split("## Errors")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", ["digits-small", "digits-fedprox"])
def test_the_example_files_are_valid(name: str) -> None:
    (text,) = [block for block in blocks(FILES, "yaml") if block.startswith(f"name: {name}\n")]
    assert parse_experiment(text, "page").name == name


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_the_ready_files_are_valid_and_named_like_their_experiments(path: Path) -> None:
    assert load_experiment(path).name == path.stem


def test_the_example_of_errors_is_what_is_printed() -> None:
    file = blocks(ERRORS, "yaml")[0]
    printed = ERRORS.split("`fedquilt simulate bad.yaml` prints\n\n```\n")[1].split("```")[0]
    with pytest.raises(ExperimentError) as caught:
        parse_experiment(file, "bad.yaml")
    assert f"fedquilt: {caught.value}\n" == printed
