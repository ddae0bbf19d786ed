"""Changes inputs at random, where atheris is not installed; the same seed gives the same inputs."""

from __future__ import annotations

import random
from collections.abc import Sequence

NUMBERS = tuple(
    number.to_bytes(size, order, signed=number < 0)
    for size in (1, 2, 4, 8)
    for number in (0, 1, -1, (1 << (8 * size - 1)) - 1, -(1 << (8 * size - 1)))
    for order in ("big", "little")
)
TOKENS = (
    *b"{}[]\":,-'!&*|>%@#~?=./\\ \n\t", b"null", b"true", b"false", b"NaN", b"Infinity", b"1e999", b"-0", b"1e-3",
    b"99999999999999999999", b"0x10", b"0o7", b"__metadata__", b"data_offsets", b"!!python/object", b"&a [*a, *a]",
    b"[" * 50, b"{" * 50, b"- " * 50, b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\\ud800", b"../", b"%00", b"%2e%2e/",
    b"mqtts://", b"KiB", b"0-999999", b"1" * 5000,
)  # fmt: skip
"""Pieces that mean something to one of the targets."""


def mutate(source: random.Random, corpus: Sequence[bytes], longest: int) -> bytes:
    """Return one of the inputs with a few changes."""
    data = bytearray(source.choice(corpus))
    for _ in range(1 << source.randrange(4)):
        _change(source, data, corpus)
        del data[longest:]
    return bytes(data)


def _change(source: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    place = source.randrange(len(data) + 1)
    match source.randrange(8):
        case 0 if data:
            data[place % len(data)] ^= 1 << source.randrange(8)
        case 1 if data:
            data[place % len(data)] = source.randrange(256)
        case 2:
            del data[place : place + source.choice((1, 1, 2, 4, 8, 64, len(data)))]
        case 3:
            data[place:place] = _token(source)
        case 4:
            token = _token(source)
            data[place : place + len(token)] = token
        case 5:
            data[place:place] = data[source.randrange(len(data) + 1) :][: source.choice((1, 4, 16, 64))]
        case 6:
            data[place:] = (other := source.choice(corpus))[source.randrange(len(other) + 1) :]
        case _:
            number = source.choice(NUMBERS)
            data[place : place + len(number)] = number


def _token(source: random.Random) -> bytes:
    token = source.choice(TOKENS)
    return bytes([token]) if isinstance(token, int) else token
