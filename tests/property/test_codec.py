"""Arrays to bytes and back: exact if the format can hold them, otherwise rounded as torch rounds."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from fedquilt_common.errors import PayloadError
from fedquilt_common.types import Precision
from fedquilt_common.wire.codec import (
    FileArrays,
    block,
    wire_dtype,
    write_arrays,
)
from fedquilt_common.wire.narrowing import from_bf16, to_bf16

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda name: name != "__metadata__")
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
INTEGERS = st.sampled_from([np.int64, np.int32, np.int16, np.int8, np.uint8, np.bool_])
BITS32 = hnp.arrays(np.uint32, hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=40))


@contextmanager
def container() -> Iterator[Path]:
    """Create a folder for one example and give a path in it; hypothesis does not renew ``tmp_path``."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name) / "a" / "container"


def _numbers(dtype: Any, shape: tuple[int, ...], seed: int) -> NDArray[Any]:
    """Return finite numbers of any bits; one in four is small, zero or an end of the range."""
    kind, rng = np.dtype(dtype), np.random.default_rng(seed)
    limits = np.finfo(kind) if kind.kind == "f" else np.iinfo("u1" if kind.kind == "b" else kind)
    edges = np.array([limits.min, limits.max, 0, 1]).astype(kind)
    if kind.kind == "f":
        edges = np.array([*edges, -edges[2], np.finfo(kind).smallest_subnormal], kind)
    any_bits = np.frombuffer(rng.bytes(kind.itemsize * math.prod(shape)), f"u{kind.itemsize}").reshape(shape)
    found = any_bits % 2 == 1 if kind.kind == "b" else any_bits.view(kind)
    kept = np.isfinite(found) & (rng.random(shape) < 0.75)
    return np.asarray(np.where(kept, found, rng.choice(edges, shape)))


def arrays_of(dtypes: st.SearchStrategy[Any]) -> st.SearchStrategy[NDArray[Any]]:
    return st.builds(_numbers, dtypes, SHAPES, st.integers(0, 2**32 - 1))


def finite(width: Literal[16, 32, 64]) -> st.SearchStrategy[NDArray[Any]]:
    return arrays_of(st.just(f"f{width // 8}"))


def dictionaries(arrays: st.SearchStrategy[NDArray[Any]]) -> st.SearchStrategy[dict[str, NDArray[Any]]]:
    return st.dictionaries(NAMES, arrays | arrays_of(INTEGERS), max_size=4)


def sent(path: Path, arrays: Mapping[str, NDArray[Any]], precision: Precision = "fp32") -> FileArrays:
    return FileArrays(write_arrays(path, arrays, precision).path)


@settings(deadline=None)
@given(
    dictionaries(finite(16) | finite(32) | finite(64)), st.none() | st.text(st.characters(exclude_categories=["Cs"]))
)
def test_a_container_is_what_safetensors_writes(arrays: dict[str, NDArray[Any]], text: str | None) -> None:
    metadata = None if text is None else {"key": text}
    with container() as path:
        write_arrays(path, arrays, None, metadata)
        assert path.read_bytes() == safetensors.numpy.save(arrays, metadata)


@pytest.mark.parametrize(("precision", "half"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_halves_lie_where_safetensors_puts_them(tmp_path: Path, precision: Precision, half: torch.dtype) -> None:
    kinds = (np.int64, np.int32, np.int16, np.int8, np.uint8, np.bool_, np.float32)
    arrays: dict[str, NDArray[Any]] = {str(number): np.ones((2, 3), kind) for number, kind in enumerate(kinds)}
    write_arrays(tmp_path / "x", arrays, precision)
    tensors = {name: torch.from_numpy(x) for name, x in arrays.items()}
    tensors |= {name: tensor.to(half) for name, tensor in tensors.items() if tensor.is_floating_point()}
    assert (tmp_path / "x").read_bytes() == safetensors.torch.save(tensors)


def assert_same(found: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]]) -> None:
    assert set(found) == set(expected)
    for name, x in expected.items():
        assert found[name].dtype == (np.float32 if x.dtype.kind == "f" else x.dtype)
        assert found[name].shape == x.shape
        np.testing.assert_array_equal(found[name], x)


@settings(deadline=None)
@given(dictionaries(finite(32)))
def test_fp32_and_integers_are_exact(arrays: dict[str, NDArray[Any]]) -> None:
    with container() as path:
        found = sent(path, arrays)
        assert_same(found, arrays)
        assert {name: found.shape(name) for name in found} == {name: x.shape for name, x in arrays.items()}
        assert {name: found.dtype(name) for name in found} == {
            name: wire_dtype(x.dtype, "fp32") for name, x in arrays.items()
        }


@settings(deadline=None)
@given(dictionaries(finite(16).map(lambda x: x.astype(np.float32))))
def test_what_fp16_can_hold_is_exact(arrays: dict[str, NDArray[Any]]) -> None:
    with container() as path:
        assert_same(sent(path, arrays, "fp16"), arrays)


@settings(deadline=None)
@given(dictionaries(finite(32).map(lambda x: (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32))))
def test_what_bf16_can_hold_is_exact(arrays: dict[str, NDArray[Any]]) -> None:
    with container() as path:
        assert_same(sent(path, arrays, "bf16"), arrays)


@given(BITS32)
def test_bf16_rounds_as_torch_does(bits: NDArray[np.uint32]) -> None:
    x = bits.view(np.float32)
    expected = torch.from_numpy(x.copy()).to(torch.bfloat16).to(torch.float32).numpy()
    found = from_bf16(to_bf16(x))
    assert found.shape == x.shape
    np.testing.assert_array_equal(np.isnan(found), np.isnan(x))
    number = ~np.isnan(x)
    np.testing.assert_array_equal(found[number].view(np.uint32), expected[number].view(np.uint32))


@pytest.mark.parametrize(
    ("bits", "rounded"),
    [
        (0x3F808000, 0x3F80),  # a tie goes to the even neighbour below
        (0x3F818000, 0x3F82),  # and above
        (0x3F808001, 0x3F81),
        (0x3F807FFF, 0x3F80),
        (0x80000001, 0x8000),
        (0x7F7FFFFF, 0x7F80),  # the largest fp32 becomes infinity, as in torch
        (0xFF800000, 0xFF80),
        (0x7F800001, 0x7FC0),  # a NaN whose lower half alone says so must not become infinity
        (0xFFFFFFFF, 0x7FC0),
    ],
)
def test_bf16_at_the_edges(bits: int, rounded: int) -> None:
    assert to_bf16(np.array([bits], np.uint32).view(np.float32)).tolist() == [rounded]
    assert to_bf16(np.array(bits, np.uint32).view(np.float32)).tolist() == rounded


@given(st.floats(65505, 2.0**127, width=32), st.booleans())
def test_fp16_overflow_is_refused(number: float, negative: bool) -> None:
    x = np.array([1, -number if negative else number], np.float32)
    with container() as path:
        if np.abs(x[1]) < 65520:  # still rounds to 65504
            assert abs(sent(path, {"w": x}, "fp16")["w"][1]) == 65504
            return
        with pytest.raises(PayloadError, match="'w' holds numbers beyond fp16's 65504"):
            write_arrays(path, {"w": x}, "fp16")
        assert not path.exists()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_fp64_overflow_is_refused(tmp_path: Path, precision: Precision) -> None:
    with pytest.raises(PayloadError, match=r"'w' holds numbers beyond fp32's 3\.4e38"):
        write_arrays(tmp_path / "x", {"w": np.array(1e39)}, precision)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_infinity_and_nan_arrive(tmp_path: Path, precision: Precision) -> None:
    x = np.array([np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(sent(tmp_path / "x", {"w": x}, precision)["w"], x)


@pytest.mark.parametrize("dtype", ["u2", "u4", "u8", "c8", "M8[s]", "U3", "O"])
def test_dtypes_that_are_not_sent(tmp_path: Path, dtype: str) -> None:
    with pytest.raises(PayloadError, match="cannot be sent"):
        write_arrays(tmp_path / "x", {"w": np.zeros(2, dtype)})


@settings(deadline=None)
@given(dictionaries(finite(32).map(lambda x: x.clip(-3e38, 3e38))), st.sampled_from(["fp32", "bf16"]))
def test_same_arrays_same_bytes(arrays: dict[str, NDArray[Any]], precision: Precision) -> None:
    turned = {name: np.asarray(x, order="F") for name, x in reversed(arrays.items())}
    with container() as one, container() as two:
        first = write_arrays(one, arrays, precision, {"fedquilt": "x"})
        second = write_arrays(two, turned, precision, {"fedquilt": "x"})
        assert one.read_bytes() == two.read_bytes()
        assert (first.digest, first.size) == (second.digest, second.size) == (first.digest, one.stat().st_size)
        assert FileArrays(two).metadata == {"fedquilt": "x"}


@pytest.mark.parametrize("layout", ["strided", "transposed", "big-endian", "fp64", "reversed"])
def test_memory_layouts(tmp_path: Path, layout: str) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    changed: dict[str, NDArray[Any]] = {
        "strided": np.repeat(x, 2, axis=1)[:, ::2],
        "transposed": np.ascontiguousarray(x.T).T,
        "big-endian": x.astype(">f4"),
        "fp64": x.astype(np.float64),
        "reversed": np.ascontiguousarray(x[::-1])[::-1],
    }
    np.testing.assert_array_equal(sent(tmp_path / "x", {"w": changed[layout]})["w"], x)


@settings(deadline=None)
@given(dictionaries(finite(16)), st.sampled_from(["fp32", "fp16"]), st.data())
def test_blocks_are_slices(arrays: dict[str, NDArray[Any]], precision: Precision, data: st.DataObject) -> None:
    assume(arrays)
    name = data.draw(st.sampled_from(sorted(arrays)))
    size = arrays[name].size
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    with container() as path:
        found = sent(path, arrays, precision)
        expected = arrays[name].reshape(-1)[start:stop]
        for part in (block(found, name, start, stop), block(arrays, name, start, stop)):
            np.testing.assert_array_equal(part, expected)
        part = block(found, name, start, stop)
        assert part.dtype == (np.float32 if arrays[name].dtype.kind == "f" else arrays[name].dtype)


def test_halves_are_widened_when_read(tmp_path: Path) -> None:
    halves: dict[Precision, str] = {"fp16": "F16", "bf16": "BF16"}
    for precision, name in halves.items():
        found = sent(tmp_path / "x", {"w": np.ones(3)}, precision)
        assert found.dtype("w") == name
        assert found["w"].dtype == np.float32
        assert found["w"].tolist() == [1.0, 1.0, 1.0]


def test_names_that_are_not_there(tmp_path: Path) -> None:
    found = sent(tmp_path / "x", {"w": np.ones(3)})
    with pytest.raises(KeyError):
        found["v"]
    assert "v" not in found


@pytest.mark.parametrize("number", [3.4e38, -3.4e38, np.finfo(np.float32).max])
def test_fp32_that_bf16_rounds_to_infinity_is_refused(tmp_path: Path, number: float) -> None:
    with pytest.raises(PayloadError, match=r"'w' holds numbers beyond bf16's 3\.39e38: send it as fp32"):
        write_arrays(tmp_path / "x", {"w": np.array([1, number, np.inf], np.float32)}, "bf16")
    kept = np.array([3.389e38, -3.389e38, np.inf, -np.inf, np.nan], np.float32)
    np.testing.assert_allclose(sent(tmp_path / "x", {"w": kept}, "bf16")["w"], kept, rtol=1e-3)
