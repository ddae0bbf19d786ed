"""The layout of a state is compared without opening its files; its numbers must be finite in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedquilt_common.types import Arrays, Precision
from fedquilt_common.wire.codec import FileArrays, write_arrays
from fedquilt_server.lab.array_checks import LARGEST, is_finite, layout_problem

MODEL: Arrays = {"w": np.zeros((2, 3), np.float32), "steps": np.zeros((), np.int64)}


def stored(folder: Path, arrays: Arrays, precision: Precision = "fp32") -> FileArrays:
    write_arrays(folder / "model", arrays, precision)
    return FileArrays(folder / "model")


@pytest.fixture
def unopened(monkeypatch: pytest.MonkeyPatch) -> None:
    """No array of a file can be read."""
    monkeypatch.setattr(FileArrays, "__getitem__", None)


@pytest.mark.usefixtures("unopened")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_layouts_of_files_are_those_of_their_arrays(tmp_path: Path, precision: Precision) -> None:
    assert layout_problem(stored(tmp_path, MODEL, precision), [MODEL]) == ""
    assert layout_problem(MODEL, [stored(tmp_path, MODEL, precision)]) == ""


@pytest.mark.usefixtures("unopened")
def test_a_file_with_another_shape(tmp_path: Path) -> None:
    wrong = stored(tmp_path, {**MODEL, "w": np.zeros((2, 4), np.float32)})
    assert "State.arrays['w'] is float32 of shape (2, 4), the model has float32 of shape (2, 3)" in layout_problem(
        wrong, [MODEL]
    )


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 2 * LARGEST, -2 * LARGEST])
def test_one_number_beyond_float32_is_enough(value: float) -> None:
    assert is_finite(np.array([-LARGEST, 0.0, LARGEST]))
    assert not is_finite(np.array([0.0, value]))
