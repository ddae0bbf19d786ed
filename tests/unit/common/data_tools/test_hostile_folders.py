"""``fedquilt data inspect`` of folders with damaged and hostile files."""

from __future__ import annotations

import gzip
import io
import lzma
import struct
import tarfile
import tracemalloc
import zlib
from pathlib import Path

import pytest
from PIL import Image

from fedquilt_common.cli import run as run_cli
from fedquilt_common.data_tools.folder_facts import describe_folder
from fedquilt_common.datasets.archives import read_files
from fedquilt_common.errors import DataUnavailableError


def describe(folder: Path, name: str, content: bytes) -> str:
    (folder / name).write_bytes(content)
    (found,) = describe_folder(folder)
    return found.what


def make_tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    return buffer.getvalue()


def make_png(width: int, height: int) -> bytes:
    """Return an image's header, without its pixels."""
    size = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + size + struct.pack(">I", zlib.crc32(size)) + bytes(4) + b"IDAT"
    )


def test_a_field_that_is_too_long_is_reported(tmp_path: Path) -> None:
    what = describe(tmp_path, "a.csv", b"a,b\n" + b"x" * 200_000 + b",y\n")
    assert what == "its rows cannot be counted: field larger than field limit (131072)"


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.json"])
def test_a_line_without_end_does_not_fill_the_memory(name: str, tmp_path: Path) -> None:
    packed = gzip.compress(b"1 " * (34 << 20), 1)
    tracemalloc.start()
    try:
        what = describe(tmp_path, f"{name}.gz", packed)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert what == "its rows cannot be counted: a line has 4,194,304 characters or more"


def test_a_long_line_is_counted(tmp_path: Path) -> None:
    assert describe(tmp_path, "a.txt", (b"1.25 " * 22_500 + b"\n") * 3) == "3 rows, 22500 columns"


def test_a_damaged_tar_is_reported(tmp_path: Path) -> None:
    packed = bytearray(lzma.compress(make_tar()))
    packed[40] ^= 255
    assert describe(tmp_path, "a.tar.xz", bytes(packed)).startswith("is damaged (")


def test_a_header_of_a_tar_does_not_fill_the_memory(tmp_path: Path) -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 700 << 20
    what = describe(tmp_path, "a.tar.gz", gzip.compress(header.tobuf() + bytes(1 << 20)))
    assert what == f"is damaged (a header has {700 << 20} bytes); fetch it again"
    with pytest.raises(DataUnavailableError, match=f"is damaged .a header has {700 << 20} bytes"):
        list(read_files(tmp_path, lambda _: True))


def test_names_in_a_folder_do_not_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a\x1b[2J.csv").write_text("x,class\n1,be\x1b]0;ep\x07\n2,click\n")
    run_cli(["data", "inspect", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "a [2J.csv: 2 classes: be ]0;ep  1, click 1" in printed
    assert "\x1b" not in printed


@pytest.mark.filterwarnings("error")
def test_images_with_too_many_pixels_are_not_opened(tmp_path: Path) -> None:
    assert (
        describe(tmp_path, "a.png", make_png(60_000, 60_000)) == "images; a.png is damaged, or too large to be opened"
    )
    assert describe(tmp_path, "a.png", make_png(12_000, 10_000)) == "images of 12000 x 10000"
    Image.new("RGB", (20, 10)).save(tmp_path / "a.png")
    assert [facts.what for facts in describe_folder(tmp_path)] == ["images of 20 x 10"]
