"""What lies in a folder, whether a loader can read it or not: files, rows and columns, images, members of archives."""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from fedquilt_common.data_tools.published import PUBLISHED, find_folder
from fedquilt_common.datasets.files import find_files, open_packed
from fedquilt_common.downloads.members import DAMAGE, TAR_SUFFIXES, read_tar_members, read_zip_members
from fedquilt_common.errors import DataUnavailableError

_TABLES: Final = frozenset({".csv", ".txt", ".json", ".tsv"})
_IMAGES: Final = frozenset({".png", ".jpg", ".jpeg"})
_ARCHIVES: Final = (".zip", *TAR_SUFFIXES)
_LARGEST: Final = 512 << 20
"""Bytes of a packed file up to which its rows or members are counted."""
_LONGEST_LINE: Final = 4 << 20
"""Characters of a line up to which the rows of a table are counted; a file without line ends would fill the memory."""
_MOST_EACH: Final = 8
"""Files of one kind in one folder that are described one by one; more are described together."""
_CLASS_COLUMNS: Final = ("class", "label", "activity")


@dataclass(frozen=True)
class FileFacts:
    """A file, or several of one kind in one folder.

    Attributes:
        path: below the inspected folder; with ``*`` for several.
        files: how many.
        size: bytes of all of them.
        what: such as ``8,035 rows of 10 columns``.
        classes: rows of each class, if the file is a table with such a column.
    """

    path: str
    files: int
    size: int
    what: str = ""
    classes: Mapping[str, int] = field(default_factory=dict)


def find_sets(folder: Path) -> list[str]:
    """Return the names of the data sets that a folder can hold: by its name, else by its files."""
    by_name = [name for name in PUBLISHED if find_folder(name) == folder.resolve().name]
    if by_name:
        return by_name
    return [
        name for name, published in PUBLISHED.items()
        if published.files and not any(published.find_missing(folder))
        and not any(pattern.startswith("**/*.") for file in published.files for pattern in file.patterns)
    ]  # fmt: skip


def describe_folder(folder: Path) -> list[FileFacts]:
    """Describe the files in a folder and below, in the order of their paths.

    Raises:
        DataUnavailableError: the folder has no files.
    """
    groups = defaultdict[tuple[Path, str], list[Path]](list)
    for path in find_files(folder):
        kind = "".join(path.suffixes[-2:]) if path.suffix in (".xz", ".gz") else path.suffix
        groups[path.parent, kind].append(path)
    if not groups:
        raise DataUnavailableError(f"{folder}: has no files; fetch them, for example with `fedquilt data get`")
    return [facts for paths in groups.values() for facts in _describe_group(folder, paths)]


def _describe_group(folder: Path, paths: Sequence[Path]) -> list[FileFacts]:
    if len(paths) <= _MOST_EACH and paths[0].suffix not in _IMAGES:
        return [_describe_file(folder, path) for path in paths]
    first = paths[0].relative_to(folder)
    what = _describe_images(paths) if paths[0].suffix in _IMAGES else ""
    size = sum(path.stat().st_size for path in paths)
    return [FileFacts(str(first.with_name(f"*{first.suffix}")), len(paths), size, what)]


def _describe_file(folder: Path, path: Path) -> FileFacts:
    name, size = str(path.relative_to(folder)), path.stat().st_size
    plain = Path(re.sub(r"\.(gz|xz)$", "", path.name))
    try:
        if size > _LARGEST:
            return FileFacts(name, 1, size, "not looked into, because of its size")
        if path.name.endswith(_ARCHIVES):
            return FileFacts(name, 1, size, _describe_archive(path))
        if plain.suffix in _TABLES:
            return FileFacts(name, 1, size, *_describe_table(path, "," if plain.suffix == ".csv" else None))
    except DataUnavailableError as error:
        return FileFacts(name, 1, size, str(error).removeprefix(f"{path}: "))
    return FileFacts(name, 1, size)


def _describe_table(path: Path, delimiter: str | None) -> tuple[str, dict[str, int]]:
    try:
        with open_packed(path) as stream:
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="")
            lines = _read_lines(text)
            return _count_rows(csv.reader(lines) if delimiter else (line.split() for line in lines), delimiter)
    except (csv.Error, ValueError) as error:
        raise DataUnavailableError(f"its rows cannot be counted: {error}") from error


def _read_lines(text: IO[str]) -> Iterator[str]:
    """Read the lines of a file, which may have a single one of gigabytes."""
    while line := text.readline(_LONGEST_LINE):
        if len(line) >= _LONGEST_LINE:
            raise ValueError(f"a line has {_LONGEST_LINE:,} characters or more")
        yield line


def _count_rows(rows: Iterator[list[str]], delimiter: str | None) -> tuple[str, dict[str, int]]:
    header = next(rows, [])
    column = next((header.index(name) for name in _CLASS_COLUMNS if name in header), None)
    counts, total = Counter[str](), 0
    for row in rows:
        total += 1
        if column is not None and column < len(row):
            counts[row[column]] += 1
    lines = f"{total:,} rows below a header" if delimiter and not _is_number(header) else f"{total + 1:,} rows"
    return f"{lines}, {len(header)} columns", dict(sorted(counts.items()))


def _is_number(row: Sequence[str]) -> bool:
    return any(re.fullmatch(r"\s*[-+]?\d+(\.\d*)?([eE][-+]?\d+)?\s*", cell) for cell in row)


def _describe_archive(path: Path) -> str:
    read_members = read_zip_members if path.suffix == ".zip" else read_tar_members
    count, first = 0, ""
    try:
        for member in read_members(path):
            if member.open is not None:
                count, first = count + 1, min(first or member.name, member.name)
    except (*DAMAGE, OSError) as error:
        raise DataUnavailableError(f"{path}: is damaged ({error}); fetch it again") from error
    return f"{count:,} files" + (f", such as {first}" if count else "")


def _describe_images(paths: Sequence[Path]) -> str:
    try:
        from PIL.Image import DecompressionBombError
    except ImportError:
        return "images"
    sizes = set()
    for path in paths:
        try:
            sizes.add(_measure_image(path))
        except (OSError, ValueError, DecompressionBombError):
            return f"images; {path.name} is damaged, or too large to be opened"
    least, most = min(sizes), max(sizes)
    return f"images of {least[0]} x {least[1]}" + ("" if least == most else f" to {most[0]} x {most[1]}")


def _measure_image(path: Path) -> tuple[int, int]:
    """Return width and height from the image's header; its pixels are not read, however many they are."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with Image.open(path) as image:
            return int(image.width), int(image.height)
