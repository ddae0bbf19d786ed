"""What lies in a folder, whether a loader can read it or not: files, rows and columns, images, members of archives."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fedquilt_common.data_tools.published import PUBLISHED, find_folder
from fedquilt_common.data_tools.table_facts import describe_tables, is_table, read_table
from fedquilt_common.datasets.files import find_files
from fedquilt_common.downloads.members import DAMAGE, TAR_SUFFIXES, read_tar_members, read_zip_members
from fedquilt_common.errors import DataUnavailableError

_IMAGES: Final = frozenset({".png", ".jpg", ".jpeg"})
_ARCHIVES: Final = (".zip", *TAR_SUFFIXES)
_LARGEST: Final = 512 << 20
"""Bytes of a file, or of all tables of one kind in one folder, up to which rows or members are counted."""
_TOO_LARGE: Final = "not looked into, because of its size"
_MOST_EACH: Final = 8
"""Files of one kind in one folder that are described one by one; more are described together."""


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
    path = str(paths[0].relative_to(folder).with_name(f"*{paths[0].suffix}"))
    size = sum(path.stat().st_size for path in paths)
    if all(map(is_table, paths)):
        return [FileFacts(path, len(paths), size, *_describe_tables(paths, size))]
    return [FileFacts(path, len(paths), size, _describe_images(paths) if paths[0].suffix in _IMAGES else "")]


def _describe_tables(paths: Sequence[Path], size: int) -> tuple[str, Mapping[str, int]]:
    if size > _LARGEST:
        return _TOO_LARGE, {}
    try:
        return describe_tables([read_table(path) for path in paths])
    except DataUnavailableError as error:
        return str(error).removeprefix(f"{paths[0].parent}/"), {}


def _describe_file(folder: Path, path: Path) -> FileFacts:
    name, size = str(path.relative_to(folder)), path.stat().st_size
    try:
        if size > _LARGEST:
            return FileFacts(name, 1, size, _TOO_LARGE)
        if path.name.endswith(_ARCHIVES):
            return FileFacts(name, 1, size, _describe_archive(path))
        if is_table(path):
            return FileFacts(name, 1, size, *describe_tables([read_table(path)]))
    except DataUnavailableError as error:
        return FileFacts(name, 1, size, str(error).removeprefix(f"{path}: "))
    return FileFacts(name, 1, size)


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
