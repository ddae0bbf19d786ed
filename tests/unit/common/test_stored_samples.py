"""Samples that are converted when they are read behave as the array of all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedquilt_common import stored_samples
from fedquilt_common.stored_samples import FileRows, StoredSamples, as_samples, join_samples
from fedquilt_common.types import Examples

BYTES = np.random.default_rng(0).integers(0, 256, (40, 2, 3), dtype=np.uint8)
PLAIN = np.divide(BYTES, np.float32(255), dtype=np.float32)


@pytest.fixture(scope="module")
def in_file(tmp_path_factory: pytest.TempPathFactory) -> StoredSamples:
    path = tmp_path_factory.mktemp("rows") / "x.bin"
    path.write_bytes(b"head" + BYTES.tobytes())
    return StoredSamples(FileRows.open(path, BYTES.dtype, BYTES.shape, 4), 255.0)


INDICES = st.one_of(
    st.slices(40),
    st.integers(-40, 39),
    st.lists(st.integers(-40, 39), max_size=50).map(lambda found: np.array(found, dtype=np.int64)),
    st.lists(st.booleans(), min_size=40, max_size=40).map(np.array),
    st.tuples(st.slices(40), st.integers(0, 1)),
)


@given(index=INDICES)
def test_any_index_gives_what_the_array_gives(in_file: StoredSamples, index: Any) -> None:
    for samples in (in_file, StoredSamples(BYTES, 255.0)):
        found = samples[index]
        np.testing.assert_array_equal(found, PLAIN[index])
        assert found.dtype == np.float32


@given(index=st.lists(st.integers(0, 39), max_size=50).map(lambda found: np.array(found, dtype=np.int64)))
def test_a_selection_of_a_selection(in_file: StoredSamples, index: NDArray[np.int64]) -> None:
    half = in_file.select(np.arange(0, 40, 2))
    inner = index[index < 20]
    np.testing.assert_array_equal(np.asarray(half.select(inner)), PLAIN[::2][inner])


def test_a_large_selection_stays_in_the_file(in_file: StoredSamples, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(in_file.select(np.arange(3)).rows, np.ndarray)
    monkeypatch.setattr(stored_samples, "_SMALL", 10)
    chosen = in_file.select(np.array([5, 3, 30]))
    assert isinstance(chosen.rows, FileRows)
    np.testing.assert_array_equal(chosen[np.array([2, 0])], PLAIN[[30, 5]])


def test_it_behaves_as_an_array(in_file: StoredSamples) -> None:
    examples = Examples(as_samples(in_file.rows, 255.0), np.arange(40))
    x = examples.x
    assert (x.shape, x.dtype, x.ndim, len(x)) == ((40, 2, 3), np.dtype(np.float32), 3, 40)
    assert x.max() == PLAIN.max()
    np.testing.assert_array_equal(x * 2 + 1, PLAIN * 2 + 1)
    np.testing.assert_array_equal(np.concatenate([x, x]), np.concatenate([PLAIN, PLAIN]))
    np.testing.assert_array_equal(x.reshape(40, -1), PLAIN.reshape(40, -1))
    np.testing.assert_array_equal(examples.take(np.array([7, 1])).x, PLAIN[[7, 1]])


def test_a_file_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(BYTES.tobytes())
    rows = FileRows.open(path, BYTES.dtype, BYTES.shape)
    path.write_bytes(BYTES.tobytes()[:-1])
    with pytest.raises(OSError, match="ends at byte 239"):
        _ = rows[:]


def test_a_file_that_was_replaced_keeps_its_samples(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(BYTES.tobytes())
    rows = FileRows.open(path, BYTES.dtype, BYTES.shape)
    path.unlink()
    np.testing.assert_array_equal(rows[:], BYTES)


def test_joined_samples_stay_bytes() -> None:
    joined = join_samples([as_samples(BYTES, 255.0), as_samples(BYTES, 255.0)])
    assert isinstance(joined, StoredSamples)
    assert joined.rows.dtype == np.uint8
    mixed = join_samples([as_samples(BYTES, 255.0), PLAIN])
    assert isinstance(mixed, np.ndarray)
    np.testing.assert_array_equal(joined, mixed)
    assert isinstance(join_samples([PLAIN, PLAIN]), np.ndarray)
