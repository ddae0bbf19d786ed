"""Write an image file for every board of a federation. A board whose file has the same content is skipped.

The folder holds one file per board and ``flashed.json``, which names the content of each file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from fedquilt_common.errors import ImageError
from fedquilt_common.files.digests import digest_file
from fedquilt_common.files.durable import write_durably
from fedquilt_common.files.locking import lock_folder
from fedquilt_server.provisioning.card import Card
from fedquilt_server.provisioning.flash import (
    FlashResult,
    ProgressReporter,
    flash_image,
    report_write_errors,
    require_stock,
    unpack,
    write_archive,
)
from fedquilt_server.provisioning.private_files import hide_from_git
from fedquilt_server.provisioning.record import BoardRecord

FLASHED: Final = "flashed.json"
_STOCK: Final = ".stock.img"


@dataclass(frozen=True)
class CardTarget:
    """A board's card and the file to write.

    Args:
        card: the files of the board.
        out: the file; its name decides between an image and an archive.
        record: the board's record.
    """

    card: Card
    out: Path
    record: BoardRecord

    @property
    def is_archive(self) -> bool:
        """Whether the board gets an archive, because its image has no boot partition."""
        return self.out.name.endswith(".tar.gz")


def flash_all(
    image: Path | None, targets: Sequence[CardTarget], folder: Path, report: ProgressReporter, *, force: bool = False
) -> Iterator[tuple[CardTarget, FlashResult | None]]:
    """Write the file of each board, and yield what was written; None if it was skipped. Unpacks the stock image once.

    If it is interrupted, run it again: finished boards are skipped.

    Args:
        image: the stock image; it may be compressed (.xz, .gz). None if every board gets an archive.
        targets: the boards and their files in ``folder``.
        folder: the folder of the files; created if it is missing.
        report: called with the progress of the current board.
        force: write boards with the same content again.

    Raises:
        ImageError: the image or a file cannot be read or written.
        FolderInUseError: another command writes to the folder.
    """
    if images := [target.out.name for target in targets if not target.is_archive]:
        require_stock(image, images[0])
    if folder.exists() and not folder.is_dir():
        raise ImageError(f"{folder} is not a folder; with --all, --out names a folder")
    with report_write_errors(folder), _locked(folder):
        hide_from_git(folder)
        flashed = _read_flashed(folder)
        contents = {target.card.board: content_of(image, target) for target in targets}
        with _stock_image(image, folder, report) as stock:
            for target in targets:
                board, content = target.card.board, contents[target.card.board]
                if not force and board in flashed and flashed[board] == _entry(target.out, content):
                    yield target, None
                    continue
                result = _write(stock, image, target, report)
                flashed[board] = _entry(target.out, content)
                write_durably(folder / FLASHED, json.dumps(flashed, indent=2) + "\n")
                yield target, result


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Create a folder and lock it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # the images hold keys
    with lock_folder(folder):
        yield


def _write(stock: Callable[[], Path], image: Path | None, target: CardTarget, report: ProgressReporter) -> FlashResult:
    if target.is_archive:
        return write_archive(target.card, target.out, report)
    unpacked = stock()
    try:
        return flash_image(unpacked, target.card, target.out, report)
    except ImageError as error:
        raise ImageError(str(error).replace(str(unpacked), str(image))) from None


@contextmanager
def _stock_image(image: Path | None, folder: Path, report: ProgressReporter) -> Iterator[Callable[[], Path]]:
    """Yield a function that returns the unpacked stock image, and unpacks it at the first call."""

    @cache
    def stock() -> Path:
        packed = require_stock(image, FLASHED)
        if packed.suffix not in (".xz", ".gz"):
            return packed
        unpack(packed, folder / _STOCK, report)
        return folder / _STOCK

    try:
        yield stock
    finally:
        (folder / _STOCK).unlink(missing_ok=True)


def content_of(image: Path | None, target: CardTarget) -> str:
    """Return a digest of everything that the board's file is made from."""
    card = target.card
    # what depends on the system in the image is covered by the image itself
    texts = card.container_files() | (card.install_files() if target.is_archive else card.boot_files(None))
    parts = {
        "stock": "" if target.is_archive or image is None else _digest(image, *_stamp(image)),
        "texts": {path: hashlib.sha256(text.encode()).hexdigest() for path, text in texts.items()},
        "wheels": {path: _digest(source, *_stamp(source)) for path, source in card.wheel_files().items()},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


@cache
def _digest(path: Path, _size: int, _written: int) -> str:
    """Return the SHA-256 of a file, which is read once however many boards get it."""
    return digest_file(path, "sha256")


def _entry(path: Path, content: str) -> Mapping[str, Any] | None:
    """Return the entry of a finished file; None if there is no file. It changes if the file is written or replaced."""
    if not path.is_file():
        return None
    size, written = _stamp(path)
    return {"file": path.name, "content": content, "size": size, "written": written}


def _read_flashed(folder: Path) -> dict[str, Any]:
    """Return the entries of the finished files; none if the file is damaged, so that every board is written again."""
    try:
        found = json.loads((folder / FLASHED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
