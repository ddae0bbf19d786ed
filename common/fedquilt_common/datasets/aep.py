"""Appliances energy (AEP): the consumption of one house every 10 minutes of 4.5 months; 19,735 rows, a regression.

Candanedo, Feldheim and Deramaix, "Data driven prediction models of energy use of appliances in a low-energy house",
Energy and Buildings 140, 2017; UCI Machine Learning Repository, data set 374. Reads ``energydata_complete.csv`` as
it is published, in ``<FEDQUILT_DATA>/aep``; ``energydata_complete.zip`` is read too. If the authors' ``testing.csv``
is beside it, the rows of its dates are the test samples: 4,932, which leaves 14,803. Otherwise a fifth of the rows is,
as in FedAIoT: 3,947 and 15,788. A digest of the date alone decides which rows these are.

The preparation is FedAIoT's (Alam et al., journal paper, section 3.2.2). Indoor temperatures become ln(1 + T). The
visibility becomes 1 above its median, else 0. Each column is clipped at its 10th and 90th percentile. Then the mean
indoor temperature, the mean indoor humidity and the date's month, day, weekday and hour are added. A principal
component analysis of the standardised columns yields 18 features, which are standardised again. The training rows
alone determine the median, the percentiles, the components, the means and the variances. The target is ln(Wh), as in
FedAIoT's code; it is not clipped.

The paper leaves some of this open. Outdoor temperatures and the dew point fall below -1 degree, where ln(1 + T) does
not exist, so they stay as they are. FedAIoT's code adds the month and the day only, appends three principal components
and then drops correlated columns; here the components replace the columns, as the paper's text reads.

Components have a fixed sign: the largest loading of each is positive. They are rounded to 10 decimals, features and
targets to 6. Thus last-bit differences between builds of LAPACK or of the logarithm disappear in all but rare ties:
bit-identical features on different processors are likely, but not guaranteed.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.files import SUFFIXES, dataset_folder, find_file, open_packed, report_csv_errors
from fedquilt_common.datasets.repairs import describe_repairs
from fedquilt_common.datasets.tables import fit_float32
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.types import Dataset, Examples

NAME = "aep"
FEATURES = 18
TARGET = "Appliances"
INDOOR = ("T1", "T2", "T3", "T4", "T5", "T7", "T8", "T9")
HUMIDITY = ("RH_1", "RH_2", "RH_3", "RH_4", "RH_5", "RH_7", "RH_8", "RH_9")
COLUMNS = (
    "lights", *INDOOR, *HUMIDITY, "T6", "RH_6", "T_out", "Press_mm_hg", "RH_out", "Windspeed", "Visibility",
    "Tdewpoint", "rv1", "rv2",
)  # fmt: skip
"""Columns of the file that are features; the order fixes the order of the sums, thus the bits."""
ROWS, TEST_ROWS = 19_735, 4_932
"""Number of rows in the published file, and in the authors' ``testing.csv``."""
CALENDAR: Mapping[str, Callable[[datetime], float]] = {
    "month": lambda date: date.month,
    "day": lambda date: date.day,
    "weekday": lambda date: date.weekday(),
    "hour": lambda date: date.hour + date.minute / 60,
}
"""Features of a row's date."""
_VISIBILITY = COLUMNS.index("Visibility")
_INDOOR_PLACES = {name: COLUMNS.index(name) for name in INDOOR}
_DATE = "%Y-%m-%d %H:%M:%S"
_PERCENTILES = (10, 90)
_UNIT = "the targets are ln(Wh), so the MAE is in ln(Wh)"
_COMPLETE, _TESTING = "energydata_complete", "testing.csv"

HouseValues = NDArray[np.float64]


@dataclass(frozen=True)
class _HouseReading:
    date: datetime
    target: float
    values: tuple[float, ...]


def load(folder: Path | None = None, *, calendar: Sequence[str] = tuple(CALENDAR)) -> Dataset:
    """Load the rows: ``x`` float32 of shape (n, 18), ``y`` float32 of shape (n, 1): ln(Wh) of the appliances.

    Args:
        folder: the folder of all data sets.
        calendar: the date features, of ``CALENDAR``; FedAIoT's code has the month and the day.

    Raises:
        DataUnavailableError: a file is missing or damaged; the error names file and line.
    """
    place = dataset_folder(folder, NAME)
    path = _find_complete(place)
    rows, repairs = _put_in_order(list(_read_rows(path)), path)
    is_test, split = _choose_test_rows(place, rows, path)
    x = prepare(np.array([row.values for row in rows]), _date_features(rows, calendar), ~is_test)
    y = np.log([[row.target] for row in rows]).round(6).astype(np.float32)
    train, test = (Examples(x[chosen], y[chosen]) for chosen in (~is_test, is_test))
    fewer = f"{NAME}: the file has only {len(rows):,} of {ROWS:,} rows" if len(rows) < ROWS else ""
    return Dataset(NAME, train, test, 0, None, "; ".join(filter(None, (_UNIT, fewer, split, repairs))))


def _find_complete(place: Path) -> Path:
    """Find the CSV file, or the archive that the UCI repository offers without ``.csv`` in its name."""
    archive = place / f"{_COMPLETE}.zip"
    return archive if archive.is_file() else find_file(place, f"{_COMPLETE}.csv")


def prepare(values: HouseValues, calendar: HouseValues, is_train: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Turn the columns into features; only the training rows determine how.

    Args:
        values: of ``COLUMNS``, shape (n, 27).
        calendar: date features, shape (n, k).
        is_train: of each row, shape (n,).

    Returns:
        float32 of shape (n, 18).
    """
    columns = values.copy()
    indoor = list(_INDOOR_PLACES.values())
    humidity = [COLUMNS.index(name) for name in HUMIDITY]
    columns[:, indoor] = np.log1p(columns[:, indoor])
    columns[:, _VISIBILITY] = columns[:, _VISIBILITY] > np.median(columns[is_train, _VISIBILITY])
    low, high = np.percentile(columns[is_train], _PERCENTILES, axis=0)
    columns = np.clip(columns, low, high)
    means = [columns[:, chosen].mean(axis=1, keepdims=True) for chosen in (indoor, humidity)]
    table = _standardise(np.concatenate([columns, *means, calendar], axis=1), is_train)
    projected = np.einsum("nc,kc->nk", table, find_components(table[is_train], FEATURES))
    features: NDArray[np.float32] = _standardise(projected, is_train).round(6).astype(np.float32)
    return features


def find_components(table: HouseValues, count: int) -> HouseValues:
    """Return the first principal components, each with a positive largest loading, rounded to 10 decimals.

    Args:
        table: shape (n, columns), each column of mean 0.
        count: of components.

    Returns:
        Shape (count, columns).
    """
    components = np.linalg.svd(table, full_matrices=False)[2][:count]
    largest = np.abs(components).round(8).argmax(axis=1)  # rounded, so that near-equal loadings yield one position
    signs = np.sign(components[np.arange(len(components)), largest])
    rounded: HouseValues = (components * signs[:, None]).round(10)
    return rounded


def _standardise(table: HouseValues, is_train: NDArray[np.bool_]) -> HouseValues:
    """Give each column mean 0 and variance 1 on the training rows; a constant column becomes 0."""
    spread = table[is_train].std(axis=0)
    scaled: HouseValues = (table - table[is_train].mean(axis=0)) / np.where(spread > 1e-9, spread, np.inf)
    return scaled


def _date_features(rows: Sequence[_HouseReading], calendar: Sequence[str]) -> HouseValues:
    return np.array([[CALENDAR[name](row.date) for name in calendar] for row in rows], dtype=np.float64)


def _choose_test_rows(place: Path, rows: Sequence[_HouseReading], path: Path) -> tuple[NDArray[np.bool_], str]:
    """Return which rows are for testing, and a note if they are not those of the authors."""
    if any((place / (_TESTING + suffix)).is_file() for suffix in SUFFIXES):
        is_test = _find_authors_rows(find_file(place, _TESTING), rows)
        fewer = f"{NAME}: {_TESTING} has only {is_test.sum():,} of {TEST_ROWS:,} rows; the others are for training"
        return is_test, fewer if is_test.sum() < TEST_ROWS else ""
    order = sorted(range(len(rows)), key=lambda i: hashlib.sha256(rows[i].date.isoformat().encode()).digest())
    is_test = np.zeros(len(rows), dtype=bool)
    is_test[order[: len(rows) // 5]] = True
    if not is_test.any() or len(rows) - is_test.sum() < FEATURES:
        raise DataUnavailableError(
            f"{path}: has {len(rows)} rows, too few for {FEATURES} features and a test set; fetch the file again"
        )
    return is_test, f"{NAME}: {_TESTING} is missing, so a fixed fifth of the rows is the test set"


def _find_authors_rows(path: Path, rows: Sequence[_HouseReading]) -> NDArray[np.bool_]:
    positions = {row.date: position for position, row in enumerate(rows)}
    is_test = np.zeros(len(rows), dtype=bool)
    for line, record in _read_csv(path, ["date"]):
        date = _parse_date(record["date"], path, line)
        if date not in positions:
            raise DataUnavailableError(
                f"{path}, line {line}: {date} is not in {_COMPLETE}.csv, so the two files do not belong together; "
                "fetch both again"
            )
        is_test[positions[date]] = True
    if not is_test.any() or len(rows) - is_test.sum() < FEATURES:
        raise DataUnavailableError(f"{path}: has {is_test.sum()} of {len(rows)} rows; fetch the file again")
    return is_test


def _put_in_order(rows: list[_HouseReading], path: Path) -> tuple[list[_HouseReading], str]:
    """Sort the rows by date and leave out repeated ones.

    Returns:
        The rows, and a note that counts the repairs.

    Raises:
        DataUnavailableError: two rows of one date differ.
    """
    disorder = sum(later.date < earlier.date for earlier, later in itertools.pairwise(rows))
    unique = dict[datetime, _HouseReading]()
    for row in rows:
        if unique.setdefault(row.date, row) != row:
            raise DataUnavailableError(f"{path}: has two different rows of {row.date}; fetch the file again")
    repeated = len(rows) - len(unique)
    found = describe_repairs({"repeated rows left out": repeated, "rows out of order sorted": disorder})
    return [unique[date] for date in sorted(unique)], "; ".join(f"{NAME}: {note}" for note in found)


def _read_rows(path: Path) -> Iterator[_HouseReading]:
    for line, record in _read_csv(path, ["date", TARGET, *COLUMNS]):
        values = [_parse_number(record[name], name, path, line) for name in COLUMNS]
        target = _parse_number(record[TARGET], TARGET, path, line)
        if target <= 0:
            raise DataUnavailableError(
                f"{path}, line {line}: {TARGET} is {target:g}, but its logarithm needs a positive number; "
                "fetch the file again"
            )
        cold = [name for name, place in _INDOOR_PLACES.items() if values[place] <= -1]
        if cold:
            raise DataUnavailableError(
                f"{path}, line {line}: {cold[0]} is at most -1, not an indoor temperature; fetch the file again"
            )
        yield _HouseReading(_parse_date(record["date"], path, line), target, tuple(values))


def _read_csv(path: Path, needed: Sequence[str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Read the rows below the header with their line numbers, as mappings from column to text."""
    with open_packed(path) as stream, report_csv_errors(path):
        reader = csv.reader(io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline=""), strict=True)
        header = [name.strip() for name in next(reader, [])]
        if missing := [name for name in needed if name not in header]:
            raise DataUnavailableError(
                f"{path}, line 1: the header lacks {', '.join(missing)}; fetch the file as it is published"
            )
        if repeated := [name for name in needed if header.count(name) > 1]:
            raise DataUnavailableError(
                f"{path}, line 1: the header has {', '.join(repeated)} twice; fetch the file as it is published"
            )
        for fields in reader:
            if len(fields) != len(header):
                raise DataUnavailableError(
                    f"{path}, line {reader.line_num}: has {len(fields)} fields instead of {len(header)}; "
                    "fetch the file again"
                )
            yield reader.line_num, dict(zip(header, fields, strict=True))


def _parse_number(text: str, name: str, path: Path, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not fit_float32(value):
        raise DataUnavailableError(f"{path}, line {line}: {name} is '{text}', not a number; fetch the file again")
    return value


def _parse_date(text: str, path: Path, line: int) -> datetime:
    try:
        return datetime.strptime(text.strip(), _DATE)
    except ValueError:
        raise DataUnavailableError(
            f"{path}, line {line}: '{text}' is not a date such as 2016-01-11 17:00:00; fetch the file again"
        ) from None
