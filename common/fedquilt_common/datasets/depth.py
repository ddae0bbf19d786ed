"""Depth: images of five hand gestures from a depth camera, 36 x 36 pixels, in three places.

Ouyang et al., "ClusterFL: A Similarity-Aware Federated Learning System for Human Activity Recognition", MobiSys 2021.
Reads the folders as the authors publish them, in ``<FEDQUILT_DATA>/depth`` or the folder ``depth_dataset`` in it:
``outdoor``, ``indoor_normal`` and ``indoor_dark``, in each of them ``Node0`` and so on, and in these a folder of PNG
images for each gesture, of 8 bits a pixel or of 16: white is 255 or 65,535. A node of a place counts as a person.
Needs Pillow.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.files import dataset_folder, inner_folder
from fedquilt_common.datasets.tables import split_each_person
from fedquilt_common.errors import DataUnavailableError, how_to_install
from fedquilt_common.types import Dataset

if TYPE_CHECKING:
    from PIL.Image import Image

NAME = "depth"
GESTURES = ("good", "ok", "victory", "stop", "fist")
PLACES = ("outdoor", "indoor_normal", "indoor_dark")
SIDE = 36
_FOLDER = "depth_dataset"
_WHITE, _WHITE_16 = np.float32(255), np.float32(65535)


def load(folder: Path | None = None) -> Dataset:
    """Load the images: ``x`` float32 of shape (n, 1, 36, 36) from 0 to 1, ``y`` int64 of shape (n,) from 0 to 4.

    Raises:
        DataUnavailableError: a file is missing or damaged, or Pillow is not installed.
    """
    place = inner_folder(dataset_folder(folder, NAME), _FOLDER)
    nodes = [node for name in PLACES for node in sorted((place / name).glob("Node*")) if node.is_dir()]
    x, labels, persons = list[NDArray[np.float32]](), list[int](), list[int]()
    for person, node in enumerate(nodes):
        for kind, gesture in enumerate(GESTURES):
            images = [_read_image(path) for path in sorted((node / gesture).glob("*.png"))]
            x += images
            labels += [kind] * len(images)
            persons += [person] * len(images)
    if not x:
        raise DataUnavailableError(f"{place}: holds no images such as outdoor/Node0/good/*.png; put them there")
    return split_each_person(NAME, np.stack(x), np.array(labels), np.array(persons), GESTURES)


def _read_image(path: Path) -> NDArray[np.float32]:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataUnavailableError(
            f"the data set 'depth' consists of PNG images, which need Pillow; {how_to_install('images')}"
        ) from error
    try:
        with Image.open(path, formats=("PNG",)) as image:
            if image.size != (SIDE, SIDE):  # the file's header has the size, so no pixel is unpacked
                raise DataUnavailableError(
                    f"{path}: has {image.size} pixels instead of {SIDE} x {SIDE}; fetch it again"
                )
            if image.mode.startswith("I"):  # 16 bits, which a conversion to 8 would clip
                return _scale(image, _WHITE_16)
            return _scale(image.convert("L"), _WHITE)
    except (OSError, SyntaxError, ValueError) as error:
        raise DataUnavailableError(
            f"{path}: is not a PNG image that Pillow can read: {error}; fetch it again"
        ) from None


def _scale(image: Image, white: np.float32) -> NDArray[np.float32]:
    return np.divide(np.asarray(image, dtype=np.float32)[None], white, dtype=np.float32)
