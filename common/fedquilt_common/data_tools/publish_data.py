"""A bundle of the clients' samples: a folder for a web server, one archive, or a manifest with the files' addresses.

The same samples give the same bytes: files are in order, uncompressed, and without times, owners or modes of their own.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from fedquilt_common.data_tools.shard_folder import MANIFEST, ShardManifest, read_manifest
from fedquilt_common.downloads.drive import is_drive_url
from fedquilt_common.errors import ExperimentError, RunFolderError
from fedquilt_common.files.digests import digest_file
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_common.files.durable import replace_durably, sync, write_durably
from fedquilt_common.files.targets import refuse_folder
from fedquilt_common.files.yaml_text import read_text

_MODE: Final = 0o644
_FIRST_DAY: Final = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip archive can hold."""
_BLOCK: Final = 1 << 20
_LARGEST_IN_USTAR: Final = (8 << 30) - 1
"""Bytes of a file in an archive of the portable form; archives with larger ones have GNU's."""
_LONGEST_ADDRESS: Final = 2000
_OTHER_ARCHIVES: Final = frozenset({".tgz", ".gz", ".bz2", ".tbz2", ".xz", ".txz", ".7z", ".rar", ".zst"})


@dataclass(frozen=True)
class PublishedBundle:
    """A finished bundle.

    Attributes:
        path: the folder, the archive or the manifest.
        kind: ``folder``, ``tar``, ``zip`` or ``manifest``.
        size: bytes of all files.
        files: how many, with the manifest.
        manifest_sha256: digest of the manifest, for the experiment's ``data.bundle.sha256``.
        sha256: digest of the archive; "" for a folder.
    """

    path: Path
    kind: str
    size: int
    files: int
    manifest_sha256: str
    sha256: str


def publish_bundle(folder: Path, bundle: Path) -> PublishedBundle:
    """Copy a folder of shards, of which every file is checked, into a bundle.

    Args:
        folder: as ``fedquilt data partition`` writes it.
        bundle: the new folder; or the new archive, if it ends in ``.tar`` or ``.zip``.

    Raises:
        DataUnavailableError: the folder is unfinished or damaged.
        ExperimentError: the name is that of another kind of archive.
        RunFolderError: the bundle exists already, the disk is full, or the place is not writable.
    """
    if bundle.suffix.lower() in _OTHER_ARCHIVES:
        raise ExperimentError(f"--out {bundle}: name a folder, or a file that ends in .tar or .zip")
    manifest = read_manifest(folder)
    if bundle.exists():
        raise RunFolderError(f"{bundle}: exists already; choose another name, or delete it")
    names = [MANIFEST, *sorted(manifest.files)]
    write = {".tar": _write_tar, ".zip": _write_zip}.get(bundle.suffix.lower(), _copy_folder)
    draft = bundle.with_name(f".{bundle.name}.new")
    with report_disk_errors(bundle.parent):
        bundle.parent.mkdir(parents=True, exist_ok=True)
        _remove(draft)
        write(draft, {name: folder / name for name in names})
        if draft.is_dir():
            draft.rename(bundle)
            sync(bundle.parent)
        else:
            replace_durably(draft, bundle)
    return _describe(bundle, folder, manifest)


def publish_manifest(folder: Path, addresses: Path, out: Path) -> PublishedBundle:
    """Write a manifest for files that have an address each, such as those on Google Drive.

    Args:
        folder: as ``fedquilt data partition`` writes it.
        addresses: a text file with a line ``name,address`` for each file of the folder.
        out: the manifest; it is replaced.

    Raises:
        DataUnavailableError: the folder is unfinished or damaged.
        ExperimentError: a file lacks its address or has two, a line is wrong, or ``out`` is a folder.
        RunFolderError: the disk is full, or the place is not writable.
    """
    refuse_folder(out, "--out")
    manifest, links = read_manifest(folder), _read_addresses(addresses)
    if missing := [name for name in manifest.files if name not in links]:
        raise ExperimentError(f"{addresses}: has no address of {missing[0]}; add a line '{missing[0]},ADDRESS'")
    if strange := [name for name in links if name not in manifest.files]:
        raise ExperimentError(f"{addresses}: {folder} has no file {strange[0]}; correct the name, or delete the line")
    files = {name: replace(file, url=links[name]) for name, file in manifest.files.items()}
    text = replace(manifest, files=files).encode()
    with report_disk_errors(out.parent):
        write_durably(out, text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return PublishedBundle(out, "manifest", len(text.encode()), 1, digest, digest)


def _read_addresses(path: Path) -> dict[str, str]:
    links, names = dict[str, str](), dict[str, str]()
    for number, line in enumerate(read_text(path).removeprefix("\ufeff").splitlines(), 1):
        name, comma, address = (part.strip() for part in line.partition(","))
        if not line.strip() or (number == 1 and (name.lower(), address.lower()) == ("name", "address")):
            continue
        if not comma or not _is_address(address):
            raise ExperimentError(
                f"{path}:{number}: '{line[:80]}' is not name,address; write the name, a comma, the link of the file"
            )
        if name in links:
            raise ExperimentError(f"{path}:{number}: {name} has an address already; delete one of the two lines")
        if address in names:
            raise ExperimentError(f"{path}:{number}: {names[address]} has the same address; write the one of {name}")
        links[name], names[address] = address, name
    return links


def _is_address(text: str) -> bool:
    """Whether a text can be the address of a file: a folder on Google Drive has one, too, which no board can use."""
    try:
        parts = urlsplit(text)
        is_folder = is_drive_url(text) and "/folders/" in parts.path
        is_whole = len(text) <= _LONGEST_ADDRESS and not re.search(r"\s", text)
        return parts.scheme in ("https", "http") and is_whole and not is_folder
    except ValueError:
        return False


def explain_next_steps(bundle: PublishedBundle) -> str:
    """Return what to do with a new bundle."""
    experiment = (
        "data:\n  delivery: url\n  bundle:\n    url: https://YOUR-SERVER/PATH/manifest.json\n"
        f"    sha256: {bundle.manifest_sha256}"
    )
    if bundle.kind == "manifest":
        return f"Next: upload {bundle.path.name} too. Then add to the experiment, with its address:\n\n{experiment}"
    if bundle.kind == "folder":
        return (
            f"Next: copy the folder {bundle.path} to a web server as it is. Then add to the experiment:\n\n{experiment}"
            "\n\nOn Google Drive each file has an address of its own: upload the files, share them with everybody who "
            "has the link, and see `fedquilt data publish --addresses`"
        )
    return (
        f"Next: upload {bundle.path.name} to Google Drive, and share it with everybody who has the link. Compare its "
        f"SHA-256 after a download:\n\n{bundle.sha256}  {bundle.path.name}\n\nUnpacked on a web server, it serves "
        f"boards with this experiment:\n\n{experiment}"
    )


def _describe(bundle: Path, folder: Path, manifest: ShardManifest) -> PublishedBundle:
    content = (folder / MANIFEST).read_bytes()
    is_folder = bundle.is_dir()
    return PublishedBundle(
        bundle,
        "folder" if is_folder else bundle.suffix[1:].lower(),
        manifest.size + len(content) if is_folder else bundle.stat().st_size,
        len(manifest.files) + 1,
        hashlib.sha256(content).hexdigest(),
        "" if is_folder else digest_file(bundle, "sha256"),
    )


def _remove(draft: Path) -> None:
    """Remove what an interrupted call has left."""
    if draft.is_dir():
        shutil.rmtree(draft)
    draft.unlink(missing_ok=True)


def _copy_folder(draft: Path, files: Mapping[str, Path]) -> None:
    draft.mkdir()
    for name, source in files.items():
        shutil.copyfile(source, draft / name)
        sync(draft / name)


def _write_tar(draft: Path, files: Mapping[str, Path]) -> None:
    largest = max(source.stat().st_size for source in files.values())
    form = tarfile.USTAR_FORMAT if largest <= _LARGEST_IN_USTAR else tarfile.GNU_FORMAT
    with tarfile.open(draft, "w", format=form) as archive:
        for name, source in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = source.stat().st_size, _MODE
            with source.open("rb") as file:
                archive.addfile(info, file)


def _write_zip(draft: Path, files: Mapping[str, Path]) -> None:
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_STORED) as archive:
        for name, source in files.items():
            info = zipfile.ZipInfo(name, _FIRST_DAY)
            info.create_system, info.external_attr, info.file_size = 3, _MODE << 16, source.stat().st_size
            with source.open("rb") as file, archive.open(info, "w") as member:
                shutil.copyfileobj(file, member, _BLOCK)
