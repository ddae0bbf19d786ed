"""A stock image made a board's own: copied or written to a card, its boot partition filled, all of it read back."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from fedquilt_common.errors import ImageError
from fedquilt_common.files.durable import new_private
from fedquilt_server.provisioning.card import FOLDER, IDENTITY, Card
from fedquilt_server.provisioning.devices import Device
from fedquilt_server.provisioning.fat import FatPartition, sizes
from fedquilt_server.provisioning.partitions import boot_partition

BLOCK: Final = 4 * 1024 * 1024
_RESERVE: Final = 1024 * 1024
_SEED: Final = ("user-data", "meta-data", "network-config")
Tell = Callable[[str, int, int], None]
"""Told what is under way, how many bytes are done, and of how many (0: nobody knows)."""


@dataclass(frozen=True)
class Flashed:
    """What was written. ``files``: path in the boot partition (or archive) and SHA-256 of each. ``warnings``: what the
    board's owner should know."""

    board: str
    target: str
    files: dict[str, str]
    warnings: list[str] = field(default_factory=list)


def flash_image(image: Path, card: Card, out: Path, tell: Tell) -> Flashed:
    """``image`` with ``card`` in its boot partition, as the new file ``out``.

    The image may be packed (.xz, .gz). ``out`` has its name only once everything in it has been read back. Raises
    ImageError.
    """
    if out.exists() and not out.is_file():
        raise ImageError(f"{out} is no file; a card is written with --device")
    if out.exists() and image.exists() and out.samefile(image):
        raise ImageError(f"{out} is the stock image itself: choose another --out, the stock is for other boards, too")
    fresh = out.with_name(f".{out.name}.new")
    try:
        unpack(image, fresh, tell)
        done = fill(fresh, card, tell)
        fresh.replace(out)
    except ImageError as error:
        raise ImageError(str(error).replace(str(fresh), str(image))) from None
    finally:
        fresh.unlink(missing_ok=True)
    return Flashed(card.board, str(out), done.files, done.warnings)


def fill(image: Path, card: Card, tell: Tell) -> Flashed:
    """Write a card's files into the boot partition of an image file, and read them back. Raises ImageError."""
    found = boot_partition(image)
    if found is None:
        raise ImageError(
            f"{image} has no FAT partition to boot from. Images for Jetson boards have none: give the board's kind to "
            "`fedquilt provision`, and --out NAME.tar makes an archive for NVIDIA's flashing tool (docs/deploy.md)"
        )
    partition, texts, wheels = FatPartition(image, found), card.texts(), card.wheel_files()
    before, warnings = partition.names(), []
    if not set(_SEED) & before:
        warnings.append(
            "the image has no user-data in its boot partition; does it have cloud-init? Raspberry Pi OS has since "
            "October 2025, Ubuntu for the Raspberry Pi always"
        )
    if "cmdline.txt" in before:
        old = partition.read("cmdline.txt").decode("utf-8", "replace")
        texts |= {"cmdline.txt": card.cmdline(old)} if card.cmdline(old) != old else {}
    partition.remove_folder(FOLDER)
    need, free = sizes(texts, wheels) + _RESERVE, partition.free
    if need > free:
        raise ImageError(
            f"{image}: its boot partition has {free / 2**20:.0f} MiB free, the files take {need / 2**20:.0f} MiB. Use "
            "an image with a larger boot partition, or leave the wheels out (--no-wheels) and install with Ansible"
        )
    if not wheels:
        warnings.append("there is no wheelhouse on the card: install the software with Ansible (docs/deploy.md)")
    return Flashed(card.board, str(image), _write(partition, texts, wheels, tell), warnings)


def _write(partition: FatPartition, texts: Mapping[str, str], files: Mapping[str, Path], tell: Tell) -> dict[str, str]:
    """Path and SHA-256 of all that was written and read back alike."""
    total, done = sizes(texts, files), 0
    for path, text in texts.items():
        partition.write_text(path, text)
        done += len(text.encode())
    for path, source in files.items():
        tell("writing files", done, total)
        partition.write_file(path, source)
        done += source.stat().st_size
    wanted = {path: hashlib.sha256(text.encode()).hexdigest() for path, text in texts.items()}
    wanted |= {path: digest_of(source) for path, source in files.items()}
    for number, (path, digest) in enumerate(wanted.items()):
        tell("reading back", number, len(wanted))
        if hashlib.sha256(partition.read(path)).hexdigest() != digest:
            raise ImageError(f"{partition.image}: {path} is not what was written; try again, or another medium")
    tell("reading back", len(wanted), len(wanted))
    return wanted


def flash_device(image: Path, card: Card, device: Device, folder: Path, tell: Tell) -> Flashed:
    """The same onto a card: made as a file in ``folder`` first, written, and read back. Raises ImageError."""
    made = folder / "card.img"
    done = flash_image(image, card, made, tell)
    size = made.stat().st_size
    if size > device.size:
        raise ImageError(f"{device} is smaller than the image ({size / 1e9:.1f} GB): take another card")
    with made.open("rb") as source, _exclusively(device.path) as target:
        expected = copy(source, target, size, lambda now: tell(f"writing {device.path}", now, size))
        target.flush()
        os.fsync(target.fileno())
        _forget(target)
        target.seek(0)
        found = copy(target, None, size, lambda now: tell(f"reading {device.path} back", now, size))
    if found != expected:
        raise ImageError(f"{device}: what can be read is not what was written: the card is bad, or a counterfeit")
    return Flashed(card.board, str(device.path), done.files, done.warnings)


def _exclusively(path: Path) -> BinaryIO:
    """A device that nobody has mounted in the meantime: Linux refuses then. Raises ImageError."""
    try:
        return os.fdopen(os.open(path, os.O_RDWR | (os.O_EXCL if path.is_block_device() else 0)), "r+b")
    except OSError as error:
        raise ImageError(f"{path} cannot be written: {error.strerror}; unmount it, or become root (sudo)") from None


def _forget(target: BinaryIO) -> None:
    """So that reading back asks the card, not this machine's memory."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(target.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def write_archive(card: Card, out: Path, tell: Tell) -> Flashed:
    """The same files for a board without a FAT boot partition: a tar to unpack in its root file system, with the
    identity beside ``install.sh``."""
    texts = card.texts() | card.container() | {f"{FOLDER}/identity/{name}": t for name, t in card.identity().items()}
    wheels, digests = card.wheel_files(), dict[str, str]()
    fresh = out.with_name(f".{out.name}.new")
    try:
        new_private(fresh)
        with tarfile.open(fresh, "w:gz" if out.name.endswith(("gz", "tgz")) else "w") as archive:
            for path, text in texts.items():
                _add(archive, path, io.BytesIO(text.encode()), len(text.encode()))
                digests[path] = hashlib.sha256(text.encode()).hexdigest()
            for number, (path, source) in enumerate(wheels.items()):
                tell("writing files", number, len(wheels))
                with source.open("rb") as file:
                    _add(archive, path, file, source.stat().st_size)
                digests[path] = digest_of(source)
        _verify(fresh, digests)
        fresh.replace(out)
    finally:
        fresh.unlink(missing_ok=True)
    return Flashed(card.board, str(out), digests, _unused(card))


def _unused(card: Card) -> list[str]:
    if card.wifi is None and not card.keys:
        return []
    return ["networks and logins are those that the board has: --wifi and --ssh-key are for cards, not for an archive"]


def _add(archive: tarfile.TarFile, path: str, content: BinaryIO, size: int) -> None:
    entry = tarfile.TarInfo(path)
    name = Path(path).name
    secret = name in IDENTITY or name == "user-data"
    entry.size, entry.mode = size, 0o600 if secret else 0o755 if name.endswith(".sh") else 0o644
    archive.addfile(entry, content)


def _verify(path: Path, digests: Mapping[str, str]) -> None:
    with tarfile.open(path) as archive:
        for entry in archive:
            content = archive.extractfile(entry)
            if content is None or hashlib.sha256(content.read()).hexdigest() != digests[entry.name]:
                raise ImageError(f"{path}: {entry.name} is not what was written; is the disk full, or failing?")


def unpack(image: Path, out: Path, tell: Tell) -> None:
    """Copy an image that may be packed. Raises ImageError for one that cannot be read, or where there is no room."""
    try:
        whole = image.stat().st_size
        with _opened(image) as (source, place), new_private(out).open("wb") as target:  # it will hold a key
            _check_room(image, out, whole)
            copy(source, target, None, lambda _: tell(f"unpacking {image.name}", place(), whole))
    except (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ImageError(f"{image}: is damaged ({error}); fetch it again") from None
    except OSError as error:
        raise ImageError(f"{error}; check the path and the free disk space") from None


def _check_room(image: Path, out: Path, size: int) -> None:
    free = shutil.disk_usage(out.parent).free
    if free < size:
        raise ImageError(f"{out.parent} has {free / 1e9:.1f} GB free, {image} takes {size / 1e9:.1f} GB at least")


@contextmanager
def _opened(image: Path) -> Iterator[tuple[Any, Callable[[], int]]]:
    """The unpacked bytes, and how far in the file they are."""
    with image.open("rb") as raw:
        source: Any = raw
        if image.suffix == ".xz":
            source = lzma.LZMAFile(raw)  # noqa: SIM115 - the file below it is closed
        elif image.suffix == ".gz":
            source = gzip.GzipFile(fileobj=raw)
        yield source, raw.tell


def copy(source: Any, target: BinaryIO | None, size: int | None, tell: Callable[[int], None]) -> str:
    """Up to ``size`` bytes, or all; SHA-256 of them in hex. Without a ``target`` they are only read."""
    digest, done = hashlib.sha256(), 0
    while block := source.read(BLOCK if size is None else min(BLOCK, size - done)):
        digest.update(block)
        if target is not None:
            target.write(block)
        done += len(block)
        tell(done)
    return digest.hexdigest()


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return copy(file, None, None, lambda _: None)
