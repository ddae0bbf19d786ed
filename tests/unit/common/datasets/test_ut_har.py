"""UT-HAR: the authors' trials and SenseFi's windows in their formats, made here, and the real early release."""

from __future__ import annotations

import functools
import io
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.data import real_data

from fedquilt_common.datasets import load_dataset, ut_har
from fedquilt_common.datasets.windows import hold_out
from fedquilt_common.errors import DataUnavailableError


@functools.cache
def trial(seed: int) -> tuple[NDArray[np.float64], str]:
    """Return the 750 packets of a trial, and their text."""
    rows: NDArray[np.float64] = np.random.default_rng(seed).uniform(0, 30, (750, 181)).round(3)
    rows[:, 0] = np.arange(750) / 1000
    return rows, "".join(",".join(f"{value:.6g}" for value in row) + "\r\n" for row in rows)


def write_trial(folder: Path, name: str, activity: str, *, early: bool = False, seed: int = 0) -> NDArray[np.float64]:
    """Write a trial of 750 packets, of which 300 to 649 have the activity; return its rows."""
    place = folder / "wifi-csi" / "Dataset" / "Data"
    place.mkdir(parents=True, exist_ok=True)
    rows, text = trial(seed)
    (place / f"input_{name}{'.dat' if early else ''}.csv").write_text(text, newline="")
    labels = ["NoActivity"] * 300 + [activity] * 350 + ["NoActivity"] * 100
    key = name.split("_", 1)[1] if early else name
    (place / f"annotation_{key}.csv").write_text("\r\n".join([*labels, ""]), newline="")
    return rows


@pytest.mark.parametrize("early", [False, True])
def test_trials_as_they_are_published(early: bool, tmp_path: Path) -> None:
    for number, person in enumerate(("siamak", "kazuki")):
        for activity in ("bed", "run"):
            write_trial(tmp_path, f"161219_{person}_{activity}_1", activity, early=early, seed=number)
    found = ut_har.load(tmp_path)
    # Windows start at packets 0, 125, ... 500; those at 250, 375 and 500 have 60 % of the activity.
    assert found.train.x.shape == found.test.x.shape == (6, 3, 30, 250)
    assert found.train.x.dtype == np.float32
    assert sorted(found.train.y.tolist()) == [0, 0, 0, 4, 4, 4]
    assert found.classes == 7
    assert found.subjects is not None
    assert set(found.subjects.tolist()) <= {0, 1}
    np.testing.assert_allclose(found.train.x.mean(axis=(0, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(found.train.x.std(axis=(0, 3)), 1, atol=1e-5)
    assert "2 of 4 trials are the test set" in found.note
    assert "neighbouring windows share half their rows" in found.note
    assert "8 windows without an activity left out" in found.note


def test_amplitudes_keep_their_antenna_and_subcarrier(tmp_path: Path) -> None:
    rows = [write_trial(tmp_path, f"161219_a_bed_{number}", "bed", seed=number) for number in (1, 2)]
    found = ut_har.load(tmp_path)
    for own in rows:
        column = own[250:500, 1 + 30 + 7]
        if np.corrcoef(column, found.train.x[0, 1, 7])[0, 1] > 0.999:
            return
    raise AssertionError("no trial has the amplitudes of antenna 2, subcarrier 8")


def test_test_trials_do_not_change_the_training_samples(tmp_path: Path) -> None:
    for number in (1, 2):
        write_trial(tmp_path, f"161219_a_bed_{number}", "bed")
    before = ut_har.load(tmp_path)
    chosen = hold_out(["161219_a_bed_1", "161219_a_bed_2"], ut_har.HELD_OUT)
    write_trial(tmp_path, chosen.pop(), "bed", seed=9)
    after = ut_har.load(tmp_path)
    assert np.array_equal(before.train.x, after.train.x)
    assert not np.array_equal(before.test.x, after.test.x)


def test_a_window_may_be_longer_than_the_activity() -> None:
    labels = np.full(1000, -1)
    labels[400:480] = 1
    assert ut_har.label_windows(labels, 7).tolist() == [-1, -1, 1, 1, -1, -1, -1]


def write_arrays(folder: Path, **changes: NDArray[np.generic]) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, NDArray[np.generic]] = {
        "X_train": rng.random((14, 250, 90)), "y_train": np.arange(14.0) % 7,
        "X_val": rng.random((2, 250, 90)), "y_val": np.arange(2.0),
        "X_test": rng.random((7, 250, 90)), "y_test": np.arange(7.0)[::-1].copy(),
    }  # fmt: skip
    for name, array in (arrays | changes).items():
        path = folder / "wifi-csi" / "UT_HAR" / ("data" if name[0] == "X" else "label") / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = io.BytesIO()
        np.save(stream, array)
        path.write_bytes(stream.getvalue())


def test_the_published_windows_with_their_test_labels(tmp_path: Path) -> None:
    write_arrays(tmp_path)
    found = ut_har.load(tmp_path)
    assert (found.train.x.shape, found.test.x.shape) == ((14, 3, 30, 250), (7, 3, 30, 250))
    assert found.test.y.tolist() == [6, 5, 4, 3, 2, 1, 0]
    assert (found.subjects, found.note) == (None, "")


@pytest.mark.parametrize("shape", [(-1, 1, 250, 90), (-1, 22500)])
def test_windows_of_one_channel_or_in_one_row(shape: tuple[int, ...], tmp_path: Path) -> None:
    write_arrays(tmp_path)
    expected = ut_har.load(tmp_path)
    train, test = (np.random.default_rng(0).random((14, 250, 90)), expected.test)
    write_arrays(tmp_path, X_train=train.reshape(shape))
    found = ut_har.load(tmp_path)
    np.testing.assert_array_equal(found.train.x, expected.train.x)
    np.testing.assert_array_equal(found.test.x, test.x)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y_test": np.full(7, 7.0)}, r"y_test.csv has a label that is not a whole number from 0 to 6"),
        ({"y_test": np.full(7, 0.5)}, r"y_test.csv has a label that is not a whole number from 0 to 6"),
        ({"X_test": np.array(1.0)}, r"X_test.csv has the shape \(\) and y_test.csv \(7,\)"),
        ({"y_test": np.array(1.0)}, r"X_test.csv has the shape .* and y_test.csv \(\)"),
        ({"y_train": np.zeros(13)}, r"X_train.csv has the shape \(14, 250, 90\) and y_train.csv \(13,\)"),
        (
            {"X_test": np.zeros((7, 3, 30, 250))},
            r"X_test.csv has the shape \(7, 3, 30, 250\) .* instead of \(n, 250, 90\)",
        ),
        ({"X_test": np.zeros((7, 90, 250))}, r"X_test.csv has the shape \(7, 90, 250\)"),
        ({"X_test": np.full((7, 250, 90), np.nan)}, r"X_test.csv: holds values that are not finite"),
        (
            {"X_test": np.full((7, 250, 90), 1e39)},
            r"X_test.csv: holds values .* too large",
        ),
    ],
)
def test_damaged_windows(changes: dict[str, NDArray[np.generic]], words: str, tmp_path: Path) -> None:
    write_arrays(tmp_path, **changes)
    with pytest.raises(DataUnavailableError, match=words):
        ut_har.load(tmp_path)


def test_labels_in_two_folders(tmp_path: Path) -> None:
    write_arrays(tmp_path)
    place = tmp_path / "wifi-csi"
    (place / "y_test.csv").write_bytes((place / "UT_HAR" / "label" / "y_test.csv").read_bytes())
    with pytest.raises(DataUnavailableError, match=r"y_test\.csv: is also .*y_test\.csv; remove one"):
        ut_har.load(tmp_path)


def test_windows_that_are_no_numpy_file(tmp_path: Path) -> None:
    write_arrays(tmp_path)
    path = tmp_path / "wifi-csi" / "UT_HAR" / "data" / "X_train.csv"
    path.write_text("1,2,3")
    with pytest.raises(DataUnavailableError, match=r"X_train.csv: is not a NumPy file"):
        ut_har.load(tmp_path)
    with path.open("wb") as file:
        np.savez(file, x=np.zeros(3))
    with pytest.raises(DataUnavailableError, match=r"X_train.csv: is not a NumPy file"):
        ut_har.load(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("input", "", "line 1: does not have 181 finite numbers"),
        ("input", "1,2,3\n", "line 1: does not have 181 finite numbers"),
        ("input", ",".join(["1"] * 181) + "\n" + ",".join(["nan"] * 181), "line 2: does not have 181"),
        ("input", ",".join(["1"] * 181) + "\n" + ",".join(["1e39"] * 181), "line 2: does not have 181"),
        ("input", ",".join(["1"] * 181) + "\n", "has 1 packets, but its annotation has 750 labels"),
        ("annotation", "NoActivity\nsleep\n", "line 2: 'sleep' is none of NoActivity, bed"),
    ],
)
def test_a_damaged_trial(file: str, content: str, words: str, tmp_path: Path) -> None:
    write_trial(tmp_path, "161219_a_bed_1", "bed")
    (tmp_path / "wifi-csi" / "Dataset" / "Data" / f"{file}_161219_a_bed_1.csv").write_text(content)
    with pytest.raises(DataUnavailableError, match=f"{file}_161219_a_bed_1.csv.*{words}"):
        ut_har.load(tmp_path)


def test_a_trial_without_its_annotation(tmp_path: Path) -> None:
    write_trial(tmp_path, "161219_a_bed_1", "bed")
    (tmp_path / "wifi-csi" / "Dataset" / "Data" / "annotation_161219_a_bed_1.csv").unlink()
    with pytest.raises(DataUnavailableError, match=r"there is no annotation_161219_a_bed_1.csv for it"):
        ut_har.load(tmp_path)


def test_trials_that_are_left_out_are_counted(tmp_path: Path) -> None:
    for number in range(4):
        write_trial(tmp_path, f"161219_a_bed_{number}", "bed")
    place = tmp_path / "wifi-csi" / "Dataset" / "Data"
    (place / "input_161219_a_bed_0.csv").unlink()
    for kind in ("input", "annotation"):
        path = place / f"{kind}_161219_a_bed_1.csv"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:249]))
    note = ut_har.load(tmp_path).note
    assert "1 annotation without a trial left out" in note
    assert "1 trial without a whole window left out" in note


def test_trials_of_two_days_may_share_an_annotation(tmp_path: Path) -> None:
    """The early release has no day in the names of annotations."""
    for day in ("161219", "161220"):
        write_trial(tmp_path, f"{day}_a_bed_1", "bed", early=True)
    write_trial(tmp_path, "161219_a_run_1", "run", early=True)
    assert "annotation" not in ut_har.load(tmp_path).note
    (tmp_path / "wifi-csi" / "Dataset" / "Data" / "input_161219_a_run_1.dat.csv").unlink()
    assert "1 annotation without a trial left out" in ut_har.load(tmp_path).note


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"(14, 250, 90)", b"(9999999999,)"), (b"'shape': (14,", b"'shape': ((4,"), (b"{'descr'", b"{'descr ")],
)
def test_windows_with_a_damaged_header(old: bytes, new: bytes, tmp_path: Path) -> None:
    write_arrays(tmp_path)
    path = tmp_path / "wifi-csi" / "UT_HAR" / "data" / "X_train.csv"
    content = path.read_bytes()
    assert len(old) == len(new)
    path.write_bytes(content.replace(old, new, 1))
    assert path.read_bytes() != content
    with pytest.raises(DataUnavailableError, match=r"X_train.csv: is not a NumPy file"):
        ut_har.load(tmp_path)


def test_a_folder_without_trials(tmp_path: Path) -> None:
    (tmp_path / "wifi-csi").mkdir()
    with pytest.raises(DataUnavailableError, match="no activity with two trials"):
        ut_har.load(tmp_path)


def test_the_real_early_release() -> None:
    found = load_dataset("ut-har", real_data("wifi-csi"))  # prepared once for all test files
    assert found.train.x.shape[1:] == (3, 30, 250)
    assert set(found.train.y.tolist()) == set(found.test.y.tolist()) == set(range(7))
