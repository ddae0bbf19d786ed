"""What the publishers offer of each data set: files, size and licence. docs/datasets.md describes the preparation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedquilt_common.datasets.files import FOLDERS, SUFFIXES, is_finished
from fedquilt_common.downloads.members import TAR_SUFFIXES

_ARCHIVES: Final = ("**/*.zip", *(f"**/*{suffix}" for suffix in TAR_SUFFIXES))
_UNSTATED: Final = "none stated; see the publisher's page"


@dataclass(frozen=True)
class NeededFile:
    """A file that a loader reads, or a group of files.

    Attributes:
        name: for people.
        patterns: globs below the data set's folder; a file that matches one of them is enough.
        others: globs of files that match a pattern, but belong to something else.
    """

    name: str
    patterns: tuple[str, ...]
    others: tuple[str, ...] = ()

    def is_in(self, folder: Path) -> bool:
        """Whether the folder has such a file."""
        found = (path for pattern in self.patterns for path in folder.glob(pattern))
        right = (path for path in found if not any(path.match(other) for other in self.others))
        return any(path.is_file() and is_finished(path, folder) for path in right)


@dataclass(frozen=True)
class PublishedSet:
    """A data set as it is published.

    Attributes:
        task: what is learned.
        licence: what the publisher states.
        megabytes: approximate size of the published files.
        files: what its loader reads; none if a Python package holds the data set.
    """

    task: str
    licence: str
    megabytes: int
    files: tuple[NeededFile, ...]

    def find_missing(self, folder: Path) -> Iterator[str]:
        """Yield the names of the needed files that are not in ``folder``."""
        for file in self.files:
            if not file.is_in(folder):
                yield file.name


def _plain(*names: str, inner: str = "") -> tuple[NeededFile, ...]:
    """Files that lie in the folder, or in its folder ``inner``; as published or packed."""
    places = ("", f"{inner}/") if inner else ("",)
    return tuple(
        NeededFile(name, tuple(f"{place}{name}{suffix}" for place in places for suffix in SUFFIXES)) for name in names
    )


def _anywhere(name: str, *patterns: str, others: tuple[str, ...] = ()) -> tuple[NeededFile, ...]:
    """Files that lie anywhere in the folder, even in archives, whose contents are not looked at."""
    packed = tuple(f"**/{pattern}{suffix}" for pattern in patterns for suffix in SUFFIXES)
    return (NeededFile(name, (*packed, *_ARCHIVES), others),)


def _wisdm(device: str, other: str) -> tuple[NeededFile, ...]:
    """Files of a device, also in archives that do not name the other one."""
    others = tuple(f"*{other}*{suffix}" for suffix in TAR_SUFFIXES)
    return (
        *_anywhere(f"accelerometer of the {device}", f"data_*_accel_{device}.txt", others=others),
        *_anywhere(f"gyroscope of the {device}", f"data_*_gyro_{device}.txt", others=others),
    )


_IDX: Final = (
    "train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte",
)  # fmt: skip

PUBLISHED: Final[Mapping[str, PublishedSet]] = {
    "aep": PublishedSet("regression", _UNSTATED, 12, (
        NeededFile("energydata_complete.csv", (
            *(f"energydata_complete.csv{suffix}" for suffix in SUFFIXES), "energydata_complete.zip",
        )),
    )),
    "casas": PublishedSet("classification", _UNSTATED, 233, tuple(
        NeededFile(home, (f"**/{home}/**/*", f"**/{home}*"))
        for home in ("milan", "cairo", "twor.2009", "twor.summer.2009", "twor.2010")
    )),
    "cifar10": PublishedSet("classification", _UNSTATED, 170, (
        *(NeededFile(f"data_batch_{number}.bin", (f"**/data_batch_{number}*.bin*",)) for number in range(1, 6)),
        NeededFile("test_batch.bin", ("**/test_batch*.bin*",)),
    )),
    "cifar100": PublishedSet(
        "classification", _UNSTATED, 169, _plain("train.bin", "test.bin", inner="cifar-100-binary"),
    ),
    "clusterfl-imu": PublishedSet("classification", "non-commercial, academic research only", 30, (
        NeededFile("imu_data_7", ("imu_data_7/*_nor.txt*", "server_x_test.txt*")),
    )),
    "depth": PublishedSet("classification", "non-commercial, academic research only", 36, (
        NeededFile("outdoor, indoor_normal, indoor_dark", ("*/Node*/*/*.png", "depth_dataset/*/Node*/*/*.png")),
    )),
    "digits": PublishedSet("classification", "CC BY 4.0; it comes with scikit-learn", 0, ()),
    "epic-sounds": PublishedSet("classification", "CC BY-NC 4.0", 34_000, (
        *_plain("EPIC_Sounds_train.csv", "EPIC_Sounds_validation.csv"),
        NeededFile("EPIC_audio.hdf5, or WAV files", ("EPIC_audio.hdf5", "**/P*_*.wav", "**/P*_*.flac")),
    )),
    "fashion-mnist": PublishedSet("classification", "MIT", 31, _plain(*_IDX)),
    "femnist": PublishedSet("classification", "BSD 2-clause (LEAF); the images are NIST's", 1000, (
        NeededFile("train/*.json", ("train/**/*.json*", "data/train/**/*.json*")),
        NeededFile("test/*.json", ("test/**/*.json*", "data/test/**/*.json*")),
    )),
    "harb": PublishedSet("classification", "not published; your own recordings", 0, (
        NeededFile("volunteer/walking*.txt", ("*/walking*", "*/studying*", "*/sleeping*")),
    )),
    "harbox": PublishedSet("classification", "non-commercial, academic research only", 132, (
        NeededFile("large_scale_HARBox", ("large_scale_HARBox/*/*_train.txt*", "*/*_train.txt*")),
    )),
    "mnist": PublishedSet("classification", _UNSTATED, 12, _plain(*_IDX)),
    "stack-overflow": PublishedSet("next-word", "CC BY-SA 3.0", 5600, (
        NeededFile("stackoverflow.sqlite", ("stackoverflow.sqlite",)),
        NeededFile("stackoverflow.word_count", ("**/stackoverflow.word_count*",)),
    )),
    "uci-har": PublishedSet("classification", "CC BY 4.0; its README forbids commercial use", 61, _plain(
        "train/X_train.txt", "train/y_train.txt", "train/subject_train.txt",
        "test/X_test.txt", "test/y_test.txt", "test/subject_test.txt", inner="UCI HAR Dataset",
    )),
    "ut-har": PublishedSet("classification", _UNSTATED, 854, _anywhere(
        "X_train.csv or trials", "X_train.csv", "input_*.csv"
    )),
    "visdrone": PublishedSet("detection", "CC BY-NC-SA 3.0", 1800, (
        NeededFile("VisDrone2019-DET-train.zip", ("*train*.zip", "**/*train*/images/*.jpg", "images/*.jpg")),
        NeededFile("VisDrone2019-DET-test-dev.zip", ("*test-dev*.zip", "**/*test*/images/*.jpg")),
    )),
    "widar": PublishedSet("classification", "CC BY-NC 4.0", 3300, _anywhere("BVP.zip", "*.mat")),
    "wisdm-p": PublishedSet("classification", _UNSTATED, 309, _wisdm("phone", "watch")),
    "wisdm-w": PublishedSet("classification", _UNSTATED, 309, _wisdm("watch", "phone")),
}  # fmt: skip
"""Every name of ``DATASETS`` has an entry."""


def find_folder(name: str) -> str:
    """Return the name of a data set's folder below the one in FEDQUILT_DATA."""
    return FOLDERS.get(name, name)
