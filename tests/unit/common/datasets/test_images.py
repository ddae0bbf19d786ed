"""MNIST, CIFAR-100 and FEMNIST in their publishers' formats, made here byte for byte, and damaged files."""

from __future__ import annotations

import functools
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.joined_parts import join_parts
from tests.support.published import idx_files

from fedquilt_common.datasets import cifar100, femnist, mnist
from fedquilt_common.datasets.cache import load_prepared
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.stored_samples import StoredSamples


def test_mnist_as_it_is_published(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    files = idx_files(6, 4)
    for name, data in files.items():
        (tmp_path / "mnist" / name).write_bytes(data)
    found = mnist.load(tmp_path)
    assert (found.name, found.classes, found.train.x.shape) == ("mnist", 10, (6, 1, 28, 28))
    assert found.test.y.tolist() == [0, 1, 2, 3]
    pixels = np.frombuffer(files["t10k-images-idx3-ubyte"][16:], np.uint8)
    np.testing.assert_array_equal(found.test.x.reshape(-1), pixels / np.float32(255))


def cifar100_records(count: int) -> bytes:
    records = np.random.default_rng(count).integers(0, 256, (count, 3074), dtype=np.uint8)
    records[:, 0], records[:, 1] = np.arange(count) % 20, np.arange(count) % 100
    return records.tobytes()


def write_cifar100(folder: Path, train: bytes, test: bytes) -> None:
    (folder / "cifar100").mkdir()
    (folder / "cifar100" / "train.bin").write_bytes(train)
    (folder / "cifar100" / "test.bin").write_bytes(test)


def test_cifar100_as_it_is_published(tmp_path: Path) -> None:
    data = cifar100_records(105)
    write_cifar100(tmp_path, data, cifar100_records(7))
    found = join_parts(cifar100.load(tmp_path))
    assert (found.classes, found.train.x.shape, len(found.test)) == (100, (105, 3, 32, 32), 7)
    assert found.train.y.tolist() == [*range(100), *range(5)]
    record = np.frombuffer(data[3074 : 2 * 3074], np.uint8)
    np.testing.assert_array_equal(found.train.x[1].reshape(-1), record[2:] / np.float32(255))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (cifar100_records(3)[:-1], "not 1 to 50000 records of 3074 bytes"),
        (cifar100_records(1) + b"\x14" + cifar100_records(1)[1:], "record 2: has the coarse label 20, above 19"),
        (b"\x01\x64" + cifar100_records(1)[2:], "record 1: has the fine label 100, above 99"),
    ],
    ids=["short", "coarse", "fine"],
)
def test_damaged_cifar100(data: bytes, words: str, tmp_path: Path) -> None:
    write_cifar100(tmp_path, data, cifar100_records(1))
    with pytest.raises(DataUnavailableError, match=f"train.bin.*{words}"):
        join_parts(cifar100.load(tmp_path))


def shard(**writers: int) -> dict[str, Any]:
    """Return a file of LEAF; image i of a writer has the label i, and pixels i / 100."""
    return {
        "users": list(writers),
        "num_samples": list(writers.values()),
        "user_data": {
            user: {"x": [[i / 100] * 784 for i in range(count)], "y": list(range(count))}
            for user, count in writers.items()
        },
    }


def write_femnist(folder: Path, part: str, name: str, content: Any) -> Path:
    path = folder / "femnist" / part / f"all_data_{name}_niid_0_keep_0_{part}_9.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_femnist_as_leaf_writes_it(tmp_path: Path) -> None:
    write_femnist(tmp_path, "train", "0", shard(f0002_1=3, f0001_2=2))
    write_femnist(tmp_path, "train", "1", shard(f0000_3=1, f0009_4=0))
    write_femnist(tmp_path, "test", "0", shard(f0002_1=1))
    found = join_parts(femnist.load(tmp_path))
    assert (found.classes, found.train.x.shape, found.test.x.shape) == (62, (6, 1, 28, 28), (1, 1, 28, 28))
    assert found.train.x.dtype == np.float32
    assert found.subjects is not None
    assert found.subjects.tolist() == [0, 1, 1, 2, 2, 2]
    assert found.train.y.tolist() == [0, 0, 1, 0, 1, 2]
    assert found.train.x[5, 0, 27, 27] == np.float32(0.02)
    assert found.note == "femnist: left out 1 writers without samples"


def write_femnist_pixels(folder: Path, pixels: dict[str, Any]) -> None:
    """Write a file of LEAF with one writer for each entry."""
    for number, (user, x) in enumerate(pixels.items()):
        entry = {"users": [user], "num_samples": [len(x)], "user_data": {user: {"x": x, "y": [0] * len(x)}}}
        write_femnist(folder, "train" if number else "test", str(number), entry)


@pytest.mark.parametrize("whole", [True, False])
def test_femnist_keeps_the_bits_of_its_pixels(whole: bool, tmp_path: Path) -> None:
    """Bytes where that keeps them; a single other number makes all samples float32."""
    pixels = (np.arange(784 * 2).reshape(2, 784) % 256 / 255).tolist()
    other = [[*pixels[0][:-1], pixels[0][-1] if whole else 0.3]]
    write_femnist_pixels(tmp_path, {"a": pixels, "b": other, "c": pixels})
    found = join_parts(femnist.load(tmp_path))
    assert isinstance(found.train.x, StoredSamples) == whole
    expected = np.array(other + pixels, np.float32).reshape(-1, 1, 28, 28)
    np.testing.assert_array_equal(found.train.x, expected)
    np.testing.assert_array_equal(found.test.x, expected[1:])


@pytest.mark.long
def test_femnist_takes_the_memory_of_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDQUILT_CACHE", str(tmp_path / "cache"))
    peaks = []
    for count in (3, 24):
        folder = tmp_path / str(count)
        write_femnist_pixels(folder, {f"{n}": [[n % 256 / 255] * 784] * 60 for n in range(count)})
        tracemalloc.start()
        try:
            load_prepared("femnist", folder / "femnist", functools.partial(femnist.load, folder))
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


def changed(key: str, value: Any) -> dict[str, Any]:
    content = shard(a=2)
    content["user_data"]["a"][key] = value
    return content


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"users": [],\n"num_samples"', "line 2: is not JSON"),
        ({"users": ["a"]}, "lacks users, num_samples, user_data"),
        (shard(a=2) | {"num_samples": [3]}, "writer 'a': has 2 images and 2 labels, but num_samples is 3"),
        (shard(a=2) | {"num_samples": []}, "has 1 users, but 0 num_samples"),
        (shard(a=2) | {"user_data": {}}, "writer 'a': x must be images of 784 numbers each, and y labels; fetch"),
        (changed("x", [[0.5] * 783] * 2), "writer 'a': x must be images of 784 numbers each, and y labels; fetch"),
        (changed("x", [[float("nan")] * 784] * 2), "writer 'a': has a pixel that is not from 0 to 1"),
        (changed("y", [1, 62]), "writer 'a': has a label that is not from 0 to 61"),
        (changed("x", [[10**400] * 784] * 2), "writer 'a': x must be images"),
        (changed("y", [1, 10**400]), "writer 'a': x must be images"),
        (shard(a=2) | {"users": [["a"]]}, "has a user whose name is no text"),
        ({"users": ["a", "a"], "num_samples": [2, 2], "user_data": shard(a=2)["user_data"]}, "'a' is there twice"),
        ("[" * 100_000, "cannot be read as JSON"),
        ("9" * 5000, "cannot be read as JSON"),
        (shard(), "holds no JSON file with samples"),
    ],
    ids=[
        "json",
        "keys",
        "count",
        "counts",
        "user",
        "pixels",
        "nan",
        "label",
        "large pixel",
        "large label",
        "no name",
        "twice",
        "brackets",
        "digits",
        "empty",
    ],
)
def test_damaged_femnist(content: Any, words: str, tmp_path: Path) -> None:
    write_femnist(tmp_path, "train", "0", content)
    write_femnist(tmp_path, "test", "0", shard(a=1))
    with pytest.raises(DataUnavailableError, match=words):
        femnist.load(tmp_path)


def test_a_writer_in_two_files(tmp_path: Path) -> None:
    for name in "01":
        write_femnist(tmp_path, "train", name, shard(a=1))
    with pytest.raises(DataUnavailableError, match="writer 'a' is there twice; remove one of the two"):
        femnist.load(tmp_path)
