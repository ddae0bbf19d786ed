"""Data sets: shapes and ranges, files in every packing, and damaged files named with their path."""

from __future__ import annotations

import functools
import gzip
import lzma
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.support.data import real_data
from tests.support.joined_parts import join_parts
from tests.support.published import SIDE, cifar_records, idx_files, write_cifar10

from fedquilt_common.datasets import cifar10, fashion_mnist, load_dataset
from fedquilt_common.datasets.archives import list_files, read_files, read_listed
from fedquilt_common.datasets.files import open_packed
from fedquilt_common.errors import DataUnavailableError, UnknownNameError
from fedquilt_common.types import Dataset

TRAIN, TEST = 5, 3
GOOD = idx_files(TRAIN, TEST)


def pack_zip(data: bytes, path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("folder/" + path.stem, data)


PACKINGS: dict[str, Callable[[bytes, Path], object]] = {
    "": lambda data, path: path.write_bytes(data),
    ".gz": lambda data, path: path.write_bytes(gzip.compress(data)),
    ".xz": lambda data, path: path.write_bytes(lzma.compress(data)),
    ".zip": pack_zip,
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    for name, data in GOOD.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(data))
    return folder


def test_digits() -> None:
    digits = load_dataset("digits")
    assert (len(digits.train), len(digits.test), digits.classes) == (1433, 364, 10)
    assert digits.input_shape == (1, 8, 8)
    assert digits.train.x.dtype == np.float32
    assert (digits.train.x.min(), digits.train.x.max()) == (0.0, 1.0)
    assert digits.train.y.dtype == np.int64
    share = np.bincount(digits.test.y) / np.bincount(np.concatenate([digits.train.y, digits.test.y]))
    assert np.allclose(share, 0.2, atol=0.01)


def test_digits_parts_share_no_sample_and_miss_none() -> None:
    from sklearn.datasets import load_digits

    digits = load_dataset("digits")
    both = np.concatenate([digits.train.x, digits.test.x]).reshape(-1, 64) * 16
    original, _ = load_digits(return_X_y=True)
    assert sorted(map(bytes, both.astype(np.uint8))) == sorted(map(bytes, original.astype(np.uint8)))


def test_loaded_once_and_read_only() -> None:
    first = load_dataset("digits")
    assert load_dataset("digits") is first
    with pytest.raises(ValueError, match="read-only"):
        first.train.x[0] = 0


@pytest.mark.parametrize("suffix", PACKINGS)
def test_fashion_mnist_in_every_packing(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    for name, data in GOOD.items():
        PACKINGS[suffix](data, folder / (name + suffix))
    loaded = load_dataset("fashion-mnist", tmp_path)
    pixels = np.frombuffer(GOOD["train-images-idx3-ubyte"][16:], np.uint8).reshape(TRAIN, 1, SIDE, SIDE)
    assert np.array_equal(loaded.train.x, (pixels / np.float32(255)).astype(np.float32))
    assert loaded.train.x.dtype == np.float32
    assert loaded.test.y.tolist() == [0, 1, 2]


def test_folder_comes_from_the_environment(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDQUILT_DATA", str(place.parent))
    assert len(load_dataset("fashion-mnist").train) == TRAIN
    monkeypatch.delenv("FEDQUILT_DATA")
    with pytest.raises(DataUnavailableError, match="set FEDQUILT_DATA"):
        load_dataset("fashion-mnist")


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
packed = functools.partial(gzip.compress, mtime=0)  # the same bytes, hence the same test names, each time


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        (IMAGES, packed(GOOD[IMAGES])[:-30], "is damaged"),
        (IMAGES, packed(GOOD[IMAGES])[:-8] + b"\0" * 8, "is damaged"),
        (IMAGES, b"<html>not found</html>", "is damaged"),
        (IMAGES, packed(GOOD[IMAGES][:-10]), "ends 10 bytes too early"),
        (IMAGES, packed(GOOD[IMAGES][:7]), "too early"),
        (IMAGES, packed(GOOD[IMAGES] + b"x"), "after the last record"),
        (IMAGES, packed(GOOD[LABELS] + b"0" * 99), "magic 0x801"),
        (IMAGES, packed(struct.pack(">4I", 0x803, 5, 32, 28)), "sizes \\[32, 28\\]"),
        (IMAGES, packed(struct.pack(">4I", 0x803, 0xFFFFFFFF, 28, 28)), "announces 4294967295"),
        (IMAGES, packed(struct.pack(">4I", 0x803, 0, 28, 28)), "announces 0"),
        (LABELS, packed(GOOD["t10k-labels-idx1-ubyte"]), "5 images, but .* 3 labels"),
        (LABELS, packed(GOOD[LABELS][:-1] + b"\x0a"), "label 10"),
        (LABELS, b"", "too early"),
    ],
)
def test_wrong_files_are_named(place: Path, name: str, data: bytes, expected: str) -> None:
    (place / f"{name}.gz").write_bytes(data)
    with pytest.raises(DataUnavailableError, match=expected) as caught:
        load_dataset("fashion-mnist", place.parent)
    assert str(place) in str(caught.value)
    assert "again" in str(caught.value)


def test_a_small_file_cannot_unpack_without_end(place: Path) -> None:
    bomb = gzip.compress(struct.pack(">2I", 0x801, TRAIN) + bytes(1 << 24), compresslevel=1)
    (place / f"{LABELS}.gz").write_bytes(bomb)
    with pytest.raises(DataUnavailableError, match="after the last record"):
        load_dataset("fashion-mnist", place.parent)


def test_missing_folder_and_missing_file(place: Path, tmp_path: Path) -> None:
    (place / f"{LABELS}.gz").unlink()
    with pytest.raises(DataUnavailableError, match=f"{LABELS}: there is no such file"):
        load_dataset("fashion-mnist", tmp_path)
    shutil.rmtree(place)
    with pytest.raises(DataUnavailableError, match="no such folder"):
        load_dataset("fashion-mnist", tmp_path)


def test_zip_with_several_files(place: Path) -> None:
    (place / f"{LABELS}.gz").unlink()
    with zipfile.ZipFile(place / f"{LABELS}.zip", "w") as archive:
        archive.writestr("a", b"")
        archive.writestr("b", b"")
    with pytest.raises(DataUnavailableError, match="holds 2 files"):
        load_dataset("fashion-mnist", place.parent)


@pytest.mark.parametrize(("field", "value", "words"), [(6, 1, "encrypted"), (8, 99, "compression")])
def test_archives_that_python_cannot_unpack(tmp_path: Path, field: int, value: int, words: str) -> None:
    """``field`` is the offset of flags or method in a member's own header; the list of members has it 2 bytes later."""
    path = tmp_path / "numbers.zip"
    pack_zip(b"1,2", path)
    data = bytearray(path.read_bytes())
    for start in (field, data.index(b"PK\1\2") + field + 2):
        data[start] = value
    path.write_bytes(data)
    expected = rf"numbers\.zip, folder/numbers: cannot be unpacked \(.*{words}"
    with pytest.raises(DataUnavailableError, match=expected), open_packed(path):
        pass
    with pytest.raises(DataUnavailableError, match=expected):
        list(read_files(tmp_path, lambda name: name == "numbers"))
    with pytest.raises(DataUnavailableError, match=expected):
        list(read_listed(list_files(tmp_path, lambda name: True)))


def test_unknown_data_set() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'fashion-mnist'"):
        load_dataset("fashion_mnist")


def test_the_real_fashion_mnist() -> None:
    real: Dataset = fashion_mnist.load(real_data("fashion-mnist"))
    assert real.train.x.shape == (60_000, 1, 28, 28)
    assert np.bincount(real.train.y).tolist() == [6000] * 10
    assert np.bincount(real.test.y).tolist() == [1000] * 10
    assert real.train.x.max() == 1.0
    assert real.train.x.mean() == pytest.approx(0.2860, abs=1e-4)  # the published mean


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    write_cifar10(tmp_path, batch=4, test=3)
    return tmp_path / "cifar10"


@pytest.mark.parametrize("packing", PACKINGS)
def test_cifar10_as_published_and_packed(cifar: Path, packing: str) -> None:
    plain = join_parts(cifar10.load(cifar.parent))
    assert plain.train.x.shape == (20, 3, 32, 32)
    assert (len(plain.test), plain.classes) == (3, 10)
    assert plain.train.x.dtype == np.float32
    assert plain.train.x.max() <= 1
    raw = np.frombuffer(cifar_records(4, 2), np.uint8).reshape(4, 3073)
    assert plain.train.y[4:8].tolist() == raw[:, 0].tolist()
    red = raw[1, 1:1025].reshape(32, 32) / np.float32(255)  # planes of red, green and blue
    np.testing.assert_array_equal(plain.train.x[5, 0], red)
    for path in list(cifar.iterdir()):
        data = path.read_bytes()
        path.unlink()
        PACKINGS[packing](data, path.with_name(path.name + packing))
    packed = join_parts(cifar10.load(cifar.parent))
    assert np.array_equal(packed.train.x, plain.train.x)
    assert np.array_equal(packed.test.y, plain.test.y)


def test_cifar10_in_parts_of_batches(cifar: Path) -> None:
    (cifar / "data_batch_2.bin").rename(cifar / "data_batch_2.first1000.bin")
    (cifar / "data_batch_2.first1000.index.txt").write_text("0 1 2 3")
    parted = cifar10.load(cifar.parent)
    assert len(join_parts(parted).train) == 20
    assert parted.describe_missing({"train": 50_000, "test": 10_000}) == ""
    assert parted.describe_missing({"train": 20, "test": 4}) == (
        "cifar10: 20 of 50,000 training and 4 of 10,000 test samples are there"
    )


def test_cifar10_with_more_images_than_are_published(cifar: Path) -> None:
    """As a part of a batch beside the whole batch."""
    with pytest.raises(DataUnavailableError, match=r"hold 50,004 training samples, but only 50,000 are published"):
        cifar10.load(cifar.parent).describe_missing({"train": 50_004, "test": 3})


@pytest.mark.parametrize("name", ["data_batch_4.bin", "test_batch.bin"])
@pytest.mark.parametrize("packing", [".gz", ".xz", ".zip"])
def test_a_batch_of_cifar10_that_is_also_there_packed(cifar: Path, name: str, packing: str) -> None:
    PACKINGS[packing]((cifar / name).read_bytes(), cifar / (name + packing))
    with pytest.raises(DataUnavailableError, match=rf"{name}{packing}: is also .*{name}; remove one of the two"):
        cifar10.load(cifar.parent)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes"),
        (cifar_records(2)[:-1], "6145 bytes"),
        (cifar_records(2) + b"x", "6147 bytes"),
        (b"\x0a" + cifar_records(1)[1:], "label 10, above 9"),
        (cifar_records(10_001), "1 to 10000 records of 3073"),
    ],
)
def test_a_damaged_file_of_cifar10_is_named(cifar: Path, data: bytes, reason: str) -> None:
    (cifar / "data_batch_3.bin").write_bytes(data)
    with pytest.raises(DataUnavailableError, match=rf"data_batch_3.bin: has .*{reason}|data_batch_3.bin: .*{reason}"):
        join_parts(cifar10.load(cifar.parent))


def test_cifar10_that_is_not_there(cifar: Path) -> None:
    (cifar / "test_batch.bin").unlink()
    with pytest.raises(DataUnavailableError, match=r"test_batch\*.bin: there is no such file"):
        join_parts(cifar10.load(cifar.parent))


def test_a_batch_of_the_real_cifar10() -> None:
    """One of its six, which all have one format: unpacking the others takes ten seconds more."""
    readers = cifar10.load(real_data("cifar10")).readers
    found = readers[-1]().examples
    assert len(found) in (10_000, 9_968)  # whole, or without 32 images
    assert set(np.unique(found.y)) == set(range(10))
    assert 0.4 < found.x.mean() < 0.55
