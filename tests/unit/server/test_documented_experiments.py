"""docs/experiments.md: its example files are valid, and its example of errors is what fedquilt prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment_file import parse_experiment

PAGE = (Path(__file__).parents[3] / "docs" / "experiments.md").read_text(encoding="utf-8")
FILES, ERRORS = PAGE.split("## Errors")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", ["digits-small", "digits-fedprox"])
def test_the_example_files_are_valid(name: str) -> None:
    (text,) = [block for block in blocks(FILES, "yaml") if block.startswith(f"name: {name}\n")]
    assert parse_experiment(text, "page").name == name


def test_the_example_of_errors_is_what_is_printed() -> None:
    file = blocks(ERRORS, "yaml")[0]
    printed = ERRORS.split("`fedquilt simulate bad.yaml` prints\n\n```\n")[1].split("```")[0]
    with pytest.raises(ExperimentError) as caught:
        parse_experiment(file, "bad.yaml")
    assert f"fedquilt: {caught.value}\n" == printed
