"""HARB in the form of the FedAKD thesis, made small here: interpolation, noise, balance, volunteers, damage."""

from __future__ import annotations

import gzip
import lzma
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedquilt_common.datasets import harb, load_dataset
from fedquilt_common.errors import DataUnavailableError

VOLUNTEERS = ("anna", "ben", "cora", "dan", "eve")


def write_session(folder: Path, name: str, seconds: float = 31.0, rate: float = 15.0, start: float = 1.6e9) -> None:
    """Write a recording: the axes are whole numbers, the heart beats at 60 plus one a second."""
    rows = [(start + t, 100 * np.sin(t), 10 * t, -5.0) for t in np.arange(0, seconds, 1 / rate)]
    beats = [(start + t, 60 + t) for t in np.arange(0, seconds + 1, 0.5)]
    lines = [" ".join([f"{row[0]:.3f}", *(f"{value:.0f}" for value in row[1:])]) for row in sorted([*rows, *beats])]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join(lines) + "\n")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Recordings of five volunteers: three windows of each activity."""
    for person in VOLUNTEERS:
        for activity in harb.ACTIVITIES:
            write_session(tmp_path / "harb" / person, f"{activity}-1.txt")
    return tmp_path


def test_windows_of_four_signals_and_volunteers_of_one_side(place: Path) -> None:
    found = harb.load(place)
    assert found.train.x.shape == (3 * (3 + 3 + 3 + 3), 4, 150)  # walking twice
    assert np.bincount(found.train.y).tolist() == [18, 9, 9]
    assert np.bincount(found.test.y).tolist() == [6, 6, 6]  # not balanced
    assert found.subjects is not None
    assert np.unique(found.subjects, return_counts=True)[1].tolist() == [12, 12, 12]
    assert "are the test set" in found.note
    assert "9 windows of walking added" in found.note
    np.testing.assert_allclose(found.train.x.mean(axis=(0, 2)), 0, atol=1e-4)


def test_the_added_windows_are_smoothed_copies_of_walking(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harb, "standardise_channels", lambda *parts: None)
    monkeypatch.setattr(harb, "smooth_signals", lambda signals: signals + 1000)
    train = harb.load(place).train
    added, walking = train.x[-9:], train.x[:27][train.y[:27] == 0]
    np.testing.assert_allclose(added, walking + 1000, atol=1e-3)


def test_a_persons_folder_may_have_folders(place: Path) -> None:
    for person in VOLUNTEERS:
        (place / "harb" / person / "day-1").mkdir()
        (place / "harb" / person / "walking-1.txt").rename(place / "harb" / person / "day-1" / "walking-1.txt")
    found = harb.load(place)
    assert found.subjects is not None
    assert np.unique(found.subjects, return_counts=True)[1].tolist() == [12, 12, 12]
    assert "day-1" not in found.note


def test_a_session_without_a_whole_window_is_noted(place: Path) -> None:
    write_session(place / "harb" / "anna", "walking-2.txt", seconds=5.0)
    assert "1 session too short for a window of 150 readings left out" in harb.load(place).note


def test_a_file_of_no_activity_is_noted(place: Path) -> None:
    (place / "harb" / "anna" / "walking-1.txt").rename(place / "harb" / "anna" / "eating-1.txt")
    assert "1 file not named for an activity left out" in harb.load(place).note


def test_the_heart_rate_is_interpolated_at_the_gyroscopes_times() -> None:
    gyro = np.array([[0.0, 1, 2, 3], [0.5, 4, 5, 6], [1.0, 7, 8, 9], [1.0, 0, 0, 0]])
    times, signals = harb._join(gyro, np.array([[2.0, 80.0], [0.0, 60.0]]), Counter())
    assert times.tolist() == [0.0, 0.5, 1.0]
    assert signals.tolist() == [[1, 2, 3, 60], [4, 5, 6, 65], [7, 8, 9, 70]]


def test_negative_heart_rates_are_noise(place: Path) -> None:
    path = place / "harb" / "anna" / "walking-1.txt"
    before = path.read_text()
    path.write_text(before + "1600000003.25 -1\n1600000004.25 -99\n")
    assert "2 negative heart rates left out" in harb.load(place).note
    noisy = harb.load(place).train.x
    path.write_text(before)
    assert noisy.tobytes() == harb.load(place).train.x.tobytes()


def fit(values: NDArray[np.float64], at: int) -> float:
    """Fit a polynomial of order 5 to the 11 values around ``at``, and return its value there."""
    near = np.arange(at - 5, at + 6)
    return float(np.polyval(np.polyfit(near - at, values[near], 5), 0.0))


def test_the_filter_fits_a_polynomial_of_order_5_to_11_readings() -> None:
    values = np.random.default_rng(1).normal(size=(60, 2))
    smooth = harb.smooth_signals(values.astype(np.float32))
    for at in (5, 30, 54):
        assert smooth[at].tolist() == pytest.approx([fit(values[:, column], at) for column in (0, 1)], abs=1e-4)


def test_no_window_spans_a_gap(tmp_path: Path) -> None:
    for person in ("anna", "ben"):
        write_session(tmp_path / "harb" / person, "walking.txt", 15)
        write_session(tmp_path / "harb" / person, "more.txt", 15, start=1.6e9 + 20)
        folder = tmp_path / "harb" / person
        both = "".join((folder / name).read_text() for name in ("walking.txt", "more.txt"))
        (folder / "walking.txt").write_text(both)
        (folder / "more.txt").unlink()
    assert len(harb.load(tmp_path).test) == 2  # one window before the pause of 5 s, and one after it


def test_no_window_spans_a_time_without_heart_rates(place: Path) -> None:
    path = place / "harb" / "anna" / "walking-1.txt"
    lines = [line.split() for line in path.read_text().splitlines()]
    kept = [words for words in lines if len(words) == 4 or not 3 <= float(words[0]) - 1.6e9 <= 29]
    path.write_text("\n".join(" ".join(words) for words in kept))
    found = harb.load(place)
    assert "gyroscope readings without a heart rate within 5 s left out" in found.note
    assert "1 session too short for a window of 150 readings left out" in found.note


def test_an_activity_that_nobody_did_is_noted(place: Path) -> None:
    for person in VOLUNTEERS:
        (place / "harb" / person / "studying-1.txt").unlink()
    assert "there is no sample of studying to train on" in harb.load(place).note


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1.0 2 3\n", "line 1: has 3 fields"),
        ("1.0,400,,\n", "line 1: has an empty field"),
        ("1.0 60\n1.1,,2,3\n", "line 2: has an empty field"),
        ("1.0 60\n1.1 fast\n", "line 2: holds something that is not a number"),
        ("1.0 60\n\n1.1 1 2 nan\n", "line 3: holds a number that is not finite"),
        ("1.0 60\n1.1 1 2 1e39\n", "line 2: holds a number that is not finite, or too large"),
    ],
)
def test_damaged_files_name_their_line(text: str, words: str, place: Path) -> None:
    (place / "harb" / "anna" / "sleeping-2.txt").write_text(text)
    with pytest.raises(DataUnavailableError, match=words):
        harb.load(place)


def test_lines_out_of_order_and_times_that_are_there_twice_are_noted(place: Path) -> None:
    before, path = harb.load(place), place / "harb" / "anna" / "walking-1.txt"
    lines = path.read_text().splitlines()
    shuffled = [*lines[::-1], "  ", lines[0].replace(" ", " , ") + ",  "]
    path.write_text("\n".join(shuffled), encoding="utf-8-sig")  # with a byte order mark, as some editors write it
    found = harb.load(place)
    assert "rows out of order sorted" in found.note
    assert "1 row with a repeated time left out" in found.note
    assert bytes(found.train.x) == bytes(before.train.x)


def test_one_volunteer_is_not_enough(tmp_path: Path) -> None:
    write_session(tmp_path / "harb" / "anna", "walking.txt")
    with pytest.raises(DataUnavailableError, match="1 volunteers"):
        harb.load(tmp_path)


def test_it_is_a_data_set_by_name(place: Path) -> None:
    assert load_dataset("harb", place).input_shape == (4, 150)


@pytest.mark.parametrize("packing", [".gz", ".xz"])
def test_a_session_that_is_also_there_packed(packing: str, place: Path) -> None:
    path = place / "harb" / "anna" / "walking-1.txt"
    pack = gzip.compress if packing == ".gz" else lzma.compress
    path.with_name(path.name + packing).write_bytes(pack(path.read_bytes()))
    with pytest.raises(DataUnavailableError, match=rf"walking-1\.txt{packing}: is also .*walking-1\.txt; remove one"):
        harb.load(place)
