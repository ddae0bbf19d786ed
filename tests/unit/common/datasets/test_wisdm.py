"""WISDM: raw files as they are published, joined, repaired and cut; no leak from test persons; damaged files."""

from __future__ import annotations

import io
import lzma
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tests.support.data import has_real_data, real_data

from fedquilt_common.datasets import wisdm_p, wisdm_w
from fedquilt_common.datasets.windows import find_nearest
from fedquilt_common.errors import DataUnavailableError

START = 252207666810782
PERSONS = (1600, 1601, 1602)


def lines(
    person: int, activity: str, count: int, *, period_ms: float = 50, shift_ms: float = 0, scale: float = 1
) -> list[str]:
    """Return the lines of one session as the authors publish them; row i has the axes i, 2 i and 3 i, times scale."""
    times = [START + int((number * period_ms + shift_ms) * 1e6) for number in range(count)]
    values = [",".join(str(scale * factor * n) for factor in (1, 2, 3)) for n in range(count)]
    return [f"{person},{activity},{time},{axes};" for time, axes in zip(times, values, strict=True)]


def write(folder: Path, person: int, sensor: str, rows: list[str], device: str = "phone") -> Path:
    path = folder / "wisdm2019" / "raw" / device / sensor / f"data_{person}_{sensor}_{device}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*rows, ""]))
    return path


def write_both(folder: Path, person: int, activities: str = "AB", count: int = 400, device: str = "phone") -> None:
    for sensor, shift in (("accel", 0), ("gyro", 10)):
        rows = [row for activity in activities for row in lines(person, activity, count, shift_ms=shift)]
        write(folder, person, sensor, rows, device)


def test_the_files_as_they_are_published(tmp_path: Path) -> None:
    for person in PERSONS:
        write_both(tmp_path, person, "AHLM")
    found = wisdm_p.load(tmp_path)
    assert (found.name, found.classes) == ("wisdm-p", 12)
    assert found.train.x.shape == (2 * 3 * 3, 6, 200)  # 2 persons, 3 activities, windows from row 0, 100 and 200
    assert found.test.x.shape == (3 * 3, 6, 200)
    assert found.train.x.dtype == np.float32
    assert found.train.y.tolist() == ([0] * 3 + [7] * 6) * 2  # both meals are one class, kicking is left out
    assert found.subjects is not None
    assert len(set(found.subjects.tolist())) == 2
    np.testing.assert_allclose(found.train.x.mean(axis=(0, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(found.train.x.std(axis=(0, 2)), 1, atol=1e-5)
    np.testing.assert_array_equal(found.train.x[0, 0, 100:], found.train.x[1, 0, :100])
    assert "only 3 of 51 persons" in found.note
    assert "neighbouring windows share half their rows" in found.note
    assert "no windows of jogging, stairs, sitting" in found.note


def test_watch_and_phone_are_two_data_sets(tmp_path: Path) -> None:
    for person in PERSONS:
        write_both(tmp_path, person, "A", device="watch")
    assert len(wisdm_w.load(tmp_path).train) == 6
    with pytest.raises(DataUnavailableError, match=r"windows of 0 persons from the phone.*data_1600_accel_phone.txt"):
        wisdm_p.load(tmp_path)


def test_45_persons_train_and_6_test(tmp_path: Path) -> None:
    for person in range(1600, 1651):
        write_both(tmp_path, person, "A", 200)
    found = wisdm_p.load(tmp_path)
    assert found.subjects is not None
    assert (len(set(found.subjects.tolist())), len(found.test)) == (45, 6)
    assert "of 51 persons" not in found.note


def test_test_persons_do_not_change_the_training_samples(tmp_path: Path) -> None:
    for person in PERSONS:
        write_both(tmp_path, person)
    before = wisdm_p.load(tmp_path)
    assert before.subjects is not None
    (test_person,) = set(PERSONS) - set(before.subjects.tolist())
    for sensor in ("accel", "gyro"):
        write(tmp_path, test_person, sensor, lines(test_person, "A", 400, scale=50))
    after = wisdm_p.load(tmp_path)
    assert np.array_equal(before.train.x, after.train.x)
    assert not np.array_equal(before.test.x[:3], after.test.x)


@pytest.mark.parametrize("packing", ["tar.xz", "zip", "xz"])
def test_packed_files(packing: str, tmp_path: Path) -> None:
    for person in PERSONS:
        write_both(tmp_path, person)
    plain = wisdm_p.load(tmp_path)
    place = tmp_path / "wisdm2019"
    files = {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*.txt"))}
    for path in place.rglob("*.txt"):
        path.unlink()
    if packing == "tar.xz":
        with tarfile.open(place / "raw.tar.xz", "w:xz") as tar:
            for name, data in files.items():
                (info := tarfile.TarInfo(f"./{name}")).size = len(data)
                tar.addfile(info, io.BytesIO(data))
    elif packing == "zip":
        with zipfile.ZipFile(place / "wisdm-dataset.zip", "w") as archive:
            for name, data in files.items():
                archive.writestr(f"wisdm-dataset/{name}", data)
    else:
        for name, data in files.items():
            (place / f"{name}.xz").write_bytes(lzma.compress(data))
    assert np.array_equal(wisdm_p.load(tmp_path).train.x, plain.train.x)


def test_repeated_and_unsorted_rows_are_repaired_and_counted(tmp_path: Path) -> None:
    for person in PERSONS:
        write_both(tmp_path, person, "A")
    expected = wisdm_p.load(tmp_path)
    rows = lines(1600, "A", 400)
    write(tmp_path, 1600, "accel", [*rows[100:], *rows[:100], rows[7]])
    found = wisdm_p.load(tmp_path)
    assert np.array_equal(found.train.x, expected.train.x)
    assert "2 rows out of order sorted" in found.note
    assert "1 row with a repeated time left out" in found.note


def test_a_file_that_ends_within_a_row_loses_this_row(tmp_path: Path) -> None:
    for person in PERSONS:
        write_both(tmp_path, person, "A")
    expected = wisdm_p.load(tmp_path)
    rows = lines(1600, "A", 401)
    path = write(tmp_path, 1600, "accel", rows)
    path.write_text(path.read_text()[:-4])
    found = wisdm_p.load(tmp_path)
    assert np.array_equal(found.train.x, expected.train.x)
    assert "1 unfinished row left out" in found.note


def test_rows_that_end_with_a_carriage_return(tmp_path: Path) -> None:
    for person in PERSONS:
        write_both(tmp_path, person, "A")
    expected = wisdm_p.load(tmp_path)
    for path in (tmp_path / "wisdm2019").rglob("*.txt"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r"))
    assert np.array_equal(wisdm_p.load(tmp_path).train.x, expected.train.x)


def test_a_sensor_at_twice_the_rate_is_thinned(tmp_path: Path) -> None:
    for person in PERSONS:
        write_both(tmp_path, person, "A")
    write(tmp_path, 1600, "accel", lines(1600, "A", 800, period_ms=25, scale=0.5))
    found = wisdm_p.load(tmp_path)
    assert len(found.train) + len(found.test) == 9
    assert "400 rows above 20 Hz left out" in found.note


def test_no_window_spans_a_gap(tmp_path: Path) -> None:
    for person in PERSONS:
        write_both(tmp_path, person, "A")
    for sensor in ("accel", "gyro"):
        rows = lines(1600, "A", 400)
        write(tmp_path, 1600, sensor, [*rows[:190], *rows[220:]])
    found = wisdm_p.load(tmp_path)
    assert len(found.train) + len(found.test) == 6  # 180 rows after the gap and 190 before it hold no window
    assert "1 gap of more than 1 s" in found.note
    assert "1 session without a whole window left out" in found.note


def test_rows_and_sessions_that_lack_a_sensor_are_counted(tmp_path: Path) -> None:
    for person in PERSONS:
        write_both(tmp_path, person)
    write(tmp_path, 1601, "gyro", lines(1601, "A", 300))
    found = wisdm_p.load(tmp_path)
    assert "1 session without one of the sensors left out" in found.note
    assert "99 rows without a gyroscope row near in time left out" in found.note


def test_the_nearest_row() -> None:
    times, others = np.array([-5, 0, 4, 5, 6, 99]), np.array([0, 10, 20])
    assert find_nearest(times, others).tolist() == [0, 0, 0, 0, 1, 2]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("1600,A,252207666810782,1.0,2.0;", "line 3: is not 'person,activity,time,x,y,z;'"),
        ("1600,A,noon,1.0,2.0,3.0;", "line 3: is not"),
        ("1600,A,99999999999999999999,1.0,2.0,3.0;", "line 3: is not"),
        ("1_600,A,252207666810782,1.0,2.0,3.0;", "line 3: is not"),
        ("1600,A,252207666810782,1.0,x,3.0;", "line 3: is not"),
        ("1600,N,252207666810782,1.0,2.0,3.0;", "line 3: has an activity that is not one of ABCDEFGHIJKLMOPQRS"),
        ("1605,A,252207666810782,1.0,2.0,3.0;", "line 3: is not of person 1600"),
        ("1600,A,252207666810782,1.0,nan,3.0;", "line 3: holds a number that is not finite"),
        ("1600,A,252207666810782,1.0,1e39,3.0;", "line 3: holds a number that is not finite, or too large"),
    ],
)
def test_a_damaged_row(row: str, words: str, tmp_path: Path) -> None:
    write(tmp_path, 1600, "accel", [*lines(1600, "A", 1), "", row, *lines(1600, "A", 3)])
    with pytest.raises(DataUnavailableError, match=f"data_1600_accel_phone.txt, {words}"):
        wisdm_p.load(tmp_path)


def test_an_empty_file(tmp_path: Path) -> None:
    write(tmp_path, 1600, "accel", [])
    with pytest.raises(DataUnavailableError, match=r"data_1600_accel_phone.txt: is empty"):
        wisdm_p.load(tmp_path)


def test_a_file_that_is_there_twice(tmp_path: Path) -> None:
    path = write(tmp_path, 1600, "accel", lines(1600, "A", 3))
    path.with_name(path.name + ".xz").write_bytes(lzma.compress(path.read_bytes()))
    with pytest.raises(DataUnavailableError, match=r"is also .*; remove one"):
        wisdm_p.load(tmp_path)


def test_a_truncated_archive(tmp_path: Path) -> None:
    path = write(tmp_path, 1600, "accel", lines(1600, "A", 2000))
    archive = tmp_path / "wisdm2019" / "raw.tar.xz"
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(path, path.name)
    path.unlink()
    archive.write_bytes(archive.read_bytes()[:-300])
    with pytest.raises(DataUnavailableError, match=r"raw.tar.xz: is damaged"):
        wisdm_p.load(tmp_path)


@pytest.mark.skipif(not has_real_data("wisdm2019"), reason="needs the published files of wisdm2019")
def test_the_real_phone() -> None:
    found = wisdm_p.load(real_data("wisdm2019"))
    assert found.train.x.shape[1:] == (6, 200)
    assert found.subjects is not None
    assert len(found.train) == len(found.subjects) > 1900
    assert np.isfinite(found.train.x).all()
    assert np.bincount(found.train.y, minlength=12)[:3].min() > 500
