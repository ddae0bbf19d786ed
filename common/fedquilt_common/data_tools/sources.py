"""Where data sets are published: the addresses that ``fedquilt data get`` downloads, or the steps for a person.

A checksum is that of the publisher, or the one that several independent users of the file report. Files without one are
recorded at the first download (``manifest.py``) and checked from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Unpacking:
    """How a downloaded archive becomes what a loader reads. The archive is deleted afterwards.

    Attributes:
        name: the new folder, or the new file if the download is a single packed file.
        inner: the archive in the archive that is unpacked; "" for none.
    """

    name: str
    inner: str = ""


@dataclass(frozen=True)
class PublishedFileSource:
    """A file to download.

    Attributes:
        url: on a web server or on Google Drive.
        name: in the data set's folder.
        sha256: in hex; None if no checksum is known.
        size: bytes; None if unknown.
        unpack: how it is unpacked; None: loaders read it as it is.
    """

    url: str
    name: str
    sha256: str | None = None
    size: int | None = None
    unpack: Unpacking | None = None


_UCI: Final = "https://archive.ics.uci.edu/static/public"
_MNIST: Final = "https://storage.googleapis.com/cvdf-datasets/mnist"
_FASHION: Final = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
    "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion"
)
_AEP: Final = (
    "https://raw.githubusercontent.com/LuisM78/Appliances-energy-prediction-data/"
    "e3e4c27a4ae2b41b21f84b4c9ac2d822d3d0ace1"
)
_EPIC: Final = (
    "https://raw.githubusercontent.com/epic-kitchens/epic-sounds-annotations/57a922f0d352e9429f1ef8a37eee21758dd3a33c"
)
_FL_HAR: Final = "https://media.githubusercontent.com/media/xmouyang/FL-Datasets-for-HAR"
_TFF: Final = "https://storage.googleapis.com/tff-datasets-public"
_DRIVE: Final = "https://drive.google.com/uc?id="
_WISDM: Final = (
    PublishedFileSource(
        f"{_UCI}/507/wisdm+smartphone+and+smartwatch+activity+and+biometrics+dataset.zip",
        "wisdm.zip",
        unpack=Unpacking("published"),
    ),
)

SOURCES: Final[Mapping[str, tuple[PublishedFileSource, ...]]] = {
    "aep": (
        PublishedFileSource(f"{_AEP}/energydata_complete.csv", "energydata_complete.csv",
                            "2820bf712ad0275cb18b85a05250926100d8e65ebb9f4d2d016ca91ea152a25d", 11_979_363),
        PublishedFileSource(f"{_AEP}/testing.csv", "testing.csv"),
    ),
    "casas": tuple(
        PublishedFileSource(f"https://casas.wsu.edu/datasets/{home}.zip", f"{home}.zip")
        for home in ("milan", "cairo", "twor.2009", "twor.summer.2009", "twor.2010")
    ),
    "cifar10": (
        PublishedFileSource("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "cifar-10-binary.tar.gz",
                            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd", 170_052_171,
                            Unpacking("cifar-10-batches-bin")),
    ),
    "cifar100": (
        PublishedFileSource("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "cifar-100-binary.tar.gz",
                            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec", None,
                            Unpacking("cifar-100-binary")),
    ),
    "depth": (
        PublishedFileSource(f"{_FL_HAR}/eb33cb24a9847d41f71f61cbfe54bc1fb5261d96/datasets/Depth/depth_dataset.zip",
                            "depth_dataset.zip", "8d3c28b7d4b42003a1913afce47d13dc19f5ce669f4e03b7c7269b0deb601790",
                            36_481_579, Unpacking("depth_dataset")),
    ),
    "epic-sounds": (
        PublishedFileSource(f"{_EPIC}/EPIC_Sounds_train.csv", "EPIC_Sounds_train.csv"),
        PublishedFileSource(f"{_EPIC}/EPIC_Sounds_validation.csv", "EPIC_Sounds_validation.csv"),
    ),
    "fashion-mnist": (
        PublishedFileSource(f"{_FASHION}/train-images-idx3-ubyte.gz", "train-images-idx3-ubyte.gz",
                            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
        PublishedFileSource(f"{_FASHION}/train-labels-idx1-ubyte.gz", "train-labels-idx1-ubyte.gz",
                            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
        PublishedFileSource(f"{_FASHION}/t10k-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz",
                            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
        PublishedFileSource(f"{_FASHION}/t10k-labels-idx1-ubyte.gz", "t10k-labels-idx1-ubyte.gz",
                            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
    ),
    "harbox": (
        PublishedFileSource(f"{_FL_HAR}/09ec437c9f7c5b3e8257b6d617b82a5b3b3a689e/datasets/HARBox/large_scale_HARBox.zip",
                            "large_scale_HARBox.zip",
                            "4fdf91e26f698e2b5e349be2af08fb41a5ccd86e2254b4bd3b81eaf77959d12f", 131_571_985,
                            Unpacking("large_scale_HARBox")),
    ),
    "mnist": (
        PublishedFileSource(f"{_MNIST}/train-images-idx3-ubyte.gz", "train-images-idx3-ubyte.gz",
                            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422),
        PublishedFileSource(f"{_MNIST}/train-labels-idx1-ubyte.gz", "train-labels-idx1-ubyte.gz",
                            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881),
        PublishedFileSource(f"{_MNIST}/t10k-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz",
                            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877),
        PublishedFileSource(f"{_MNIST}/t10k-labels-idx1-ubyte.gz", "t10k-labels-idx1-ubyte.gz",
                            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542),
    ),
    "stack-overflow": (
        PublishedFileSource(f"{_TFF}/stackoverflow.sqlite.lzma", "stackoverflow.sqlite.lzma",
                            unpack=Unpacking("stackoverflow.sqlite")),
        PublishedFileSource(f"{_TFF}/stackoverflow.word_count.tar.bz2", "stackoverflow.word_count.tar.bz2",
                            "1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c"),
    ),
    "uci-har": (
        PublishedFileSource(f"{_UCI}/240/human+activity+recognition+using+smartphones.zip", "uci-har.zip",
                            "c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031", None,
                            Unpacking("UCI HAR Dataset", "UCI HAR Dataset.zip")),
    ),
    "ut-har": (PublishedFileSource(f"{_DRIVE}1fEiI3nAoOsddR5qcJQXqz4ocM3aMAcwz", "UT_HAR.zip"),),
    "visdrone": (
        PublishedFileSource(f"{_DRIVE}1a2oHjcEcwXP8oUF95qiwrqzACb2YlUhn", "VisDrone2019-DET-train.zip"),
        PublishedFileSource(f"{_DRIVE}1PFdW_VFSCfZ_sTSZAGjQdifF_Xd5mf0V", "VisDrone2019-DET-test-dev.zip"),
    ),
    "wisdm-p": _WISDM,
    "wisdm-w": _WISDM,
}  # fmt: skip
"""Files of each data set that a program can download."""

STEPS: Final[Mapping[str, str]] = {
    "clusterfl-imu": (
        "Its authors offer the IMU data on their page, https://github.com/xmouyang/FL-Datasets-for-HAR, for "
        "non-commercial academic research. Download the archive there, and put its folder imu_data_7 into {folder}."
    ),
    "epic-sounds": (
        "The sound belongs to EPIC-KITCHENS-100, whose licence you accept on its page, "
        "https://github.com/epic-kitchens/download-scripts-100; or ask uob-epic-kitchens@bristol.ac.uk for "
        "EPIC_audio.hdf5. Put that file, or WAV files of one channel at 24 kHz such as P01_01.wav, into {folder}."
    ),
    "femnist": (
        "LEAF builds it: clone https://github.com/TalwalkarLab/leaf, run `./preprocess.sh -s niid --sf 1.0 -k 0 "
        "-t sample` in data/femnist, and copy the folders train and test of data/femnist/data into {folder}."
    ),
    "harb": (
        "The FedAKD thesis does not publish its recordings. Make your own with a wristband: a folder for each "
        "volunteer in {folder}, with files such as anna/walking-1.txt. docs/datasets.md describes their lines."
    ),
    "widar": (
        "Register on http://tns.thss.tsinghua.edu.cn/widar3.0, accept the licence there, download BVP.zip, and put it "
        "into {folder} as it is."
    ),
}
"""What a person does where no program can; ``{folder}`` is the data set's folder."""
