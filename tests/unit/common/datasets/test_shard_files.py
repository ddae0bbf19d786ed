"""The samples of one client as a file: the same numbers, the same bytes on every machine, and nothing else accepted."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedquilt_common.datasets.shard_files import DatasetForm, Shard, form_of, read_shard, write_shard
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.stored_samples import as_samples, as_stored
from fedquilt_common.types import Dataset, Examples

FORM = DatasetForm("made", (2, 3), "float32", 4, "classification")


def images(count: int) -> Examples:
    stored = np.arange(count * 6, dtype=np.uint8).reshape(count, 2, 3)
    return Examples(as_samples(stored, 255.0), np.arange(count) % 4)


@pytest.mark.parametrize("tested", [0, 3])
def test_bytes_stay_bytes_and_give_the_same_numbers(tmp_path: Path, tested: int) -> None:
    shard = Shard(images(7), images(tested))
    blob = write_shard(tmp_path / "s.safetensors", shard)
    found = read_shard(blob.path, FORM)
    for mine, other in ((found.train, shard.train), (found.test, shard.test)):
        np.testing.assert_array_equal(mine.x, other.x)
        np.testing.assert_array_equal(mine.y, other.y)
        assert as_stored(mine.x).rows.dtype == np.uint8
    assert blob.size < 1200
    again = write_shard(tmp_path / "t.safetensors", shard)
    assert (again.digest, again.size) == (blob.digest, blob.size)
    assert hashlib.sha256(blob.path.read_bytes()).hexdigest() == blob.digest


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int16", "uint8"])
def test_numbers_of_every_type_stay_as_they_are(tmp_path: Path, dtype: str) -> None:
    x = np.array([[1, 2], [3, 250]], dtype=dtype)
    y = np.array([[0.1], [2.5]])
    write_shard(tmp_path / "s", Shard(Examples(x, y), Examples(x[:0], y[:0])))
    form = DatasetForm("made", (2,), dtype, 0, "", (1,), "float64")
    train = read_shard(tmp_path / "s", form).train
    np.testing.assert_array_equal(train.x, x)
    np.testing.assert_array_equal(train.y, y)
    assert (train.x.dtype, train.y.dtype) == (x.dtype, y.dtype)


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (
            replace(FORM, shape=(6,)),
            r"of shape \[2, 3\], but those of the experiment are float32 of shape \[6\]",
        ),
        (replace(FORM, dtype="int64"), "those of the experiment are int64"),
        (replace(FORM, classes=3), "labels from 0 to 3, but the experiment has the classes 0 to 2"),
        (replace(FORM, label_dtype="float32"), "its labels are int64"),
    ],
)
def test_samples_of_another_experiment_are_refused(tmp_path: Path, form: DatasetForm, reason: str) -> None:
    write_shard(tmp_path / "s.safetensors", Shard(images(7), images(0)))
    with pytest.raises(DataUnavailableError, match=reason):
        read_shard(tmp_path / "s.safetensors", form)


@pytest.mark.parametrize("content", [b"", b"x" * 100, None])
def test_a_file_that_is_no_shard_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "s.safetensors"
    if content is None:
        write_shard(path, Shard(images(2), images(0)))
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.write_bytes(content)
    with pytest.raises(DataUnavailableError, match=r"s.safetensors: is not a shard of samples: .*delete it"):
        read_shard(path, FORM)


def test_the_form_of_a_data_set() -> None:
    dataset = Dataset("made", images(5), images(2), 4, task="classification")
    assert form_of(dataset) == FORM
    empty = FORM.without_samples()
    assert (empty.input_shape, len(empty.train), empty.train.y.dtype) == ((2, 3), 0, np.dtype(np.int64))
