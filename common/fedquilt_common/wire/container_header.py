"""The header of a safetensors container, as JSON: names, dtypes, shapes and places of its arrays, and texts.

It is read without the library, whose reader needs a file of its own for each container. A coordinator reads thousands
of small ones in each round, which are in memory or share a file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fedquilt_common.errors import PayloadError

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
_METADATA: Final = "__metadata__"


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


def read_header(header: bytes, size: int) -> tuple[dict[str, str], dict[str, ArrayPlace]]:
    """Return the texts of a container, and its arrays in the order of their bytes.

    Args:
        header: the JSON text.
        size: bytes of the whole container.

    Raises:
        PayloadError: the header is no valid one, arrays overlap or leave gaps, or their dtypes are never sent.
    """
    try:
        fields = json.loads(header.decode())
        texts = _read_texts(fields.pop(_METADATA, None))
        places = _read_places(fields, LENGTH_BYTES + len(header))
        end = max((place.start + _bytes_of(place) for place in places.values()), default=LENGTH_BYTES + len(header))
        if end != size:
            raise ValueError(f"its arrays end at byte {end} of {size}")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise PayloadError(f"not a safetensors container: {error}"[:300]) from None
    return texts, places


def _read_texts(found: Mapping[str, Any] | None) -> dict[str, str]:
    if found is not None and not (isinstance(found, dict) and all(isinstance(text, str) for text in found.values())):
        raise ValueError("its metadata are not texts")
    return dict(found or {})


def _read_places(fields: Mapping[str, Any], start: int) -> dict[str, ArrayPlace]:
    """Return the places of arrays that follow one another from byte ``start`` on."""
    places, at = {}, start
    for name, field in sorted(fields.items(), key=lambda item: tuple(item[1]["data_offsets"])):
        place = ArrayPlace(field["dtype"], _read_shape(name, field["shape"]), at)
        if place.dtype not in DTYPES:
            raise ValueError(f"fedquilt does not send the dtype {place.dtype} of {name[:80]!r}")
        if field["data_offsets"] != [at - start, at - start + _bytes_of(place)]:
            raise ValueError(f"array {name[:80]!r} does not lie where the one before it ends, or has another size")
        places[name] = place
        at += _bytes_of(place)
    return places


def _read_shape(name: str, shape: Any) -> tuple[int, ...]:
    if not (isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)):
        raise ValueError(f"the shape of {name[:80]!r} is no list of sizes")
    if len(shape) > MAX_DIMENSIONS or math.prod(n or 1 for n in shape) > MAX_ELEMENTS:
        raise ValueError(f"the shape of {name[:80]!r} is beyond what an array can have")
    return tuple(shape)


def _bytes_of(place: ArrayPlace) -> int:
    return place.size * DTYPES[place.dtype].itemsize
