"""VisDrone: images and annotations in the published format, made here, and 15 real images with YOLO's labels."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.data import real_data
from tests.support.joined_parts import join_parts

from fedquilt_common.datasets import visdrone
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.types import Dataset

Image = pytest.importorskip("PIL.Image")
LINE = "192,270,96,54,1,4,0,0\n"


def jpeg(width: int = 960, height: int = 540, shade: int = 200) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (width, height), (shade, 0, 0)).save(stream, "JPEG")
    return stream.getvalue()


def write(folder: Path, split: str, name: str, labels: str = LINE, image: bytes = b"") -> None:
    place = folder / "visdrone" / f"VisDrone2019-DET-{split}"
    for kind, suffix, data in (("images", "jpg", image or jpeg()), ("annotations", "txt", labels.encode())):
        (place / kind).mkdir(parents=True, exist_ok=True)
        (place / kind / f"{name}.{suffix}").write_bytes(data)


def read(folder: Path) -> Dataset:
    return join_parts(visdrone.load(folder))


def boxes(y: NDArray[np.float32]) -> list[list[float]]:
    return [row.tolist() for row in y[y[:, 0] >= 0]]


def test_the_folders_as_they_are_published(tmp_path: Path) -> None:
    for split, count in (("train", 40), ("val", 2), ("test-dev", 3)):
        for number in range(count):
            write(tmp_path, split, f"{split}{number:03}")
    found = read(tmp_path)
    assert (found.train.x.shape, found.test.x.shape) == ((40, 3, 640, 640), (3, 3, 640, 640))
    assert found.train.y.shape == (40, 1024, 5)
    assert found.train.y.dtype == np.float32
    assert (found.classes, found.task, found.subjects, found.note) == (12, "detection", None, "")
    assert len(visdrone.load(tmp_path).readers) == 3


def test_an_image_is_scaled_and_centred_on_grey(tmp_path: Path) -> None:
    write(tmp_path, "train", "a")
    write(tmp_path, "test-dev", "b", "0,0,640,640,1,0,0,0,\n", jpeg(320, 640))
    found = read(tmp_path)
    wide, tall = found.train.x[0], found.test.x[0]
    assert wide.dtype == np.float32
    assert np.allclose(wide[:, :140], 114 / 255)
    assert np.allclose(wide[:, 500:], 114 / 255)
    assert np.allclose(wide[0, 140:500], 200 / 255, atol=0.02)
    assert np.allclose(tall[:, :, :160], 114 / 255)
    assert boxes(found.train.y[0]) == pytest.approx(
        np.array([[4, 0.25, 0.5 + (297 / 540 - 0.5) * 360 / 640, 0.1, 0.05625]])
    )
    assert boxes(found.test.y[0]) == [[0, 0.5, 0.5, 0.5, 1]]  # cut at the image's edge
    assert found.note == "visdrone: 1 box cut at the image's edge"


def test_samples_stay_bytes(tmp_path: Path) -> None:
    write(tmp_path, "train", "a")
    write(tmp_path, "val", "b")
    parted = visdrone.load(tmp_path)
    assert parted.note == "visdrone: the validation images are the test set, because test-dev is missing"
    assert parted.readers[0]().examples.x.rows.dtype == np.uint8  # type: ignore[attr-defined]


@pytest.mark.parametrize("top", ["VisDrone2019-DET-{}/", ""])
def test_archives(top: str, tmp_path: Path) -> None:
    (tmp_path / "visdrone").mkdir()
    for split in ("train", "test-dev", "test-challenge"):
        name = f"VisDrone2019-DET-{split}"
        with zipfile.ZipFile(tmp_path / "visdrone" / f"{name}.zip", "w") as archive:
            for number in range(2):
                archive.writestr(f"{top.format(split)}images/{split}{number}.jpg", jpeg())
                if split != "test-challenge":
                    archive.writestr(f"{top.format(split)}annotations/{split}{number}.txt", LINE)
    found = read(tmp_path)
    assert (len(found.train), len(found.test), found.note) == (2, 2, "")


def test_the_forms_agree() -> None:
    own = visdrone._parse_box("192,270,96,54,1,4,0,0", (960, 540), "")
    yolo = visdrone._parse_box("4 0.25 0.55 0.1 0.1", (960, 540), "")
    assert own == pytest.approx(yolo)


def test_repairs_are_counted(tmp_path: Path) -> None:
    labels = LINE + "10,10,0,5,1,1,0,0\n2000,10,5,5,1,1,0,0\n950,10,20,20,1,1,0,0\n"
    write(tmp_path, "train", "a", labels)
    write(tmp_path, "test-dev", "b", LINE * 1030)
    write(tmp_path, "test-dev", "c", "")
    (tmp_path / "visdrone/VisDrone2019-DET-test-dev/annotations/d.txt").write_text(LINE)
    found = read(tmp_path)
    assert found.note == (
        "visdrone: 1 annotation without an image left out; 1 box cut at the image's edge; 6 boxes left out of "
        "images with more than 1024; 2 boxes without an area left out"
    )
    assert [len(boxes(y)) for y in found.test.y] == [1024, 0]


def test_the_largest_boxes_are_kept_in_order() -> None:
    many = np.random.default_rng(0).random((1100, 5)).astype(np.float32)
    kept = visdrone._choose_boxes(many, Counter())
    area = many[:, 3] * many[:, 4]
    assert np.array_equal(kept, many[area >= np.sort(area)[-1024]])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1,2,3,4,1,12,0,0", "category 12 is not from 0 to 11"),
        ("1,2,3,4,1,1.5,0,0", "category 1.5 is not from 0 to 11"),
        ("1,2,3,4,1,1", "is neither 8 numbers with commas"),
        ("1,2,nan,4,1,1,0,0", "is neither 8 numbers with commas"),
        ("1 0.5 0.5 0.1", "is neither 8 numbers with commas"),
        ("car 0.5 0.5 0.1 0.1", "is neither 8 numbers with commas"),
        ("1 320 240 60 40", "has a number above 2, but YOLO's form has parts of the image"),
    ],
)
def test_wrong_lines(line: str, words: str, tmp_path: Path) -> None:
    write(tmp_path, "train", "a", LINE + line)
    write(tmp_path, "test-dev", "b")
    with pytest.raises(DataUnavailableError, match=f"a.txt, line 2: {words}"):
        visdrone.load(tmp_path)


def test_annotations_that_begin_with_a_mark_of_their_encoding(tmp_path: Path) -> None:
    write(tmp_path, "train", "a", LINE)
    write(tmp_path, "test-dev", "b", "\ufeff" + LINE)
    found = read(tmp_path)
    np.testing.assert_array_equal(found.train.y, found.test.y)


def test_a_truncated_image(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (540, 960, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).save(stream, "JPEG")
    write(tmp_path, "train", "a", image=stream.getvalue()[:200_000])
    write(tmp_path, "test-dev", "b")
    with pytest.raises(DataUnavailableError, match=r"a.jpg: cannot be decoded .*truncated.*; fetch it again"):
        read(tmp_path)


def test_a_file_that_is_no_image(tmp_path: Path) -> None:
    write(tmp_path, "train", "a", image=b"GIF89a")
    write(tmp_path, "test-dev", "b")
    with pytest.raises(DataUnavailableError, match=r"a.jpg: is not a JPEG image"):
        visdrone.load(tmp_path)


def test_an_enormous_image(tmp_path: Path) -> None:
    header = bytearray(jpeg(16, 16))
    size = header.index(b"\xff\xc0") + 5
    header[size : size + 4] = (6000).to_bytes(2, "big") * 2
    write(tmp_path, "train", "a", image=bytes(header))
    write(tmp_path, "test-dev", "b")
    with pytest.raises(DataUnavailableError, match=r"a.jpg: has 6000 x 6000 pixels"):
        visdrone.load(tmp_path)


def test_an_image_without_annotations(tmp_path: Path) -> None:
    write(tmp_path, "train", "a")
    write(tmp_path, "test-dev", "b")
    (tmp_path / "visdrone/VisDrone2019-DET-train/annotations/a.txt").unlink()
    with pytest.raises(DataUnavailableError, match=r"a.jpg: there is no annotations/a.txt for it"):
        visdrone.load(tmp_path)


def test_an_image_in_two_places(tmp_path: Path) -> None:
    write(tmp_path, "train", "a")
    write(tmp_path, "test-dev", "a")
    with pytest.raises(DataUnavailableError, match=r"a.jpg: is also .*a.jpg; remove one"):
        visdrone.load(tmp_path)


def test_a_folder_without_images(tmp_path: Path) -> None:
    (tmp_path / "visdrone").mkdir()
    with pytest.raises(DataUnavailableError, match="holds no image such as"):
        visdrone.load(tmp_path)


def test_an_unofficial_split_holds_whole_sequences_out(tmp_path: Path) -> None:
    for sequence in range(10):
        for frame in range(3):
            write(tmp_path, "frames", f"{sequence:07}_{frame:05}_d_{frame:07}")
    train, test, notes = visdrone._split_images(visdrone._list_images(tmp_path / "visdrone"), tmp_path / "visdrone")
    assert (len(train), len(test)) == (24, 6)
    assert not {image.path.name[:7] for image in train} & {image.path.name[:7] for image in test}
    assert notes == ["6 of 30 images are the test set, which is not an official one"]


def test_images_of_one_sequence_are_split_with_a_note(tmp_path: Path) -> None:
    for frame in range(5):
        write(tmp_path, "frames", f"0000001_{frame:05}")
    train, test, notes = visdrone._split_images(visdrone._list_images(tmp_path / "visdrone"), tmp_path / "visdrone")
    assert (len(train), len(test)) == (4, 1)
    assert notes[0].endswith("all images are of one sequence, so they resemble the training images")


def test_labels_that_may_be_numbered_without_ignored_regions_are_noted(tmp_path: Path) -> None:
    write(tmp_path, "train", "a", "0 0.5 0.5 0.1 0.1\n9 0.5 0.5 0.1 0.1\n")
    write(tmp_path, "test-dev", "b", "3 0.5 0.5 0.1 0.1\n")
    assert "no label in YOLO's form has a category above 9" in visdrone.load(tmp_path).note
    write(tmp_path, "train", "c", "10 0.5 0.5 0.1 0.1\n")
    assert visdrone.load(tmp_path).note == ""


def test_the_real_images() -> None:
    found = read(real_data("visdrone"))
    assert (len(found.train), len(found.test)) == (12, 3)
    assert found.note.startswith("visdrone: 3 of 15 images are the test set, which is not an official one")
    counts = np.bincount(np.concatenate([y[y[:, 0] >= 0, 0] for y in (*found.train.y, *found.test.y)]).astype(int))
    assert counts.tolist() == [5, 277, 150, 16, 160, 12, 8, 11, 19, 0, 145, 1]
    car = next(y[y[:, 0] == 4][0] for y in found.train.y if (y[:, 0] == 4).any())
    assert ((car[1:] > 0) & (car[1:] < 1)).all()
