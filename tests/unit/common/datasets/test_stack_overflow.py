"""Stack Overflow: TensorFlow Federated's database and word counts, made here byte for byte."""

from __future__ import annotations

import io
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedquilt_common.datasets import stack_overflow
from fedquilt_common.datasets.tf_example import DamagedRecordError, read_bytes
from fedquilt_common.errors import DataUnavailableError

WORDS = ["the", "css3", "does", "finally", "define", "."]
KNOWN = [*WORDS, *(f"word{n}" for n in range(9994))]


def field(number: int, content: bytes) -> bytes:
    length, head = len(content), bytearray([number << 3 | 2])
    while length > 127:
        head.append(length & 127 | 128)
        length >>= 7
    return bytes([*head, length]) + content


def example(tokens: str) -> bytes:
    """Return a ``tf.train.Example`` with the features of the data set."""
    texts = {"creation_date": "2010-01-08 09:34:05 UTC", "tags": "css|css3", "title": "css", "tokens": tokens}
    features = {name: field(1, field(1, text.encode())) for name, text in texts.items()}
    features["score"] = field(3, field(1, b"\x50"))
    return field(1, b"".join(field(1, field(1, k.encode()) + field(2, v)) for k, v in features.items()))


def write(folder: Path, sentences: dict[tuple[str, str], list[str]], counts: list[str] | None = None) -> Path:
    place = folder / "stack-overflow"
    place.mkdir()
    with closing(sqlite3.connect(place / "stackoverflow.sqlite")) as database, database:
        database.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
        database.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
        for (split, user), own in sentences.items():
            database.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (user, split, len(own)))
            rows = [(split, user, example(tokens)) for tokens in own]
            database.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
    lines = [f"{word} {20_000 - n}" for n, word in enumerate(KNOWN)] if counts is None else counts
    text = "\n".join([*lines, "rare 1", ""]).encode()
    with tarfile.open(place / "stackoverflow.word_count.tar.bz2", "w:bz2") as archive:
        info = tarfile.TarInfo("stackoverflow.word_count")
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text))
    return place


def test_sentences_as_numbers(tmp_path: Path) -> None:
    long = " ".join(["the"] * 25)
    write(tmp_path, {
        ("train", "00000007"): [long, " ".join(["css3"] * 19)],
        ("train", "00000002"): ["css3 does rare define ."],
        ("heldout", "00000010"): ["the"],
        ("test", "00000002"): ["the"],
    })  # fmt: skip
    found = stack_overflow.load(tmp_path)
    begin, end, unknown = 10_002, 10_003, 10_001
    assert found.train.x.tolist() == [
        [begin, 2, 3, unknown, 5, 6, end, *[0] * 13], [begin, *[1] * 19], [begin, *[2] * 19],
    ]  # fmt: skip
    assert found.train.y.tolist() == [[2, 3, unknown, 5, 6, end, *[0] * 14], [1] * 20, [*[2] * 19, end]]
    assert found.test.y[0, :3].tolist() == [1, end, 0]
    assert found.train.x.dtype == found.train.y.dtype == np.int64
    assert (found.classes, found.task) == (10_004, "next-word")
    assert found.subjects is not None
    assert found.subjects.tolist() == [0, 1, 1]  # sorted by identifier
    assert found.note == (
        "stack-overflow: train: the first 128 sentences of 2 users instead of 1000; "
        "test: the first 10 sentences of 1 user instead of 1000"
    )


def test_what_is_read_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(stack_overflow.PARTS, "train", stack_overflow._Extent(2, 3))
    sentences = {("train", f"{n:08}"): [WORDS[i % 6] for i in range(n + 1)] for n in range(6)}
    write(tmp_path, {**sentences, ("test", "00000000"): ["the"] * 30})
    found = stack_overflow.load(tmp_path)
    assert found.train.y[:, 0].tolist() == [1, 1, 2]
    assert len(found.test) == 10
    assert "train: the first 3 sentences of 2 users; test" in found.note


def test_repairs_are_counted(tmp_path: Path) -> None:
    write(tmp_path, {("train", "1"): ["the", "", "  "], ("train", "2"): [], ("test", "1"): ["the"]})
    found = stack_overflow.load(tmp_path)
    assert len(found.train) == 1
    assert found.note.endswith("; 2 sentences without words left out; 1 user without sentences left out")


def test_test_sentences_do_not_change_the_training_samples(tmp_path: Path) -> None:
    for name, words in (("a", "the css3"), ("b", "rare unheard")):
        (tmp_path / name).mkdir()
        write(tmp_path / name, {("train", "1"): ["the rare css3"], ("test", "1"): [words]})
    before, after = (stack_overflow.load(tmp_path / name) for name in ("a", "b"))
    assert np.array_equal(before.train.x, after.train.x)
    assert not np.array_equal(before.test.x, after.test.x)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (["the 5", "a few 3"], "word_count, line 2: is not a word and its count"),
        (["the 5", "word"], "word_count, line 2: is not a word and its count"),
        (["the 5"] * 10_000, "has 1 different words in its first 10000 lines"),
        (["the 5"], "has 2 different words in its first 10000 lines"),
    ],
)
def test_wrong_word_counts(counts: list[str], words: str, tmp_path: Path) -> None:
    write(tmp_path, {}, counts)
    with pytest.raises(DataUnavailableError, match=words):
        stack_overflow.load(tmp_path)


def test_missing_files(tmp_path: Path) -> None:
    place = write(tmp_path, {})
    (place / "stackoverflow.sqlite").rename(place / "stackoverflow.sqlite.lzma")
    with pytest.raises(DataUnavailableError, match="unpack it with xz --format=lzma --decompress"):
        stack_overflow.load(tmp_path)
    (place / "stackoverflow.sqlite.lzma").unlink()
    with pytest.raises(DataUnavailableError, match="no such file; put it there"):
        stack_overflow.load(tmp_path)
    (place / "stackoverflow.word_count.tar.bz2").unlink()
    with pytest.raises(DataUnavailableError, match=r"has no stackoverflow.word_count.tar.bz2"):
        stack_overflow.load(tmp_path)


def test_a_split_without_sentences(tmp_path: Path) -> None:
    write(tmp_path, {("train", "1"): ["the"]})
    with pytest.raises(DataUnavailableError, match="has no sentences of the split test"):
        stack_overflow.load(tmp_path)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: b"SQLite?" * 1000, "split train cannot be read .*not a database"),
        (lambda data: data[: len(data) // 2], "split train cannot be read .*malformed"),
        (lambda data: data.replace(b"tokens", b"broken"), "user 1: a record has no feature 'tokens'"),
        (lambda data: data.replace(b"client_metadata", b"client_metadatb"), "no such table: client_metadata"),
    ],
)
def test_a_damaged_database(damage, words: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = write(tmp_path, {("train", "1"): ["the"] * 40, ("test", "1"): ["the"]}) / "stackoverflow.sqlite"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataUnavailableError, match=words):
        stack_overflow.load(tmp_path)


def test_a_record_that_protobuf_writes() -> None:
    # protobuf 7.x from tensorflow/core/example: score [-1], tokens [b"edit :"], rank [0.5], title [b"writing ..."]
    record = bytes.fromhex(
        "0a630a100a0472616e6b120812060a040000003f0a170a0573636f7265120e1a0c0a0affffffffffffffffff010a200a057469746c6512"
        "170a150a1377726974696e6720746f202f2073797374656d0a140a06746f6b656e73120a0a080a0665646974203a"
    )
    assert read_bytes(record, "tokens") == b"edit :"
    assert read_bytes(record, "title") == b"writing to / system"
    assert read_bytes(example("the css3 " * 50), "tokens") == b"the css3 " * 50


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (example("the")[:-9], "a record is truncated"),
        (b"\x0b", "unknown kind 3"),
        (b"\xff" * 12, "truncated"),
        (b"", "no feature 'tokens'"),
        (b"\x0d\x00\x00\x00\x00", "no feature 'tokens'"),
    ],
)
def test_damaged_records(record: bytes, words: str) -> None:
    with pytest.raises(DamagedRecordError, match=words):
        read_bytes(record, "tokens")
