"""Stack Overflow: the next word in sentences of questions and answers, by the user who wrote them.

The data set ``tff.simulation.datasets.stackoverflow`` of TensorFlow Federated, on which FedRolex trains its Transformer
(Alam, Liu, Yan and Zhang, "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction", NeurIPS
2022). Reads TensorFlow Federated's files in ``<FEDQUILT_DATA>/stack-overflow``: the database ``stackoverflow.sqlite``,
unpacked from ``stackoverflow.sqlite.lzma``, and ``stackoverflow.word_count.tar.bz2``. A row of the database is a
sentence: its split, its user, and a ``tf.train.Example`` whose ``tokens`` are words with blanks between them.

The preparation is TensorFlow Federated's for this task: 10,000 words, sentences of 20 words, with a number for the
beginning, the end and words outside the vocabulary. 0 pads. Of 135,818,730 sentences for training, at most the first
128 of each of the first 1,000 users are read, and of those for testing the first 10 of each of the first 1,000. The
users are sorted by their identifiers.
"""

from __future__ import annotations

import sqlite3
import urllib.parse
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.archives import read_files
from fedquilt_common.datasets.files import dataset_folder
from fedquilt_common.datasets.repairs import describe_repairs
from fedquilt_common.datasets.tf_example import DamagedRecordError, read_bytes
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.plurals import counted
from fedquilt_common.types import Dataset, Examples

NAME = "stack-overflow"
DATABASE, WORD_COUNTS = "stackoverflow.sqlite", "stackoverflow.word_count"
WORDS = 10_000
LENGTH = 20
PAD, UNKNOWN, BEGIN, END = 0, WORDS + 1, WORDS + 2, WORDS + 3
"""Numbers besides those of the words, which are from 1 to 10,000."""
CLASSES = WORDS + 4


@dataclass(frozen=True)
class _Extent:
    """How much of a split is read.

    Attributes:
        users: the first ones, by their identifiers.
        sentences: the first ones of each user.
    """

    users: int
    sentences: int


PARTS: Mapping[str, _Extent] = {"train": _Extent(1000, 128), "test": _Extent(1000, 10)}
"""What is read of each split; the split ``heldout`` is not used."""


def load(folder: Path | None = None) -> Dataset:
    """Load the sentences: ``x`` and ``y`` int64 of shape (n, 20) from 0 to 10,003.

    ``y`` has the word after each word of ``x``; 0 where a sentence has ended. The subjects are the users, from 0.

    Raises:
        DataUnavailableError: files are missing or damaged; the error names the file, and the line or the user.
    """
    place, repairs = dataset_folder(folder, NAME), Counter[str]()
    vocabulary = _read_vocabulary(place)
    with closing(_open_database(place)) as database:
        train, users = _read_part(database, "train", vocabulary, repairs, place)
        test, others = _read_part(database, "test", vocabulary, repairs, place)
    notes = [_describe_users("train", users), _describe_users("test", others), *describe_repairs(repairs)]
    return Dataset(NAME, train, test, CLASSES, users, f"{NAME}: {'; '.join(notes)}", "next-word")


def _describe_users(split: str, users: NDArray[np.int64]) -> str:
    """Return a note on how many users there are, by the user of each sentence."""
    count, part = len(np.unique(users)), PARTS[split]
    fewer = f" instead of {part.users}" if count < part.users else ""
    return f"{split}: the first {part.sentences} sentences of {counted(count, 'user')}{fewer}"


def _read_vocabulary(place: Path) -> dict[bytes, int]:
    """Return the number of each word: the first lines of the word counts, which are in descending order."""
    file = next(read_files(place, WORD_COUNTS.__eq__), None)
    if file is None:
        raise DataUnavailableError(
            f"{place}: has no {WORD_COUNTS}.tar.bz2; put TensorFlow Federated's file there, or {WORD_COUNTS} out of it"
        )
    words = dict[bytes, int]()
    for line, content in enumerate(file.data.splitlines()[:WORDS], 1):
        words[_read_word(content, f"{file.where}, line {line}")] = line
    if len(words) != WORDS:
        raise DataUnavailableError(
            f"{file.where}: has {len(words)} different words in its first {WORDS} lines; fetch the file again"
        )
    return words


def _read_word(content: bytes, where: str) -> bytes:
    fields = content.split()
    if len(fields) != 2 or not fields[1].isdigit():
        raise DataUnavailableError(f"{where}: is not a word and its count; fetch the file again")
    return fields[0]


def _open_database(place: Path) -> sqlite3.Connection:
    path = place / DATABASE
    if not path.is_file():
        packed = place / f"{DATABASE}.lzma"
        advice = f"unpack it with xz --format=lzma --decompress {packed}" if packed.is_file() else "put it there"
        raise DataUnavailableError(f"{path}: there is no such file; {advice}")
    address = f"file:{urllib.parse.quote(str(path.resolve()))}?mode=ro&immutable=1"
    return sqlite3.connect(address, uri=True)


def _read_part(
    database: sqlite3.Connection, split: str, vocabulary: Mapping[bytes, int], repairs: Counter[str], place: Path
) -> tuple[Examples, NDArray[np.int64]]:
    """Return the sentences of a split, and the user of each."""
    rows, numbers = list[list[int]](), list[int]()
    try:
        for user, sentences in _read_users(database, split):
            own = [number_words(words, vocabulary) for words in sentences if words]
            repairs["sentences without words left out"] += len(sentences) - len(own)
            repairs["users without sentences left out"] += not own
            rows += own
            numbers += [user] * len(own)
    except (sqlite3.Error, DamagedRecordError) as error:
        raise DataUnavailableError(
            f"{place / DATABASE}: its split {split} cannot be read ({error}); fetch the file again"
        ) from error
    if not rows:
        raise DataUnavailableError(f"{place / DATABASE}: has no sentences of the split {split}; fetch the file again")
    sequences = np.array(rows, dtype=np.int64)
    return Examples(sequences[:, :-1].copy(), sequences[:, 1:].copy()), np.array(numbers, dtype=np.int64)


def _read_users(database: sqlite3.Connection, split: str) -> Iterator[tuple[int, list[list[bytes]]]]:
    """Return each user's number, from 0, and the words of their sentences."""
    part = PARTS[split]
    users = database.execute(
        "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ? ORDER BY client_id LIMIT ?",
        (split, part.users),
    ).fetchall()
    for number, (user,) in enumerate(users):
        records = database.execute(
            "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? "
            "ORDER BY rowid LIMIT ?",
            (split, user, part.sentences),
        )
        yield number, [_read_words(record, user) for (record,) in records]


def _read_words(record: object, user: object) -> list[bytes]:
    try:
        if not isinstance(record, bytes):
            raise DamagedRecordError("a record is not bytes")
        return read_bytes(record, "tokens").split()
    except DamagedRecordError as error:
        raise DamagedRecordError(f"user {user}: {error}") from None


def number_words(words: list[bytes], vocabulary: Mapping[bytes, int]) -> list[int]:
    """Return a sentence as 21 numbers: its beginning, up to 20 words, its end if there is room, and zeros.

    Args:
        words: at least one.
        vocabulary: number of each known word.
    """
    numbers = [BEGIN, *(vocabulary.get(word, UNKNOWN) for word in words[:LENGTH]), END][: LENGTH + 1]
    return numbers + [PAD] * (LENGTH + 1 - len(numbers))
