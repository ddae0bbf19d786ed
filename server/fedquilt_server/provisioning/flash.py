"""Make a board's image from a stock image: copy it, fill its boot partition and verify every file."""

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
from fedquilt_common.files.digests import digest_file
from fedquilt_common.files.durable import create_private
from fedquilt_server.provisioning.card import FOLDER, IDENTITY, Card, wheelhouse_python
from fedquilt_server.provisioning.devices import Device
from fedquilt_server.provisioning.fat import FatPartition, total_size
from fedquilt_server.provisioning.image_system import ImageSystem, inspect_image
from fedquilt_server.provisioning.partitions import boot_partition

BLOCK: Final = 4 * 1024 * 1024
_RESERVE: Final = 1024 * 1024
_SEED: Final = ("user-data", "meta-data", "network-config")
_USE_ANOTHER_IMAGE: Final = (
    "use Raspberry Pi OS of October 2025 or later, or Ubuntu Server for the Raspberry Pi, or set the board up with "
    "Ansible (docs/deploy.md)"
)
_NO_SEED: Final = (
    f"the image has no user-data in its boot partition, so it may have no cloud-init: {_USE_ANOTHER_IMAGE}"
)
_PACKED: Final = frozenset({".xz", ".gz", ".bz2", ".zst", ".lz4", ".lzma", ".zip", ".7z", ".rar"})
"""Endings of compressed files."""
_NO_WHEELS: Final = "the card has no wheelhouse: install the software with Ansible (docs/deploy.md)"
_NO_LOGIN: Final = "It has no SSH key either, so neither you nor Ansible can log in: give --ssh-key"
ProgressReporter = Callable[[str, int, int], None]
"""Called with the current step, the bytes (or files) done, and their total (0 if unknown)."""


@dataclass(frozen=True)
class FlashResult:
    """What was written.

    Args:
        board: name of the board.
        target: the image file, archive or device.
        files: SHA-256 of each file in hexadecimal, by its path in the boot partition or archive.
        warnings: notes for the user.
        login: user and host with which an SSH key logs in; empty if the card creates no login.
    """

    board: str
    target: str
    files: dict[str, str]
    warnings: list[str] = field(default_factory=list)
    login: str = ""


def require_stock(image: Path | None, target: str) -> Path:
    """Return the stock image, which only an archive can do without.

    Raises:
        ImageError: there is none.
    """
    if image is None:
        raise ImageError(f"{target} needs a stock image: fedquilt flash IMAGE ...")
    if not image.is_file():
        raise ImageError(f"{image}: there is no such file; check the path")
    return image


def flash_image(image: Path, card: Card, out: Path, report: ProgressReporter) -> FlashResult:
    """Write a copy of ``image``, with the files of ``card`` in its boot partition.

    Args:
        image: the stock image; it may be compressed (.xz, .gz).
        card: the files of the board.
        out: the new image file. It gets this name only after all its files are verified.
        report: called with the progress.

    Raises:
        ImageError: the image cannot be read, its boot partition cannot be filled, or ``out`` cannot be used.
    """
    require_stock(image, out.name)
    check_folder(out)
    if out.suffix.lower() in _PACKED:
        raise ImageError(
            f"{out}: the image is written without compression, so its name cannot end with {out.suffix}; use "
            f"--out {out.with_name(out.name.partition('.')[0])}.img, and compress the file afterwards"
        )
    if out.exists() and not out.is_file():
        raise ImageError(f"{out} is not a file; use --device to write a card")
    if out.exists() and out.samefile(image):
        raise ImageError(
            f"{out} is the stock image itself: choose another --out to keep the stock image for other boards"
        )
    with _new_file(out) as fresh:
        try:
            unpack(image, fresh, report)
            done = fill_boot_partition(fresh, card, report)
        except ImageError as error:
            raise ImageError(str(error).replace(str(fresh), str(image))) from None
    return FlashResult(card.board, str(out), done.files, done.warnings)


@contextmanager
def _new_file(out: Path) -> Iterator[Path]:
    """Yield the name under which a file is written; it gets the name ``out`` at the end of the block.

    Raises:
        ImageError: a file cannot be written.
    """
    fresh = out.with_name(f".{out.name}.new")
    with report_write_errors(out):
        try:
            yield fresh
            fresh.replace(out)
        finally:
            fresh.unlink(missing_ok=True)


@contextmanager
def report_write_errors(out: Path) -> Iterator[None]:
    """Run a block that writes the file or the folder ``out``.

    Raises:
        ImageError: a file cannot be written.
    """
    try:
        yield
    except OSError as error:
        place = error.filename or out
        raise ImageError(
            f"{place} cannot be used: {error.strerror}; check the path, its permissions and the free disk space"
        ) from None


def check_folder(out: Path) -> None:
    """Check that the folder of a new file exists.

    Raises:
        ImageError: it does not.
    """
    if not out.parent.is_dir():
        raise ImageError(f"{out}: there is no folder {out.parent}; create it, or correct --out")


def fill_boot_partition(image: Path, card: Card, report: ProgressReporter) -> FlashResult:
    """Write a card's files into the boot partition of an image file, and verify them.

    Raises:
        ImageError: there is no FAT partition, it is too small, a file is not what was written, or the board could not
            install the card's files.
    """
    boot = boot_partition(image)
    if boot is None:
        raise ImageError(
            f"{image} has no FAT boot partition. Images for Jetson boards have none: set the board's kind with "
            "`fedquilt provision`, and use --out NAME.tar to write an archive for NVIDIA's flashing tool "
            "(docs/deploy.md)"
        )
    partition, system = FatPartition(image, boot), inspect_image(image)
    warnings = _check_system(image, system, card, partition.names())
    texts, wheels = card.boot_files(system), card.wheel_files()
    if "cmdline.txt" in partition.names():
        old = partition.read("cmdline.txt").decode("utf-8", "replace")
        texts |= {"cmdline.txt": card.cmdline(old)} if card.cmdline(old) != old else {}
    partition.remove_folder(FOLDER)
    need, free = total_size(texts, wheels) + _RESERVE, partition.free
    if need > free:
        raise ImageError(
            f"{image}: its boot partition has {free / 2**20:.0f} MiB free, the files need {need / 2**20:.0f} MiB. Use "
            "an image with a larger boot partition, or use --no-wheels and install the software with Ansible"
        )
    return FlashResult(card.board, str(image), _write(partition, texts, wheels, report), warnings)


def _check_system(image: Path, system: ImageSystem | None, card: Card, boot_files: set[str]) -> list[str]:
    """Check that the image's system can install the card, as far as that can be found out.

    Returns:
        Notes for the user.

    Raises:
        ImageError: the board could never join.
    """
    notes = [] if card.wheels else [_NO_WHEELS if card.keys else f"{_NO_WHEELS}. {_NO_LOGIN}"]
    if system is None:
        notes.append(
            "the system in the image is unknown, so cloud-init and Python's version are not checked: the image has no "
            "ext4 with Debian's packages, or debugfs is missing (sudo apt-get install e2fsprogs)"
        )
        return notes if set(_SEED) & boot_files else [*notes, _NO_SEED]
    if system.cloud_init is None:
        raise ImageError(f"{image} has no cloud-init, which sets the board up: {_USE_ANOTHER_IMAGE}")
    if card.wifi is not None and not (system.reads_network_config or system.netplan):
        raise ImageError(
            f"{image}: its cloud-init ({system.cloud_init}) ignores the Wi-Fi in network-config, and it has no "
            "netplan: use a newer image, or a cable (leave out --wifi)"
        )
    wheels = wheelhouse_python(card.wheels) if card.wheels else None
    if system.python and wheels and system.python != wheels:
        raise ImageError(
            f"{image} has Python {_dotted(system.python)}, but the wheelhouse {card.wheels} is for "
            f"{_dotted(wheels)}: make wheelhouse PYTHON_ON_BOARD={_dotted(system.python)}"
        )
    return notes


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _write(
    partition: FatPartition, texts: Mapping[str, str], files: Mapping[str, Path], report: ProgressReporter
) -> dict[str, str]:
    """Write the files and verify them. Returns the SHA-256 of each file by path."""
    total, done = total_size(texts, files), 0
    for path, text in texts.items():
        partition.write_text(path, text)
        done += len(text.encode())
    for path, source in files.items():
        report("writing files", done, total)
        partition.write_file(path, source)
        done += source.stat().st_size
    digests = {path: hashlib.sha256(text.encode()).hexdigest() for path, text in texts.items()}
    digests |= {path: digest_file(source, "sha256") for path, source in files.items()}
    for number, (path, digest) in enumerate(digests.items()):
        report("reading back", number, len(digests))
        if hashlib.sha256(partition.read(path)).hexdigest() != digest:
            raise ImageError(f"{partition.image}: {path} is not what was written; try again, or use another disk")
    report("reading back", len(digests), len(digests))
    return digests


def flash_device(image: Path, card: Card, device: Device, folder: Path, report: ProgressReporter) -> FlashResult:
    """Write the board's image onto a card, and verify the whole card.

    Args:
        image: the stock image; it may be compressed (.xz, .gz).
        card: the files of the board.
        device: the card.
        folder: folder for the image file that is made first.
        report: called with the progress.

    Raises:
        ImageError: as ``flash_image``; or the card is too small, cannot be written, or holds wrong data.
    """
    file = folder / "card.img"
    done = flash_image(image, card, file, report)
    size = file.stat().st_size
    if size > device.size:
        raise ImageError(f"{device} is smaller than the image ({size / 1e9:.1f} GB): use a larger card")
    with file.open("rb") as source, _open_exclusively(device.path) as target:
        expected = copy(source, target, size, lambda now: report(f"writing {device.path}", now, size))
        target.flush()
        os.fsync(target.fileno())
        _drop_page_cache(target)
        target.seek(0)
        actual = copy(target, None, size, lambda now: report(f"reading {device.path} back", now, size))
    if actual != expected:
        raise ImageError(
            f"{device}: the data on the card is not what was written: the card is defective or a counterfeit"
        )
    return FlashResult(card.board, str(device.path), done.files, done.warnings)


def _open_exclusively(path: Path) -> BinaryIO:
    """Open a device for writing. Linux refuses if it was mounted in the meantime.

    Raises:
        ImageError: it cannot be opened.
    """
    try:
        return os.fdopen(os.open(path, os.O_RDWR | (os.O_EXCL if path.is_block_device() else 0)), "r+b")
    except OSError as error:
        raise ImageError(
            f"{path} cannot be written: {error.strerror}; unmount it, or run the command as root (sudo)"
        ) from None


def _drop_page_cache(target: BinaryIO) -> None:
    """Drop the cached data, so that verification reads from the card and not from this machine's memory."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(target.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def write_archive(card: Card, out: Path, report: ProgressReporter) -> FlashResult:
    """Write the files for a board without a FAT boot partition as a tar archive, and verify them.

    You unpack the archive in the board's root file system. The identity is beside ``install.sh``.

    Raises:
        ImageError: a file is not what was written.
    """
    check_folder(out)
    texts = card.install_files() | card.container_files()
    wheels, digests = card.wheel_files(), dict[str, str]()
    with _new_file(out) as fresh:
        create_private(fresh)
        with tarfile.open(fresh, "w:gz" if out.name.endswith(("gz", "tgz")) else "w") as archive:
            for path, text in texts.items():
                _add_file(archive, path, io.BytesIO(text.encode()), len(text.encode()))
                digests[path] = hashlib.sha256(text.encode()).hexdigest()
            for number, (path, source) in enumerate(wheels.items()):
                report("writing files", number, len(wheels))
                with source.open("rb") as file:
                    _add_file(archive, path, file, source.stat().st_size)
                digests[path] = digest_file(source, "sha256")
        _verify_archive(fresh, digests)
    return FlashResult(card.board, str(out), digests, _archive_warnings(card))


def _archive_warnings(card: Card) -> list[str]:
    given = {"--wifi": card.wifi is not None, "--ssh-key": bool(card.keys)}
    return [f"{name} has no effect on an archive: the board keeps its own" for name, used in given.items() if used]


def _add_file(archive: tarfile.TarFile, path: str, content: BinaryIO, size: int) -> None:
    entry = tarfile.TarInfo(path)
    name = Path(path).name
    secret = name in IDENTITY
    entry.size, entry.mode = size, 0o600 if secret else 0o755 if name.endswith(".sh") else 0o644
    archive.addfile(entry, content)


def _verify_archive(path: Path, digests: Mapping[str, str]) -> None:
    with tarfile.open(path) as archive:
        for entry in archive:
            content = archive.extractfile(entry)
            if content is None or hashlib.sha256(content.read()).hexdigest() != digests[entry.name]:
                raise ImageError(
                    f"{path}: {entry.name} is not what was written: check whether the disk is full or failing"
                )


def unpack(image: Path, out: Path, report: ProgressReporter) -> None:
    """Copy an image, and decompress it if it is compressed.

    Raises:
        ImageError: the image is damaged, or there is not enough disk space.
        OSError: a file cannot be read or written.
    """
    try:
        whole = image.stat().st_size
        with _open_image(image) as (source, position), create_private(out).open("wb") as target:  # it will hold a key
            _check_room(image, out, whole)
            copy(source, target, None, lambda _: report(f"unpacking {image.name}", position(), whole))
    except (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ImageError(f"{image}: is damaged ({error}); download it again") from None


def _check_room(image: Path, out: Path, size: int) -> None:
    free = shutil.disk_usage(out.parent).free
    if free < size:
        raise ImageError(f"{out.parent} has {free / 1e9:.1f} GB free, but {image} needs at least {size / 1e9:.1f} GB")


@contextmanager
def _open_image(image: Path) -> Iterator[tuple[Any, Callable[[], int]]]:
    """Yield the decompressed bytes, and a function that returns the position in the file."""
    with image.open("rb") as raw:
        source: Any = raw
        if image.suffix == ".xz":
            source = lzma.LZMAFile(raw)  # noqa: SIM115 - the underlying file is closed
        elif image.suffix == ".gz":
            source = gzip.GzipFile(fileobj=raw)
        yield source, raw.tell


def copy(source: Any, target: BinaryIO | None, size: int | None, report: Callable[[int], None]) -> str:
    """Copy up to ``size`` bytes, or all of them; without a ``target``, only read them.

    Returns:
        SHA-256 of the bytes in hexadecimal.
    """
    digest, done = hashlib.sha256(), 0
    while block := source.read(BLOCK if size is None else min(BLOCK, size - done)):
        digest.update(block)
        if target is not None:
            target.write(block)
        done += len(block)
        report(done)
    return digest.hexdigest()
