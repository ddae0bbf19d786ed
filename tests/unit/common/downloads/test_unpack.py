"""Archives, also hostile and damaged ones."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from fedquilt_common.data_tools.folder_facts import describe_folder
from fedquilt_common.data_tools.published import PUBLISHED
from fedquilt_common.datasets.archives import read_files
from fedquilt_common.downloads import unpack as module
from fedquilt_common.downloads.members import TAR_SUFFIXES
from fedquilt_common.downloads.unpack import UnpackLimits, unpack, unpack_file
from fedquilt_common.errors import DataUnavailableError

FILES = {"set/a.txt": b"first" * 1000, "set/deep/b.bin": bytes(range(256)), "set/empty": b"", "beside.txt": b"no"}


def make_zip(path: Path, files: dict[str, bytes], folders: tuple[str, ...] = ()) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder in folders:
            archive.writestr(f"{folder}/", b"")
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def make_tar(path: Path, *members: tuple[tarfile.TarInfo, bytes], mode: Literal["w", "w:gz", "w:xz"] = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for info, content in members:
            info.size = len(content) if info.isreg() else 0
            archive.addfile(info, io.BytesIO(content))
    return path


def plain(name: str) -> tarfile.TarInfo:
    return tarfile.TarInfo(name)


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".tar": lambda data: data, ".tar.gz": gzip.compress, ".tgz": gzip.compress, ".tar.xz": lzma.compress,
    ".txz": lzma.compress, ".tar.bz2": bz2.compress, ".tbz2": bz2.compress,
}  # fmt: skip


@pytest.mark.parametrize("suffix", [".zip", *PACKERS])
def test_every_kind_of_archive_is_unpacked(tmp_path: Path, suffix: str) -> None:
    archive = tmp_path / f"published{suffix}"
    if suffix == ".zip":
        make_zip(archive, FILES, ("set", "set/deep"))
    else:
        make_tar(archive, *((plain(name), content) for name, content in FILES.items()))
        archive.write_bytes(PACKERS[suffix](archive.read_bytes()))
    done: list[int] = []
    unpack(archive, tmp_path / "out", on_progress=done.append)
    assert contents(tmp_path / "out") == FILES
    assert done[-1] == sum(map(len, FILES.values()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", archive.name]


@pytest.mark.parametrize("suffix", TAR_SUFFIXES)
def test_every_tar_that_is_unpacked_is_also_read_listed_and_described(tmp_path: Path, suffix: str) -> None:
    archive = make_tar(tmp_path / f"phone{suffix}", *((plain(name), content) for name, content in FILES.items()))
    archive.write_bytes(PACKERS[suffix](archive.read_bytes()))
    unpack(archive, tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    assert [file.name for file in read_files(tmp_path, lambda _: True)] == [Path(name).name for name in FILES]
    for name in ("ut-har", "wisdm-p"):
        assert not list(PUBLISHED[name].find_missing(tmp_path))
    assert [file.what for file in describe_folder(tmp_path)] == ["4 files, such as beside.txt"]


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tar.xz"])
def test_a_tar_may_be_packed_otherwise_than_its_name_says(tmp_path: Path, suffix: str, packing: str) -> None:
    archive = make_tar(tmp_path / f"a{suffix}", *((plain(name), content) for name, content in FILES.items()))
    archive.write_bytes(PACKERS[packing](archive.read_bytes()))
    unpack(archive, tmp_path / "out")
    assert contents(tmp_path / "out") == FILES


def test_the_only_folder_of_an_archive_can_be_left_out(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "a.zip", {"set/a": b"1", "set/deep/b": b"2", "__MACOSX/set/._a": b"3"})
    unpack(archive, tmp_path / "kept")
    unpack(archive, tmp_path / "stripped", strip_top=True)
    assert contents(tmp_path / "kept") == {"set/a": b"1", "set/deep/b": b"2"}
    assert contents(tmp_path / "stripped") == {"a": b"1", "deep/b": b"2"}
    unpack(make_zip(tmp_path / "b.zip", FILES), tmp_path / "several", strip_top=True)
    assert contents(tmp_path / "several") == FILES
    assert not list(tmp_path.glob(".*"))


def test_modes_of_the_archive_are_not_taken(tmp_path: Path) -> None:
    info = plain("set/a")
    info.mode = 0o6777
    unpack(make_tar(tmp_path / "a.tar", (info, b"x")), tmp_path / "out")
    assert stat.S_IMODE((tmp_path / "out" / "set" / "a").stat().st_mode) & 0o7111 == 0


ESCAPES = ("../out.txt", "/etc/fedquilt-test", "a/../../out.txt", "..\\out.txt", "C:\\out.txt", "a/..", "\\\\host\\x")


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_paths_that_lead_out_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    place = tmp_path / "place"
    place.mkdir()
    archive = place / f"evil.{kind}"
    if kind == "zip":
        make_zip(archive, {"good.txt": b"x", name: b"y"})
    else:
        make_tar(archive, (plain("good.txt"), b"x"), (plain(name), b"y"))
    with pytest.raises(DataUnavailableError, match=r"its member '.*' leads out of the folder"):
        unpack(archive, place / "out")
    assert not (place / "out").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["place"]
    assert not Path("/etc/fedquilt-test").exists()


@pytest.mark.parametrize(
    "member",
    [
        special("link", tarfile.SYMTYPE, "/etc"), special("link", tarfile.SYMTYPE, "good.txt"),
        special("link", tarfile.LNKTYPE, "../../etc/passwd"), special("pipe", tarfile.FIFOTYPE),
        special("disk", tarfile.BLKTYPE), special("null", tarfile.CHRTYPE),
    ],
)  # fmt: skip
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    archive = make_tar(tmp_path / "a.tar", (plain("good.txt"), b"x"), (member, b""), (plain("link/passwd"), b"evil"))
    with pytest.raises(DataUnavailableError, match="is a link, a device or encrypted"):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("mode", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFBLK])
def test_links_and_devices_in_a_zip_are_refused(tmp_path: Path, mode: int) -> None:
    info = zipfile.ZipInfo("link")
    info.external_attr = (mode | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(info, "/etc")
    with pytest.raises(DataUnavailableError, match="is a link, a device or encrypted"):
        unpack(tmp_path / "a.zip", tmp_path / "out")


def test_an_encrypted_zip_is_refused(tmp_path: Path) -> None:
    data = bytearray(make_zip(tmp_path / "a.zip", {"a": b"x"}).read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(DataUnavailableError, match="encrypted"):
        unpack(tmp_path / "a.zip", tmp_path / "out")


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("names", [("a", "a"), ("a", "a/b")])
def test_members_that_overwrite_each_other_are_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    archive = make_tar(tmp_path / "a.tar", *((plain(name), b"x") for name in names))
    with pytest.raises(DataUnavailableError, match="cannot be written"):
        unpack(archive, tmp_path / "out")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        for name in names:
            zipped.writestr(name, b"x")
    with pytest.raises(DataUnavailableError, match="cannot be written"):
        unpack(tmp_path / "a.zip", tmp_path / "out")


BOMB = UnpackLimits(files=10, size=3 << 20, ratio=20, small=1 << 20)


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz", ".tar.xz"])
def test_a_bomb_ends_at_the_limit(tmp_path: Path, suffix: str) -> None:
    archive, content, written = tmp_path / f"bomb{suffix}", bytes(8 << 20), list[int]()
    if suffix == ".zip":
        make_zip(archive, {"zeros": content})
    else:
        make_tar(archive, (plain("zeros"), content))
        archive.write_bytes(PACKERS[suffix](archive.read_bytes()))
    with pytest.raises(DataUnavailableError, match=rf"unpacks to more than {1 << 20} bytes, which no data set needs"):
        unpack(archive, tmp_path / "out", limits=BOMB, on_progress=written.append)
    assert written
    assert max(written) <= 1 << 20
    assert [path.name for path in tmp_path.iterdir()] == [archive.name], "what was unpacked so far fills the disk"


def test_an_archive_of_noise_has_the_limit_of_all_bytes(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "a.zip", {"noise": os.urandom(4 << 20)})
    with pytest.raises(DataUnavailableError, match=f"more than {3 << 20} bytes"):
        unpack(archive, tmp_path / "out", limits=BOMB)


@pytest.mark.parametrize("make", [make_zip, lambda path, files: make_tar(path, *((plain(n), b"") for n in files))])
def test_too_many_files_are_refused(tmp_path: Path, make: Callable[[Path, dict[str, bytes]], Path]) -> None:
    suffix = ".zip" if make is make_zip else ".tar"
    archive = make(tmp_path / f"a{suffix}", {f"{number}": b"" for number in range(11)})
    with pytest.raises(DataUnavailableError, match="holds more than 10 files"):
        unpack(archive, tmp_path / "out", limits=BOMB)


def test_a_zip_that_lies_about_its_sizes_is_damaged(tmp_path: Path) -> None:
    data = bytearray(make_zip(tmp_path / "a.zip", {"zeros": bytes(5 << 20)}).read_bytes())
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        start = data.index(signature) + offset
        data[start : start + 4] = struct.pack("<I", 10)
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(DataUnavailableError, match="is damaged"):
        unpack(tmp_path / "a.zip", tmp_path / "out")


def test_a_tar_header_of_gigabytes_is_not_read_into_memory(tmp_path: Path) -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 4 << 30
    (tmp_path / "a.tar").write_bytes(header.tobuf() + bytes(1 << 16))
    with pytest.raises(DataUnavailableError, match=r"is damaged \(a header has 4294967296 bytes\)"):
        unpack(tmp_path / "a.tar", tmp_path / "out")


def test_a_chain_of_long_names_is_damage(tmp_path: Path) -> None:
    link = special("././@LongLink", tarfile.GNUTYPE_LONGNAME)
    link.size = 2
    block = link.tobuf(tarfile.GNU_FORMAT) + b"a\0".ljust(512, b"\0")
    (tmp_path / "a.tar").write_bytes(block * 3000 + plain("x").tobuf() + bytes(1024))
    with pytest.raises(DataUnavailableError, match=r"is damaged .*recursion"):
        unpack(tmp_path / "a.tar", tmp_path / "out")


@pytest.mark.parametrize("fields", [{"GNU.sparse.map": "1,x"}, {"GNU.sparse.size": "x", "GNU.sparse.map": "1,2"}])
def test_a_tar_with_wrong_numbers_is_damaged(tmp_path: Path, fields: dict[str, str]) -> None:
    info = plain("a")
    info.pax_headers = fields
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))
    with pytest.raises(DataUnavailableError, match="is damaged"):
        unpack(tmp_path / "a.tar", tmp_path / "out")


def test_a_zip_whose_names_are_no_text_is_damaged(tmp_path: Path) -> None:
    data = make_zip(tmp_path / "a.zip", {"a\u00e9.txt": b"x"}).read_bytes()
    (tmp_path / "a.zip").write_bytes(data.replace("\u00e9".encode(), b"\xff\xfe"))
    with pytest.raises(DataUnavailableError, match="is damaged"):
        unpack(tmp_path / "a.zip", tmp_path / "out")


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize("name", ["a" * 300, "b/" * 2500 + "c"], ids=["long", "deep"])
def test_a_name_that_is_too_long_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    archive = tmp_path / f"a.{kind}"
    if kind == "zip":
        make_zip(archive, {name: b"x"})
    else:
        make_tar(archive, (plain(name), b"x"))
    with pytest.raises(
        DataUnavailableError, match=r"cannot be written: File name too long\. Fetch|is damaged .*recursion"
    ):
        unpack(archive, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == [archive.name]


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz", ".tar.xz", ".tar.bz2"])
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_a_truncated_archive_leaves_nothing_that_looks_finished(tmp_path: Path, suffix: str, keep: float) -> None:
    archive, content = tmp_path / f"a{suffix}", os.urandom(200_000)
    if suffix == ".zip":
        make_zip(archive, {"a": content, "b": content})
    else:
        make_tar(archive, (plain("a"), content), (plain("b"), content))
        archive.write_bytes(PACKERS[suffix](archive.read_bytes()))
    archive.write_bytes(archive.read_bytes()[: int(keep * archive.stat().st_size)])
    with pytest.raises(DataUnavailableError, match=r"is damaged|holds no files"):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_flipped_bits_are_found(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "a.zip", {"a": os.urandom(100_000)})
    data = bytearray(archive.read_bytes())
    data[50_000] ^= 1
    archive.write_bytes(data)
    with pytest.raises(DataUnavailableError, match=r"is damaged \(.*; delete it, then fetch it again"):
        unpack(archive, tmp_path / "out")


def test_an_interrupted_unpacking_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = make_zip(tmp_path / "a.zip", FILES)

    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unpack(archive, tmp_path / "out", on_progress=interrupt)
    assert not (tmp_path / "out").exists()
    (tmp_path / ".out.unpacking").mkdir()  # of a process that was killed
    (tmp_path / ".out.unpacking" / "rest of the last time").write_bytes(b"x")
    unpack(archive, tmp_path / "out")
    assert contents(tmp_path / "out") == FILES
    with pytest.raises(DataUnavailableError, match="exists already"):
        unpack(archive, tmp_path / "out")


def test_what_is_no_archive_or_is_empty_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.rar").write_bytes(b"Rar!")
    with pytest.raises(DataUnavailableError, match="is neither a zip nor a tar archive"):
        unpack(tmp_path / "a.rar", tmp_path / "out")
    with pytest.raises(DataUnavailableError, match="holds no files; fetch the published archive"):
        unpack(make_zip(tmp_path / "a.zip", {}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [
        (".gz", gzip.compress),
        (".xz", lzma.compress),
        (".bz2", bz2.compress),
        (".lzma", lambda data: lzma.compress(data, lzma.FORMAT_ALONE)),
    ],
)
def test_a_single_file_is_unpacked(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    packed = tmp_path / f"a.csv{suffix}"
    packed.write_bytes(pack(b"a,b\n" * 100))
    unpack_file(packed, tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_bytes() == b"a,b\n" * 100
    packed.write_bytes(packed.read_bytes()[:-6])
    with pytest.raises(DataUnavailableError, match="is damaged"):
        unpack_file(packed, tmp_path / "b.csv")
    packed.write_bytes(pack(bytes(2 << 20)))
    with pytest.raises(DataUnavailableError, match="unpacks to more than"):
        unpack_file(packed, tmp_path / "b.csv", BOMB)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", packed.name]


def test_the_documented_limits_allow_the_published_archives() -> None:
    limits = UnpackLimits()
    assert (limits.files, limits.size, limits.ratio) == (500_000, 200 << 30, 200.0)
    assert limits.allow(1000) == 64 << 20 == module.UnpackLimits.small
    assert limits.allow(10 << 20) == 2000 << 20
    assert limits.allow(34 << 30) == 200 << 30
