"""Read the records of TensorFlow, ``tf.train.Example``, without TensorFlow.

An Example is a protocol buffer: a map from the name of a feature to a list of bytes, of floats or of whole numbers
(tensorflow/core/example/feature.proto). A field begins with its number and the kind of its value, and bytes begin with
their length (https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

from collections.abc import Iterator

from fedquilt_common.errors import FedquiltError

_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
"""Bytes of a value by its kind."""
_FEATURES = _FEATURE = _NAME = _BYTES_LIST = _VALUE = 1
_CONTENT = 2


class DamagedRecordError(FedquiltError):
    """A record is no Example, or lacks a feature."""

    exit_code = 5


def read_bytes(record: bytes, name: str) -> bytes:
    """Return the first value of a feature of bytes.

    Args:
        record: a serialised Example.
        name: of the feature.

    Raises:
        DamagedRecordError: the record is truncated, is no Example, or has no such feature.
    """
    for features in _find(record, _FEATURES):
        for feature in _find(features, _FEATURE):
            if next(_find(feature, _NAME), None) == name.encode():
                for content in _find(feature, _CONTENT):
                    for values in _find(content, _BYTES_LIST):
                        for value in _find(values, _VALUE):
                            return value
    raise DamagedRecordError(f"a record has no feature '{name}' of bytes")


def _find(message: bytes, wanted: int) -> Iterator[bytes]:
    """Return the values of bytes of one field."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, at = _read_varint(message, at)
            continue
        if kind != _BYTES and kind not in _FIXED:
            raise DamagedRecordError(f"a record has a value of the unknown kind {kind}")
        length, at = _read_varint(message, at) if kind == _BYTES else (_FIXED[kind], at)
        if at + length > len(message):
            raise DamagedRecordError("a record is truncated")
        if number == wanted and kind == _BYTES:
            yield message[at : at + length]
        at += length


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a whole number, 7 bits in a byte, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        value |= (message[at] & 127) << shift
        at += 1
        if message[at - 1] < 128:
            return value, at
    raise DamagedRecordError("a record is truncated")
