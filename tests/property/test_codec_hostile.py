"""Containers from an untrusted sender raise PayloadError only, and sizes that they merely claim take no memory."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedquilt_common.errors import PayloadError
from fedquilt_common.wire.codec import FileArrays, write_arrays
from fedquilt_common.wire.container_header import MAX_HEADER

SMALL = 4 * 1024 * 1024


def made(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """Build a container with any header (an object or raw bytes), which claims any length of the header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def tensor(dtype: str = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def opened(path: Path, content: bytes) -> None:
    """Open the container and read its arrays, as a receiver does."""
    path.write_bytes(content)
    tracemalloc.start()
    try:
        arrays = FileArrays(path)
        for name in arrays:
            assert arrays[name].shape == arrays.shape(name)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < SMALL + 40 * len(content)


HOSTILE = {
    "nothing": b"",
    "half a length": b"\x10\x00\x00",
    "no header": (100).to_bytes(8, "little"),
    "length of everything": made({}, length=2**64 - 1),
    "length of a terabyte": made({}, length=2**40),
    "length past the end": made({}, length=3),
    "length of nothing": made({}, length=0),
    "not json": made(b"not json"),
    "not text": made(b"\xff\xfe\xfd"),
    "a pickle": made(b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x04eval\x94."),
    "a list": made([]),
    "a number for a tensor": made({"a": 1}),
    "no offsets": made({"a": {"dtype": "F32", "shape": [1]}}, bytes(4)),
    "half of a character in a name": made(b'{"\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)),
    "half of a character in metadata": made(b'{"__metadata__":{"fedquilt":"\\ud800"}}'),
    "half of a character in metadata of written form": made(
        b'{"__metadata__":{"fedquilt-sum":"\\udfff"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)
    ),
    "deep": made(b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
    "offsets overlap": made({"a": tensor(), "b": tensor(offsets=(2, 6))}, bytes(6)),
    "offsets are the same": made({"a": tensor(), "b": tensor()}, bytes(4)),
    "offsets leave a gap": made({"a": tensor(), "b": tensor(offsets=(8, 12))}, bytes(12)),
    "offsets go back": made({"a": tensor(offsets=(4, 0))}, bytes(4)),
    "offsets past the end": made({"a": tensor(shape=(2,), offsets=(0, 8))}, bytes(4)),
    "offsets are negative": made({"a": tensor(offsets=(-4, 0))}, bytes(4)),
    "bytes behind the last": made({"a": tensor()}, bytes(5)),
    "no bytes": made({"a": tensor()}),
    "shape and bytes differ": made({"a": tensor(shape=(2,))}, bytes(4)),
    "shape is negative": made({"a": tensor(shape=(-1,))}, bytes(4)),
    "shape is a fraction": made({"a": tensor(shape=(1.5,))}, bytes(4)),
    "shape overflows": made({"a": tensor(shape=(2**62, 2**62), offsets=(0, 0))}),
    "shape is empty but vast": made({"a": tensor(shape=(0, 2**63 - 1), offsets=(0, 0))}),
    "shape is empty but past 64 bits": made({"a": tensor(shape=(0, 2**64 - 1), offsets=(0, 0))}),
    "shape has too many dimensions": made({"a": tensor(shape=[1] * 70)}, bytes(4)),
    "dtype that numpy has not": made({"a": tensor("F8_E4M3", (4,))}, bytes(4)),
    "dtype that is never sent": made({"a": tensor("U32")}, bytes(4)),
    "dtype that does not exist": made({"a": tensor("PICKLE")}, bytes(4)),
    "metadata is not text": made({"__metadata__": {"fedquilt": 1}, "a": tensor()}, bytes(4)),
    "metadata is an array": made(
        b'{"__metadata__":{},"__metadata__":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)
    ),
    "metadata is an array of another spelling": made(
        b'{"\\u005f_metadata__":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)
    ),
    "metadata is a list": made({"__metadata__": [], "a": tensor()}, bytes(4)),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_containers(tmp_path: Path, what: str) -> None:
    with pytest.raises(PayloadError, match="not a safetensors container"):
        opened(tmp_path / "x", HOSTILE[what])


def test_a_header_that_is_really_too_long(tmp_path: Path) -> None:
    with pytest.raises(PayloadError, match="header is longer than the limit or the file"):
        opened(tmp_path / "x", made(b"{" + b" " * MAX_HEADER + b"}"))


def test_the_message_is_short_whatever_the_name(tmp_path: Path) -> None:
    with pytest.raises(PayloadError) as caught:
        opened(tmp_path / "x", made({"n" * 100_000: tensor("U32")}, bytes(4)))
    assert len(str(caught.value)) <= 300


def tried(path: Path, content: bytes) -> None:
    with contextlib.suppress(PayloadError):
        opened(path, content)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that each example writes anew."""
    return tmp_path_factory.mktemp("tried") / "x"


@settings(deadline=None)
@given(content=st.binary(max_size=200))
@example(content=made({}))
def test_random_bytes(place: Path, content: bytes) -> None:
    tried(place, content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NUMBER = st.integers(0, 8) | st.integers(-(2**66), 2**66)
TENSOR = st.fixed_dictionaries({
    "dtype": st.sampled_from(["F32", "F16", "BF16", "I64", "BOOL", "U8", "F4", "X"]) | JSON,
    "shape": st.lists(NUMBER, max_size=4) | JSON,
    "data_offsets": st.tuples(NUMBER, NUMBER) | JSON,
})  # fmt: skip


@settings(deadline=None, max_examples=100)
@given(
    header=st.dictionaries(st.text(max_size=3) | st.just("__metadata__"), TENSOR | JSON, max_size=3),
    data=st.binary(max_size=24),
)
def test_random_headers(place: Path, header: dict[str, Any], data: bytes) -> None:
    tried(place, made(json.dumps(header).encode(), data))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(3), "e": np.zeros((0, 2), np.float32)}
    blob = write_arrays(tmp_path_factory.mktemp("sound") / "x", arrays, metadata={"fedquilt": "{}"})
    return blob.path.read_bytes()


def test_every_truncation_is_refused(sound: bytes, tmp_path: Path) -> None:
    opened(tmp_path / "x", sound)
    for length in range(len(sound)):
        with pytest.raises(PayloadError):
            opened(tmp_path / "x", sound[:length])


def test_every_changed_byte_of_the_header(sound: bytes, place: Path) -> None:
    end = 8 + int.from_bytes(sound[:8], "little")
    for position in range(end):
        for flip in (0x01, 0x10, 0x80):
            tried(place, sound[:position] + bytes([sound[position] ^ flip]) + sound[position + 1 :])
