"""Widar: BVP files in the published format, made here: padded, cut, empty and damaged."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedquilt_common.datasets import widar
from fedquilt_common.errors import DataUnavailableError

scipy_io = pytest.importorskip("scipy.io")
RNG = np.random.default_rng(0)


def write(
    folder: Path, person: int, gesture: int, values: NDArray[np.float64], session: str = "20181130", repetition: int = 1
) -> Path:
    name = f"user{person}-{gesture}-1-1-{repetition}-1-1e-07-100-20-100000-L0.mat"
    path = folder / "widar" / "BVP" / f"{session}-VS" / "6-link" / f"user{person}" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy_io.savemat(path, {"velocity_spectrum_ro": values})
    return path


def profile(frames: int) -> NDArray[np.float64]:
    values: NDArray[np.float64] = RNG.random((20, 20, frames))
    return values


def test_the_files_as_they_are_published(tmp_path: Path) -> None:
    for person in (5, 10, 11):
        for gesture in range(1, 10):
            write(tmp_path, person, gesture, profile(15))
    found = widar.load(tmp_path)
    assert (found.train.x.shape, found.test.x.shape, found.classes) == ((18, 22, 20, 20), (9, 22, 20, 20), 9)
    assert found.train.x.dtype == np.float32
    assert sorted(found.test.y.tolist()) == list(range(9))
    assert found.subjects is not None
    assert len(set(found.subjects.tolist())) == 2
    assert found.train.x.mean() == pytest.approx(0, abs=1e-5)
    assert found.train.x.std() == pytest.approx(1, abs=1e-5)


def test_numbers_mean_what_their_session_says(tmp_path: Path) -> None:
    for session, person, gesture in (
        ("20181109", 1, 4), ("20181109", 1, 5), ("20181112", 1, 10), ("20181112", 2, 0), ("20181121", 2, 1),
        ("20181128", 6, 4), ("20181205", 2, 1), ("20181205", 3, 1),
    ):  # fmt: skip
        write(tmp_path, person, gesture, profile(3), session)
    _, labels, persons, _ = widar._read_profiles(tmp_path / "widar")
    assert list(zip(persons, labels, strict=True)) == [(1, 3), (2, 3), (6, 4), (2, 4), (3, 3)]


def test_profiles_are_padded_and_cut() -> None:
    short, long = profile(3), profile(38)
    padded = widar.pad_frames(short)
    assert padded[2, 4, 7] == np.float32(short[4, 7, 2])
    assert not padded[3:].any()
    assert widar.pad_frames(long)[21, 1, 2] == np.float32(long[1, 2, 21])


def test_empty_and_long_files_are_counted(tmp_path: Path) -> None:
    for person in (5, 10, 11):
        write(tmp_path, person, 1, profile(38))
        write(tmp_path, person, 2, profile(1))
    write(tmp_path, 5, 3, profile(0))
    write(tmp_path, 5, 4, profile(5)).write_bytes(b"")
    found = widar.load(tmp_path)
    assert len(found.train) + len(found.test) == 6
    assert "2 empty files left out" in found.note
    assert "3 profiles cut to 22 frames" in found.note


def test_test_persons_do_not_change_the_training_samples(tmp_path: Path) -> None:
    for person in (5, 10, 11):
        write(tmp_path, person, 1, profile(9))
    before = widar.load(tmp_path)
    test_person = int(before.note.split("persons ")[1].split()[0])
    write(tmp_path, test_person, 1, 50 * profile(9))
    after = widar.load(tmp_path)
    assert np.array_equal(before.train.x, after.train.x)
    assert not np.array_equal(before.test.x, after.test.x)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.zeros((20, 19, 4)), r"has the shape \(20, 19, 4\)"),
        (np.full((20, 20, 4), np.nan), "values that are not finite"),
        (np.full((20, 20, 4), -1e39), "values that are not finite or too large"),
    ],
)
def test_wrong_values(values: NDArray[np.float64], words: str, tmp_path: Path) -> None:
    write(tmp_path, 5, 1, values)
    with pytest.raises(DataUnavailableError, match=f"user5-1-1-1-1.*{words}"):
        widar.load(tmp_path)


def test_a_damaged_file(tmp_path: Path) -> None:
    path = write(tmp_path, 5, 1, profile(4))
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DataUnavailableError, match=r"user5-1-1-1-1.*that can be read"):
        widar.load(tmp_path)


def test_a_damaged_packed_file(tmp_path: Path) -> None:
    path = write(tmp_path, 5, 1, profile(4))
    scipy_io.savemat(path, {"velocity_spectrum_ro": profile(4)}, do_compression=True)
    data = bytearray(path.read_bytes())
    data[400:600] = bytes(200)
    path.write_bytes(data)
    with pytest.raises(DataUnavailableError, match=r"user5-1-1-1-1.*that can be read"):
        widar.load(tmp_path)


def test_another_key(tmp_path: Path) -> None:
    scipy_io.savemat(write(tmp_path, 5, 1, profile(4)), {"spectrum": profile(4)})
    with pytest.raises(DataUnavailableError, match="has no velocity_spectrum_ro"):
        widar.load(tmp_path)


@pytest.mark.parametrize(
    ("session", "gesture", "words"),
    [("20200101", 1, "names no session"), ("20181208", 5, "gesture 5 is not from 1 to 4")],
)
def test_an_unknown_gesture(session: str, gesture: int, words: str, tmp_path: Path) -> None:
    write(tmp_path, 5, gesture, profile(2), session)
    with pytest.raises(DataUnavailableError, match=words):
        widar.load(tmp_path)


def test_a_date_above_the_folder_is_of_no_session(tmp_path: Path) -> None:
    path = write(tmp_path / "20181130", 5, 1, profile(2))
    (tmp_path / "20181130" / "widar" / path.name).write_bytes(path.read_bytes())
    with pytest.raises(DataUnavailableError, match=r"widar/user5-1-1-1-1.*names no session"):
        widar.load(tmp_path / "20181130")


def test_a_folder_without_profiles(tmp_path: Path) -> None:
    (tmp_path / "widar").mkdir()
    with pytest.raises(DataUnavailableError, match="profiles of 0 persons"):
        widar.load(tmp_path)


@pytest.mark.parametrize(
    ("top", "archive"), [(".", "BVP.zip"), ("BVP", "another.zip"), ("BVP/20181130-VS", "20181130-VS.zip")]
)
def test_an_archive_beside_its_own_folders(top: str, archive: str, tmp_path: Path) -> None:
    paths = [write(tmp_path, person, 1, profile(4)) for person in (5, 10)]
    with zipfile.ZipFile(tmp_path / "widar" / archive, "w") as packed:
        for path in paths:
            packed.write(path, path.relative_to(tmp_path / "widar" / top))
    with pytest.raises(DataUnavailableError, match=r"user\d+-1-1-1-1-.*: is also .*user\d+-1-1-1.*; remove one"):
        widar.load(tmp_path)


def test_a_profile_that_is_also_there_packed(tmp_path: Path) -> None:
    write(tmp_path, 10, 1, profile(4))
    path = write(tmp_path, 5, 1, profile(4))
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(DataUnavailableError, match=r"user5-1.*mat\.gz: is also .*user5-1.*mat; remove one"):
        widar.load(tmp_path)


def test_one_name_in_two_sessions_is_of_two_profiles(tmp_path: Path) -> None:
    for person in (5, 10):
        for session in ("20181130", "20181204"):
            write(tmp_path, person, 1, profile(4), session)
    found = widar.load(tmp_path)
    assert len(found.train) + len(found.test) == 4
