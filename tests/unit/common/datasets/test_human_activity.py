"""UCI HAR, ClusterFL's IMU, HARBox and Depth in their authors' formats: made small here, and the real files."""

from __future__ import annotations

import lzma
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.support.data import real_data
from tests.support.published import write_rows, write_uci_har

from fedquilt_common.datasets import clusterfl_imu, depth, harbox, uci_har
from fedquilt_common.errors import DataUnavailableError

RNG = np.random.default_rng(0)


def test_uci_har_as_it_is_published(tmp_path: Path) -> None:
    x = write_uci_har(tmp_path, "train", 42, list(range(1, 8)))
    write_uci_har(tmp_path, "test", 12, [30])
    found = uci_har.load(tmp_path)
    assert found.train.x.shape == (42, 561)
    assert (len(found.test), found.classes, found.note) == (12, 6, "")
    np.testing.assert_allclose(found.train.x, x, rtol=1e-5)
    assert found.train.y.tolist() == [number % 6 for number in range(42)]
    assert found.subjects is not None
    assert found.subjects.tolist()[:7] == [1, 2, 3, 4, 5, 6, 7]


def test_uci_har_without_the_official_test_features_says_so(tmp_path: Path) -> None:
    write_uci_har(tmp_path, "train", 80, list(range(1, 9)))
    found = uci_har.load(tmp_path)
    assert "not the official ones; they are those of persons 3, 4, 5, 6, 7, 8" in found.note
    assert found.subjects is not None
    assert set(found.subjects) == {1, 2}
    assert (len(found.train), len(found.test)) == (20, 60)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("y_train.txt", "1\r\n7\r\n", "from 1 to 6"),
        ("y_train.txt", "1\r\n2.5\r\n", "whole numbers"),
        ("y_train.txt", "1\r\n", "samples have 1 labels"),
        ("X_train.txt", "1 2 3\r\n", "3 columns"),
        ("X_train.txt", "", "is empty"),
        ("X_train.txt", "one two\r\n", "is not a table of numbers"),
        ("subject_train.txt", "0\r\n0\r\n", "from 1 to 30"),
    ],
)
def test_uci_har_that_is_damaged(name: str, content: str, words: str, tmp_path: Path) -> None:
    write_uci_har(tmp_path, "train", 2, [1, 2])
    (tmp_path / "uci-har" / "UCI HAR Dataset" / "train" / name).write_text(content)
    with pytest.raises(DataUnavailableError, match=words):
        uci_har.load(tmp_path)


@pytest.mark.parametrize("number", [np.nan, 1e39])
def test_numbers_that_float32_does_not_hold_are_refused(number: float, tmp_path: Path) -> None:
    x = write_uci_har(tmp_path, "train", 2, [1, 2]).astype(np.float64)
    x[1, 3] = number
    write_rows(tmp_path / "uci-har" / "UCI HAR Dataset" / "train" / "X_train.txt", x)
    with pytest.raises(DataUnavailableError, match="not finite"):
        uci_har.load(tmp_path)


def test_the_real_uci_har() -> None:
    found = uci_har.load(real_data("uci-har"))
    assert len(found.train) + len(found.test) in (7352, 10_299)
    assert -1 <= found.train.x.min() < found.train.x.max() <= 1
    assert np.bincount(found.train.y, minlength=6).min() > 500


def test_clusterfl_imu_as_it_is_published(tmp_path: Path) -> None:
    place = tmp_path / "clusterfl-imu" / "imu_data_7"
    x = RNG.random((10, 900))
    for person in clusterfl_imu.PERSONS:
        for activity in clusterfl_imu.ACTIVITIES:
            write_rows(place / f"{person}_{activity}_nor.txt", x, ",")
    found = clusterfl_imu.load(tmp_path)
    assert found.train.x.shape == (7 * 3 * 7, 9, 100)
    assert (len(found.test), found.classes, found.note) == (7 * 3 * 3, 3, "")
    np.testing.assert_allclose(found.train.x[0], x[0].reshape(100, 9).T, rtol=1e-5)
    assert found.subjects is not None
    assert np.bincount(found.subjects).tolist() == [21] * 7


def test_the_real_windows_of_clusterfl() -> None:
    found = clusterfl_imu.load(real_data("clusterfl-imu"))
    if found.subjects is None:  # only the server's test windows are here
        assert np.bincount([*found.train.y, *found.test.y]).tolist() == [23, 22, 25]
        assert "70 windows" in found.note
    assert 0 <= found.train.x.min() < found.train.x.max() <= 1


def test_clusterfl_imu_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "clusterfl-imu").mkdir()
    with pytest.raises(DataUnavailableError, match="no such folder"):
        clusterfl_imu.load(tmp_path)
    with lzma.open(tmp_path / "clusterfl-imu" / "server_x_test.txt.xz", "wt") as file:
        file.write(" ".join(["0.5"] * 900) + "\n")
    (tmp_path / "clusterfl-imu" / "server_y_test.txt").write_text("1\n2\n")
    with pytest.raises(DataUnavailableError, match=r"1 windows, server_y_test\.txt 2 labels"):
        clusterfl_imu.load(tmp_path)


def test_harbox_as_it_is_published(tmp_path: Path) -> None:
    place = tmp_path / "harbox" / "large_scale_HARBox"
    rows = np.concatenate([1.6e12 + 20.0 * np.arange(1050)[:, None], RNG.normal(size=(1050, 9))], axis=1)
    for person, activity in (("2", "Walk"), ("10", "typing")):
        (place / person).mkdir(parents=True)
        np.savetxt(place / person / f"{activity}_train.txt", rows)
    found = harbox.load(tmp_path)
    assert found.train.x.shape == (14, 9, 100)  # 10 whole windows of each, 7 of them for training
    assert sorted(set(found.train.y)) == [2, 3]
    windows = rows[:1000, 1:].reshape(10, 100, 9)
    low, high = (end(windows[:7], axis=(0, 1)) for end in (np.min, np.max))
    np.testing.assert_allclose(found.train.x[0], ((windows[0] - low) / (high - low)).T, rtol=1e-3, atol=1e-5)
    assert (found.train.x.min(), found.train.x.max()) == (0.0, 1.0)
    assert found.subjects is not None
    assert sorted(set(found.subjects)) == [2, 10]
    absent = (f"there is no sample of {activity} to train on" for activity in ("Call", "Hop", "Wave"))
    assert found.note == f"harbox: {'; '.join(absent)}"


def test_harbox_is_resampled_by_its_timestamps(tmp_path: Path) -> None:
    """Readings every 10 ms become one every 20 ms, those every 40 ms too; a pause of 5 s ends a window."""
    times = np.concatenate([np.arange(0, 4000, 10), np.arange(4000, 8000, 40), np.arange(13_000, 15_500, 20)]) + 1.6e12
    rows = np.column_stack([times, *(axis + (times - 1.6e12) / 1000 for axis in range(9))])
    (tmp_path / "harbox" / "1").mkdir(parents=True)
    path = tmp_path / "harbox" / "1" / "Walk_train.txt"
    np.savetxt(path, rows[::-1])  # in any order
    path.write_text(path.read_text(), encoding="utf-8-sig")  # with a byte order mark, as some editors write it
    repairs = Counter[str]()
    windows = harbox._read_windows(path, repairs)
    assert windows.shape == (4, 9, 100)
    for window, start in zip(windows, (0.0, 2.0, 4.0, 13.0), strict=True):
        np.testing.assert_allclose(window[3], 3 + start + 0.02 * np.arange(100), atol=1e-3)
    assert +repairs == {"rows out of order sorted": len(rows) - 1, "pauses of more than 1 s": 1}
    np.savetxt(path.with_name("Hop_train.txt"), rows[:50])
    note = harbox.load(tmp_path).note
    assert note.endswith(
        "; 1 file without a whole window left out; 1 pause of more than 1 s; 624 rows out of order sorted"
    )


def test_harbox_of_times_in_seconds(tmp_path: Path) -> None:
    (tmp_path / "harbox" / "1").mkdir(parents=True)
    np.savetxt(tmp_path / "harbox" / "1" / "Walk_train.txt", 0.02 * np.arange(1000)[:, None] + np.zeros(10))
    with pytest.raises(DataUnavailableError, match=r"no file has a window: .* the time in milliseconds"):
        harbox.load(tmp_path)


def test_harbox_without_persons(tmp_path: Path) -> None:
    (tmp_path / "harbox").mkdir()
    with pytest.raises(DataUnavailableError, match="no folder of a person"):
        harbox.load(tmp_path)


def test_depth_as_it_is_published(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install pillow")
    for place in ("outdoor", "indoor_dark"):
        folder = tmp_path / "depth" / place / "Node3" / "stop"
        folder.mkdir(parents=True)
        for number in range(10):
            image.new("L", (36, 36), number).save(folder / f"{number}.png")
    found = depth.load(tmp_path)
    assert found.train.x.shape == (14, 1, 36, 36)
    assert set(found.train.y) == {3}
    assert found.train.x.max() == np.float32(6) / np.float32(255)
    assert found.subjects is not None
    assert np.bincount(found.subjects).tolist() == [7, 7]
    absent = (f"there is no sample of {gesture} to train on" for gesture in ("good", "ok", "victory", "fist"))
    assert found.note == f"depth: {'; '.join(absent)}"
    image.new("L", (640, 480)).save(tmp_path / "depth" / "outdoor" / "Node3" / "stop" / "large.png")
    with pytest.raises(DataUnavailableError, match="instead of 36 x 36"):
        depth.load(tmp_path)
    (tmp_path / "depth" / "outdoor" / "Node3" / "stop" / "large.png").write_bytes(b"GIF89a")
    with pytest.raises(DataUnavailableError, match="is not a PNG image"):
        depth.load(tmp_path)


def test_an_image_of_16_bits_has_the_shades_of_one_of_8(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install pillow")
    shades = np.linspace(0, 255, 36 * 36).astype(np.uint8).reshape(36, 36)
    image.fromarray(shades).save(tmp_path / "8.png")
    image.fromarray(shades * np.uint16(257)).save(tmp_path / "16.png")
    plain, fine = (depth._read_image(tmp_path / f"{bits}.png") for bits in (8, 16))
    np.testing.assert_array_equal(plain, fine)
    np.testing.assert_array_equal(plain[0], shades / np.float32(255))


def test_depth_without_images(tmp_path: Path) -> None:
    (tmp_path / "depth").mkdir()
    with pytest.raises(DataUnavailableError, match="holds no images"):
        depth.load(tmp_path)
