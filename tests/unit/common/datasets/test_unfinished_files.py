"""Half-downloaded and half-unpacked files are no data, neither for loaders nor for ``fedquilt data list``."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from fedquilt_common.data_tools.folder_facts import describe_folder
from fedquilt_common.data_tools.published import PUBLISHED
from fedquilt_common.datasets.archives import list_files, read_files
from fedquilt_common.datasets.epic_sounds import _find_sounds
from fedquilt_common.errors import DataUnavailableError

UNFINISHED = (
    ".published.unpacking/raw/{}", ".published.ready/{}", ".wisdm.outer/{}", ".{}.new", "{}.part", "{}.part.json",
)  # fmt: skip


def put(place: Path, *names: str) -> Path:
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"x")
    return place


@pytest.mark.parametrize("unfinished", UNFINISHED)
def test_readers_leave_unfinished_files_out(unfinished: str, tmp_path: Path) -> None:
    place = put(tmp_path / ".cache" / "set", "published/a.txt", unfinished.format("b.txt"))
    packed = place / unfinished.format("c.zip")
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("c.txt", b"x")
    assert [file.name for file in read_files(place, lambda _: True)] == ["a.txt"]
    assert [file.path.name for file in list_files(place, lambda _: True)] == ["a.txt"]
    assert [file.path for file in describe_folder(place)] == ["published/a.txt"]


@pytest.mark.parametrize("unfinished", UNFINISHED)
@pytest.mark.parametrize(
    ("name", "file"),
    [("epic-sounds", "P01_01.wav"), ("widar", "user1.mat"), ("wisdm-p", "data_1600_accel_phone.txt"),
     ("femnist", "train/all_data_0.json"), ("casas", "milan.zip"), ("mnist", "train-images-idx3-ubyte.gz")],
)  # fmt: skip
def test_the_list_does_not_count_unfinished_files(name: str, file: str, unfinished: str, tmp_path: Path) -> None:
    folder, inner = Path(file).parent, Path(file).name
    everything = len(PUBLISHED[name].files)
    put(tmp_path, str(folder / unfinished.format(inner)))
    assert len(list(PUBLISHED[name].find_missing(tmp_path))) == everything
    put(tmp_path, file)
    assert len(list(PUBLISHED[name].find_missing(tmp_path))) == everything - 1


@pytest.mark.parametrize("unfinished", UNFINISHED)
def test_unfinished_sounds_are_left_out(unfinished: str, tmp_path: Path) -> None:
    put(tmp_path, unfinished.format("P01_01.wav"))
    with pytest.raises(DataUnavailableError, match="holds no sound"):
        _find_sounds(tmp_path)
