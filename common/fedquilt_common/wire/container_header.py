"""The header of a safetensors container, as JSON: names, dtypes, shapes and places of its arrays, and texts.

It is read and written without the library, which needs a file of its own for each container, and makes it anew. A
coordinator reads thousands of small ones in each round, which are in memory or share a file. Large ones replace
earlier ones where they lie on the disk.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from fedquilt_common.errors import PayloadError
from fedquilt_common.wire.texts import shorten_text

LENGTH_BYTES: Final = 8
"""Bytes before the header, which hold its length, little-endian."""
MAX_HEADER: Final = 16 * 1024 * 1024
"""Most bytes of a container's header."""
MAX_DIMENSIONS: Final = 32
MAX_ELEMENTS: Final = 1 << 48
"""Most elements of an array; a dimension of 0 counts as 1, so that the other dimensions have a limit too."""
DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "F32": np.dtype("<f4"), "F64": np.dtype("<f8"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "I16": np.dtype("<i2"), "I8": np.dtype("i1"),
    "U8": np.dtype("u1"), "BOOL": np.dtype("?"),
}  # fmt: skip
_ORDER: Final = ("I64", "F64", "F32", "I32", "BF16", "F16", "I16", "I8", "U8", "BOOL")
"""Arrays lie in this order of their dtypes, as those that safetensors writes, and then in that of their names."""
_ALIGNMENT: Final = 8
_METADATA: Final = "__metadata__"
_BEGIN: Final = f'{{"{_METADATA}":'
_DECODER: Final = json.JSONDecoder()
_REMEMBERED: Final = 16
"""Descriptions of arrays that are not parsed again: the clients of an exchange send the same arrays."""
_LONGEST_REMEMBERED: Final = 64 * 1024


@dataclass(frozen=True)
class ArrayPlace:
    """Where an array lies in its container.

    Attributes:
        dtype: safetensors name of its dtype.
        start: byte of the container at which it begins.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def header_size(length: bytes, size: int) -> int:
    """Return the bytes of a container's header.

    Args:
        length: the first bytes of the container.
        size: bytes of the whole container.

    Raises:
        PayloadError: the header is longer than the limit or the container.
    """
    header = int.from_bytes(length, "little")
    if len(length) < LENGTH_BYTES or header > min(MAX_HEADER, size - LENGTH_BYTES):
        raise PayloadError("not a safetensors container: its header is longer than the limit or the file")
    return header


def pack_header(arrays: Mapping[str, tuple[str, tuple[int, ...]]], texts: Mapping[str, str]) -> tuple[bytes, list[str]]:
    """Return the bytes of a container before its numbers, and the names of the arrays in the order of their bytes.

    Args:
        arrays: dtype and shape of each array.
        texts: to store beside them.
    """
    names = sorted(arrays, key=lambda name: (_ORDER.index(arrays[name][0]), name))
    fields: dict[str, Any] = {_METADATA: dict(texts)} if texts else {}
    at = 0
    for name in names:
        dtype, shape = arrays[name]
        end = at + math.prod(shape) * DTYPES[dtype].itemsize
        fields[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    header = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    return len(header).to_bytes(LENGTH_BYTES, "little") + header, names


def read_header(header: bytes, size: int) -> tuple[dict[str, str], Mapping[str, ArrayPlace]]:
    """Return the texts of a container, and its arrays in the order of their bytes.

    Args:
        header: the JSON text.
        size: bytes of the whole container.

    Raises:
        PayloadError: the header is not valid, arrays overlap or leave gaps, or their dtypes are never sent.
    """
    try:
        texts, arrays = _divide(header.decode())
        read = _read_places if len(arrays) <= _LONGEST_REMEMBERED else _read_places.__wrapped__
        return _read_texts(texts), read(arrays, LENGTH_BYTES + len(header), size)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise PayloadError(shorten_text(f"not a safetensors container: {error}")) from None


def _divide(header: str) -> tuple[Any, str]:
    """Return the texts of a header, and the rest of it as a JSON object."""
    if header.startswith(_BEGIN + "{"):  # as safetensors writes it
        texts, end = _DECODER.raw_decode(header, len(_BEGIN))
        if header.startswith(',"', end):
            return texts, "{" + header[end + 1 :]
    if _METADATA not in header:
        return None, header
    fields = json.loads(header)
    return fields.pop(_METADATA, None), json.dumps(fields)


def _read_texts(found: Mapping[str, Any] | None) -> dict[str, str]:
    if found is not None and not (isinstance(found, dict) and all(isinstance(text, str) for text in found.values())):
        raise ValueError("its metadata are not texts")
    texts = dict(found or {})
    for name, text in texts.items():
        (name + text).encode()  # JSON can escape half of a character, which is a ValueError here
    return texts


@lru_cache(_REMEMBERED)
def _read_places(arrays: str, start: int, size: int) -> Mapping[str, ArrayPlace]:
    """Return the places of arrays that follow one another from byte ``start`` to the end of the container."""
    places, at = dict[str, ArrayPlace](), start
    for name, field in sorted(json.loads(arrays).items(), key=lambda item: tuple(item[1]["data_offsets"])):
        if name == _METADATA:
            raise ValueError(f"{_METADATA} is not a name of an array")
        name.encode()
        place = ArrayPlace(field["dtype"], _read_shape(name, field["shape"]), at)
        if place.dtype not in DTYPES:
            raise ValueError(f"fedquilt does not send the dtype {place.dtype} of {name[:80]!r}")
        if field["data_offsets"] != [at - start, at - start + _bytes_of(place)]:
            raise ValueError(f"array {name[:80]!r} does not lie where the one before it ends, or has another size")
        places[name] = place
        at += _bytes_of(place)
    if at != size:
        raise ValueError(f"its arrays end at byte {at} of {size}")
    return MappingProxyType(places)


def _read_shape(name: str, shape: Any) -> tuple[int, ...]:
    if not (isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)):
        raise ValueError(f"the shape of {name[:80]!r} is not a list of sizes")
    if len(shape) > MAX_DIMENSIONS or math.prod(n or 1 for n in shape) > MAX_ELEMENTS:
        raise ValueError(f"the shape of {name[:80]!r} is beyond what an array can have")
    return tuple(shape)


def _bytes_of(place: ArrayPlace) -> int:
    return place.size * DTYPES[place.dtype].itemsize
