"""A user's own data set: whatever the factory does, the message names it and says what is wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedquilt_common.datasets import load_dataset
from fedquilt_common.datasets.own_dataset import load_own
from fedquilt_common.errors import DataUnavailableError, UnknownNameError
from fedquilt_common.types import Dataset

HEAD = """
import numpy as np
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.types import Dataset, Examples
def part(x=4, y=(0, 1, 2, 0)):
    return Examples(np.zeros((x, 2), np.float32), np.array(y))
def make(folder):
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Dataset]:
    """Load the data set of a factory with this body; the name differs, because loaded data sets are kept."""
    monkeypatch.syspath_prepend(tmp_path)

    def loads(body: str) -> Dataset:
        name = f"made{abs(hash(body))}"
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(HEAD + f"    {body}\n")
        return load_dataset(f"{name}:make", None, (name,))

    return loads


@pytest.mark.parametrize(
    "body",
    [
        "return Dataset('own', part(), part(), 3)",
        "return Dataset('own', part(), part(y=(0.0, 1.0, 2.0, 1.0)), 3, subjects=np.arange(4))",
        "return Dataset('own', part(), part(x=0, y=()), 3)",
        "return Dataset('own', part(x=0, y=()), part(), 3)",
        "return Dataset('own', part(), part(), part().y.max() + 1)",
        "return Dataset('own', part(y=(.5, 1, 2, 3)), part(), 0)",
    ],
)
def test_sound_data_sets_load_read_only(load: Callable[[str], Dataset], body: str) -> None:
    found = load(body)
    assert not found.train.x.flags.writeable
    assert type(found.classes) is int


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return part(), part()", r"returned a tuple; it must return a fedquilt\.Dataset"),
        ("return {}['rows']", r"its factory raised KeyError: 'rows' \(\w+\.py line \d+\); correct the factory"),
        ("return len(3)", r"its factory raised TypeError: .*len\(\) \(\w+\.py line \d+\); correct the factory"),
        ("raise DataUnavailableError('rows.csv: is missing')", r"^rows\.csv: is missing$"),
        ("return Dataset('own', part(y=(0, 1, 2, 3)), part(), 3)", r"', train: labels are from 0 to 3.* 3 classes"),
        ("return Dataset('own', part(), part(y=(0, 1, -1, 2)), 3)", "', test: labels are from -1 to 2"),
        ("return Dataset('own', part(y=(0, 1.7, 2, 0)), part(), 3)", r"', train: a label is 1\.7, which is no class"),
        ("return Dataset('own', part(y=(0, np.nan, 2, 0)), part(), 3)", "train: a label is nan"),
        ("return Dataset('own', part(y=(0, 1, 2)), part(), 3)", "', train: has 4 samples and 3 labels"),
        ("return Dataset('own', Examples([[0, 1]], [0]), part(), 3)", "train: x is list; make it a numpy array"),
        ("return Dataset('own', Examples(np.zeros(1), np.array(['a'])), part(), 3)", "train: y is <U1 of shape"),
        ("return Dataset('own', (1, 2), part(), 3)", "train: is a tuple"),
        ("return Dataset('own', part(), part(), '3')", "its classes are '3'; give a whole number"),
        ("return Dataset('own', part(), part(), 10**12)", "its classes are 1000000000000; give .* from 0 to 1,000,000"),
        ("return Dataset('own', part(), part(), 3, subjects=np.arange(3))", r"subjects have the shape \(3,\)"),
        ("return Dataset('own', part(), Examples(np.zeros((1, 3)), np.array([0])), 3)", "x has the shape .* make them"),
    ],
)
def test_what_a_factory_must_not_return(load: Callable[[str], Dataset], body: str, words: str) -> None:
    with pytest.raises(DataUnavailableError, match=words):
        load(body)


def test_a_factory_without_a_parameter_is_not_blamed_on_a_line_of_fedquilt() -> None:
    def make() -> None: ...

    with pytest.raises(
        DataUnavailableError, match=r"called with one argument, the folder of the data sets: TypeError.*;"
    ):
        load_own("own:make", make, None)


def test_an_unknown_learning_task_is_refused_when_the_data_set_is_loaded(load: Callable[[str], Dataset]) -> None:
    with pytest.raises(UnknownNameError, match="'own': its task 'ranking' is unknown"):
        load("return Dataset('own', part(), part(), 3, task='ranking')")
