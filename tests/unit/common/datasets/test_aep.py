"""Appliances energy: the file as it is published, no leak from test rows, and damaged files named with their line."""

from __future__ import annotations

import zipfile
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from tests.support.data import real_data

from fedquilt_common.datasets import aep, load_dataset
from fedquilt_common.errors import DataUnavailableError

UNIT = "the targets are ln(Wh), so the MAE is in ln(Wh)"
HEADER = ("date", "Appliances", *aep.COLUMNS)


def csv_lines(count: int, seed: int = 0) -> list[str]:
    """Return the lines of a file as UCI publishes it: every field quoted, some padded with blanks."""
    rng = np.random.default_rng(seed)
    lines = [",".join(f'"{name}"' for name in HEADER)]
    for number in range(count):
        date = datetime(2016, 1, 11, 17) + timedelta(minutes=10 * number)
        values = [f"{value:.6f}" for value in rng.uniform(1, 60, len(aep.COLUMNS))]
        lines.append(",".join(f'"{field}"' for field in (date, f"{10 * rng.integers(1, 100):4d}", *values)))
    return lines


def write(folder: Path, lines: list[str], name: str = "energydata_complete.csv") -> None:
    (folder / "aep").mkdir(exist_ok=True)
    (folder / "aep" / name).write_bytes("\r\n".join([*lines, ""]).encode())


def test_the_file_as_it_is_published(tmp_path: Path) -> None:
    write(tmp_path, csv_lines(200))
    found = aep.load(tmp_path)
    assert (found.classes, found.subjects) == (0, None)
    assert (found.train.x.shape, found.train.y.shape) == ((160, 18), (160, 1))
    assert (found.test.x.shape, found.test.y.shape) == ((40, 18), (40, 1))
    assert found.train.x.dtype == found.train.y.dtype == np.float32
    np.testing.assert_allclose(found.train.x.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(found.train.x.std(axis=0), 1, atol=1e-5)
    assert np.log(10) - 1e-5 <= found.train.y.min() < found.train.y.max() <= np.log(990) + 1e-5
    assert "a fixed fifth of the rows is the test set" in found.note


def test_the_date_features_of_fedaiots_code(tmp_path: Path) -> None:
    """The features change, the rows and their targets do not."""
    write(tmp_path, csv_lines(200))
    text, code = aep.load(tmp_path), aep.load(tmp_path, calendar=("month", "day"))
    assert code.train.x.shape == text.train.x.shape
    assert not np.allclose(code.train.x, text.train.x, atol=0.1)
    assert np.array_equal(code.train.y, text.train.y)


def test_the_archive_of_the_uci_repository(tmp_path: Path) -> None:
    write(tmp_path, csv_lines(60))
    plain = aep.load(tmp_path)
    path = tmp_path / "aep" / "energydata_complete.csv"
    with zipfile.ZipFile(tmp_path / "aep" / "energydata_complete.zip", "w") as archive:
        archive.write(path, path.name)
    path.unlink()
    assert np.array_equal(aep.load(tmp_path).train.x, plain.train.x)


def test_the_authors_split(tmp_path: Path) -> None:
    lines = csv_lines(100)
    write(tmp_path, lines)
    write(tmp_path, [lines[0], *lines[5:30]], "testing.csv")
    found = aep.load(tmp_path)
    assert (len(found.train), len(found.test)) == (75, 25)
    assert found.note == (
        f"{UNIT}; aep: the file has only 100 of 19,735 rows; "
        "aep: testing.csv has only 25 of 4,932 rows; the others are for training"
    )
    first = float(lines[5].split(",")[1].strip('"'))
    assert found.test.y[0, 0] == pytest.approx(np.log(first), abs=1e-5)


def test_test_rows_do_not_change_the_training_features(tmp_path: Path) -> None:
    lines, other = csv_lines(100), csv_lines(100, seed=1)
    write(tmp_path, [lines[0], *lines[76:]], "testing.csv")
    write(tmp_path, lines)
    before = aep.load(tmp_path)
    write(tmp_path, [*lines[:76], *other[76:]])
    after = aep.load(tmp_path)
    assert np.array_equal(before.train.x, after.train.x)
    assert np.array_equal(before.train.y, after.train.y)
    assert not np.array_equal(before.test.x, after.test.x)


def test_components_have_a_positive_largest_loading() -> None:
    table = np.random.default_rng(0).normal(size=(50, 6)) * np.arange(1, 7)
    table -= table.mean(axis=0)
    found = aep.find_components(table, 3)
    assert np.array_equal(found, aep.find_components(-table[::-1], 3))
    assert (found[np.arange(3), np.abs(found).argmax(axis=1)] > 0).all()
    np.testing.assert_allclose(found @ found.T, np.eye(3), atol=1e-9)


def test_repeated_and_unsorted_rows_are_repaired_and_counted(tmp_path: Path) -> None:
    lines = csv_lines(60)
    write(tmp_path, lines)
    expected = aep.load(tmp_path)
    write(tmp_path, [lines[0], lines[2], lines[1], *lines[3:], lines[60], lines[60]])
    found = aep.load(tmp_path)
    assert np.array_equal(found.train.x, expected.train.x)
    assert "aep: 2 repeated rows left out; aep: 1 row out of order sorted" in found.note


@pytest.mark.parametrize(
    ("line", "old", "new", "words"),
    [
        (0, '"T3"', '"T33"', "energydata_complete.csv, line 1: the header lacks T3"),
        (0, '"rv2"', '"rv2","rv2"', "line 1: the header has rv2 twice"),
        (7, '","', ",", "line 8: has 28 fields instead of 29"),
        (7, '"2016', '"16', "line 8: '16-01-11 18:00:00' is not a date"),
        (2, "2016-01-11 17:10:00", "2016-01-11 17:00:00", "two different rows of 2016-01-11 17:00:00"),
    ],
)
def test_a_damaged_line(line: int, old: str, new: str, words: str, tmp_path: Path) -> None:
    lines = csv_lines(30)
    lines[line] = lines[line].replace(old, new, 1) if old != '","' else lines[line].rsplit(",", 1)[0]
    write(tmp_path, lines)
    with pytest.raises(DataUnavailableError, match=words):
        aep.load(tmp_path)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("T1", "nan", "line 5: T1 is 'nan', not a number"),
        ("T1", "1e200", "line 5: T1 is '1e200', not a number"),
        ("lights", "", "line 5: lights is '', not a number"),
        ("Appliances", "  0", "line 5: Appliances is 0, but its logarithm"),
        ("T9", "-3.0", "line 5: T9 is at most -1"),
    ],
)
def test_a_damaged_value(column: str, value: str, words: str, tmp_path: Path) -> None:
    lines = csv_lines(30)
    fields = lines[4].split(",")
    fields[HEADER.index(column)] = f'"{value}"'
    lines[4] = ",".join(fields)
    write(tmp_path, lines)
    with pytest.raises(DataUnavailableError, match=words):
        aep.load(tmp_path)


def test_a_split_of_another_file(tmp_path: Path) -> None:
    lines = csv_lines(30)
    write(tmp_path, lines)
    write(tmp_path, [lines[0], lines[3].replace("2016", "2017")], "testing.csv")
    with pytest.raises(DataUnavailableError, match=r"testing.csv, line 2: 2017-01-11 17:20:00 is not in"):
        aep.load(tmp_path)


def test_a_stray_quotation_mark(tmp_path: Path) -> None:
    lines = [line.replace('"', "") for line in csv_lines(900)]
    lines[3] = '"' + lines[3]
    write(tmp_path, lines)
    with pytest.raises(DataUnavailableError, match=r"energydata_complete\.csv: is not a CSV file .*quotation mark"):
        aep.load(tmp_path)


def test_too_few_rows(tmp_path: Path) -> None:
    """For a test set, and for as many principal components as there are features."""
    write(tmp_path, csv_lines(21))
    with pytest.raises(DataUnavailableError, match="has 21 rows, too few for 18 features and a test set"):
        aep.load(tmp_path)
    write(tmp_path, csv_lines(22))
    assert aep.load(tmp_path).train.x.shape == (18, 18)


def test_a_file_that_ends_within_a_value(tmp_path: Path) -> None:
    write(tmp_path, csv_lines(30))
    path = tmp_path / "aep" / "energydata_complete.csv"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataUnavailableError, match=r"energydata_complete\.csv: is not a CSV file"):
        aep.load(tmp_path)


def test_the_real_rows() -> None:
    found = load_dataset("aep", real_data("aep"))  # prepared once for all test files
    assert len(found.train) + len(found.test) == 19_735
    assert (len(found.test), found.note) in ((4932, UNIT), (3947, found.note))
    assert found.train.x.shape[1] == 18
    assert np.abs(found.train.x).max() < 6
    # A linear model on the features explains part of the target, so rows and targets belong together.
    x = np.c_[found.train.x, np.ones(len(found.train))]
    weights = np.linalg.lstsq(x, found.train.y, rcond=None)[0]
    error = found.test.y - np.c_[found.test.x, np.ones(len(found.test))] @ weights
    assert 1 - (error**2).sum() / ((found.test.y - found.test.y.mean()) ** 2).sum() > 0.2
