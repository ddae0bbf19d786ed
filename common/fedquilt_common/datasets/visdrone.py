"""VisDrone: objects of twelve categories in 8,081 images from drones, 640 x 640 pixels.

Zhu et al., "Detection and Tracking Meet Drones Challenge", IEEE TPAMI 44(11), 2021; the data set is VisDrone2019-DET.
Reads the folders or zip archives ``VisDrone2019-DET-train`` and ``VisDrone2019-DET-test-dev`` in
``<FEDQUILT_DATA>/visdrone``. Each has ``images``, JPEG files, and ``annotations``, with a line for each object: left,
top, width, height, score, category, truncation and occlusion, with commas. Lines in YOLO's form are read too: category,
centre and size as parts of the image, with blanks; the categories are VisDrone's own numbers, too. Needs Pillow.

As in FedAIoT (Alam et al., journal paper, section 3.1), the classes are the twelve categories, so ignored regions (0)
and other objects (11) count as objects. The size is that of FedAIoT's code; the paper's Table 2 has 224 x 224. An image
is scaled to fit and centred on grey, as YOLO does. The note counts repairs.
"""

from __future__ import annotations

import functools
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.archives import ListedFile, PublishedFile, list_files, read_listed
from fedquilt_common.datasets.files import dataset_folder, note_file
from fedquilt_common.datasets.parts import DatasetPart, PartedDataset, Split
from fedquilt_common.datasets.repairs import describe_repairs
from fedquilt_common.datasets.windows import hold_out
from fedquilt_common.errors import DataUnavailableError, how_to_install
from fedquilt_common.stored_samples import as_samples
from fedquilt_common.types import Examples

if TYPE_CHECKING:
    from PIL.Image import Image

NAME = "visdrone"
CLASSES = (
    "ignored region", "pedestrian", "people", "bicycle", "car", "van", "truck", "tricycle", "awning-tricycle", "bus",
    "motor", "other",
)  # fmt: skip
"""VisDrone's categories, from 0."""
SIDE = 640
GREY = 114
MOST_BOXES = 1024
"""Boxes of an image; of more, the largest are kept."""
NO_BOX = -1.0
"""Class of the places after an image's last box."""
_LAST_OF_TEN = 9
"""Greatest category of the usual conversion to YOLO's form, whose 0 is a pedestrian."""
_BATCH = 32
"""Images that one reader decodes: 39 MB."""
_MOST_PIXELS = 1 << 25
_HEADER = 1 << 18
"""First bytes of an image, which hold its size."""
_SPLIT = re.compile(r"(?:^|[-/\\])(train|val|test-dev|test)(?:\.zip)?(?=[/\\]|$)")
_LABEL_FOLDERS = ("annotations", "labels")
_COLUMNS = {",": 8, " ": 5}
"""Numbers in a line by what is between them: VisDrone's own form, and YOLO's."""
_LARGEST_PART = 2
"""Greatest number of a box in YOLO's form, whose edge may lie outside the image."""


class _Repairs(Counter[str]):
    """Counts of repairs, and the categories that labels in YOLO's form name."""

    def __init__(self) -> None:
        super().__init__()
        self.yolo = set[int]()

    def list_notes(self) -> list[str]:
        notes = describe_repairs(self)
        if self.yolo and max(self.yolo) <= _LAST_OF_TEN:
            notes.append(
                f"no label in YOLO's form has a category above {_LAST_OF_TEN}; the numbers must be VisDrone's own, "
                "1 for a pedestrian to 10 for a motor, not those of a conversion that starts with 0 for a pedestrian"
            )
        return notes


@dataclass(frozen=True)
class _Labelled:
    """An image and its objects.

    Attributes:
        image: where it lies.
        boxes: class, centre x, centre y, width and height, the last four as parts of the prepared image, float32 of
            shape (objects, 5).
    """

    image: ListedFile
    boxes: NDArray[np.float32]


def load(folder: Path | None = None) -> PartedDataset:
    """Read all annotations, and return readers of the images.

    ``x`` has shape (n, 3, 640, 640): red, green and blue, stored as bytes and read as float32 from 0 to 1. ``y`` is
    float32 of shape (n, 1024, 5): class from 0 to 11, centre x, centre y, width and height of each box as parts of the
    image; the class is -1 where there is no box.

    Raises:
        DataUnavailableError: files are missing or damaged, the error names file and line; or Pillow is not installed.
    """
    _import_pillow()
    place, repairs = dataset_folder(folder, NAME), _Repairs()
    images = _list_images(place)
    train, test, notes = _split_images(images, place)
    labels = _find_labels(place, images, repairs)
    readers = [*_make_readers("train", train, labels, repairs), *_make_readers("test", test, labels, repairs)]
    notes += repairs.list_notes()
    return PartedDataset(NAME, len(CLASSES), readers, f"{NAME}: {'; '.join(notes)}" if notes else "", "detection")


def _make_readers(
    split: Split, images: Sequence[ListedFile], labels: dict[str, ListedFile], repairs: _Repairs
) -> Iterator[functools.partial[DatasetPart]]:
    for start in range(0, len(images), _BATCH):
        batch = images[start : start + _BATCH]
        labelled = tuple(_read_labels(batch, [labels[_key(image)] for image in batch], repairs))
        yield functools.partial(read_batch, split, labelled)


def read_batch(split: Split, images: Sequence[_Labelled]) -> DatasetPart:
    """Decode some images.

    Raises:
        DataUnavailableError: one of them is damaged.
    """
    files = read_listed([labelled.image for labelled in images])
    x = np.stack([_read_image(file) for file in files])
    y = np.stack([pad_boxes(labelled.boxes) for labelled in images])
    return DatasetPart(split, Examples(as_samples(x, 255.0), y))


def _list_images(place: Path) -> list[ListedFile]:
    images = [
        file
        for file in list_files(place, lambda path: path.lower().endswith((".jpg", ".jpeg")))
        if "test-challenge" not in file.where.removeprefix(str(place))  # its annotations are not published
    ]
    if not images:
        raise DataUnavailableError(
            f"{place}: holds no image such as VisDrone2019-DET-train/images/*.jpg; put the published folders or "
            "archives there"
        )
    return images


def _key(file: ListedFile) -> str:
    """Return what an image and its annotations have in common: the folder above theirs, and the name."""
    path = PurePath(file.member) if file.member else file.path
    return f"{file.path if file.member else ''} {path.parent.parent} {path.stem}"


def _split_images(images: Sequence[ListedFile], place: Path) -> tuple[list[ListedFile], list[ListedFile], list[str]]:
    """Return the training images, the test images and notes."""
    parts: dict[str, list[ListedFile]] = {name: [] for name in ("train", "val", "test-dev", "")}
    for image in images:
        found = _SPLIT.findall(image.where.removeprefix(str(place)).replace(", ", "/"))
        parts["test-dev" if found and found[-1] == "test" else found[-1] if found else ""].append(image)
    if parts["train"] and parts["test-dev"]:
        return parts["train"], parts["test-dev"], []
    if parts["train"] and parts["val"]:
        return parts["train"], parts["val"], ["the validation images are the test set, because test-dev is missing"]
    if len(images) < 2:
        raise DataUnavailableError(f"{place}: has one image only; put more there, so that one can be for testing")
    return _hold_out_sequences(images)


def _hold_out_sequences(images: Sequence[ListedFile]) -> tuple[list[ListedFile], list[ListedFile], list[str]]:
    """Split by whole sequences, because neighbouring images of a video are almost the same."""
    named = [(PurePath(image.member or image.path).stem, image) for image in images]
    note = "{} of {} images are the test set, which is not an official one"
    sequences = {stem.split("_")[0] for stem, _ in named}
    if len(sequences) > 1:
        chosen = hold_out(sequences, 0.2)
        is_test = [stem.split("_")[0] in chosen for stem, _ in named]
    else:
        chosen = hold_out([stem for stem, _ in named], 0.2)
        is_test = [stem in chosen for stem, _ in named]
        note += "; all images are of one sequence, so they resemble the training images"
    train, test = ([image for image, of in zip(images, is_test, strict=True) if of == part] for part in (False, True))
    return train, test, [note.format(len(test), len(images))]


def _find_labels(place: Path, images: Sequence[ListedFile], repairs: Counter[str]) -> dict[str, ListedFile]:
    """Return the annotations of each image by its key."""
    labels = {_key(file): file for file in list_files(place, _is_label_file)}
    seen = dict[str, str]()
    for image in images:
        stem = PurePath(image.member or image.path).stem
        if _key(image) not in labels:
            raise DataUnavailableError(f"{image.where}: there is no annotations/{stem}.txt for it; put it there")
        note_file(seen, stem, image.where)
    repairs["annotations without an image left out"] += len(labels) - len(images)
    return labels


def _is_label_file(path: str) -> bool:
    return path.endswith(".txt") and PurePath(path).parent.name in _LABEL_FOLDERS


def _read_labels(images: Sequence[ListedFile], labels: Sequence[ListedFile], repairs: _Repairs) -> Iterator[_Labelled]:
    """Read the annotations of some images, and the images' headers."""
    for image, header, file in zip(images, read_listed(images, _HEADER), read_listed(labels), strict=True):
        size = _read_size(header)
        yield _Labelled(image, _choose_boxes(place_boxes(_parse_boxes(file, size, repairs), size, repairs), repairs))


def _parse_boxes(file: PublishedFile, size: tuple[int, int], repairs: _Repairs) -> NDArray[np.float64]:
    """Return category, left, top, width and height in pixels of each object, of shape (objects, 5)."""
    boxes = list[list[float]]()
    for line, words in enumerate(file.data.decode("utf-8-sig", errors="replace").splitlines(), 1):
        if words.strip():
            boxes.append(_parse_box(words.strip(), size, f"{file.where}, line {line}"))
            if "," not in words:
                repairs.yolo.add(int(boxes[-1][0]))
    return np.array(boxes, dtype=np.float64).reshape(-1, 5)


def _parse_box(words: str, size: tuple[int, int], where: str) -> list[float]:
    mark = "," if "," in words else " "
    fields = words.rstrip(",").split("," if mark == "," else None)  # some files end their lines with a comma
    try:
        values = [float(field) for field in fields]
    except ValueError:
        values = []
    if len(values) != _COLUMNS[mark] or not np.isfinite(values).all():
        raise DataUnavailableError(
            f"{where}: is neither 8 numbers with commas, as VisDrone has them, nor 5 with blanks, as YOLO has them; "
            "fetch the file again"
        )
    if mark == ",":
        left, top, width, height, category = *values[:4], values[5]
    else:
        category, x, y, width, height = values
        if max(values[1:]) > _LARGEST_PART:
            raise DataUnavailableError(
                f"{where}: has a number above {_LARGEST_PART}, but YOLO's form has parts of the image from 0 to 1, not "
                "pixels; divide by the image's width and height"
            )
        left, top = (x - width / 2) * size[0], (y - height / 2) * size[1]
        width, height = width * size[0], height * size[1]
    if category not in range(len(CLASSES)):
        raise DataUnavailableError(
            f"{where}: category {category:g} is not from 0 to {len(CLASSES) - 1}; fetch the file again"
        )
    return [category, left, top, width, height]


def place_boxes(boxes: NDArray[np.float64], size: tuple[int, int], repairs: Counter[str]) -> NDArray[np.float32]:
    """Return boxes as parts of the prepared image; parts outside the image are cut off.

    Args:
        boxes: category, left, top, width and height in pixels, shape (n, 5).
        size: width and height of the image.
        repairs: counts boxes that are cut, and those left out because nothing remains.

    Returns:
        Class, centre x, centre y, width and height from 0 to 1, shape (m, 5).
    """
    start, stop = boxes[:, 1:3], boxes[:, 1:3] + boxes[:, 3:5]
    inner_start, inner_stop = start.clip(0, size), stop.clip(0, size)
    cut = (np.abs(inner_start - start) > 0.5) | (np.abs(inner_stop - stop) > 0.5)  # YOLO's form rounds
    kept = (inner_stop > inner_start).all(axis=1)
    repairs["boxes without an area left out"] += int((~kept).sum())
    repairs["boxes cut at the image's edge"] += int((cut.any(axis=1) & kept).sum())
    scaled, offset = fit_image(size)
    factor = np.array(scaled) / size
    first, last = (inner_start[kept] * factor + offset) / SIDE, (inner_stop[kept] * factor + offset) / SIDE
    return np.hstack([boxes[kept, :1], (first + last) / 2, last - first]).astype(np.float32)


def fit_image(size: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return width and height of a scaled image, and the columns and rows of grey before it."""
    scale = SIDE / max(size)
    width, height = (max(1, round(side * scale)) for side in size)
    return (width, height), ((SIDE - width) // 2, (SIDE - height) // 2)


def _choose_boxes(boxes: NDArray[np.float32], repairs: Counter[str]) -> NDArray[np.float32]:
    """Keep the largest boxes if there are too many."""
    if len(boxes) <= MOST_BOXES:
        return boxes
    repairs[f"boxes left out of images with more than {MOST_BOXES}"] += len(boxes) - MOST_BOXES
    return boxes[np.sort(np.argsort(-boxes[:, 3] * boxes[:, 4], kind="stable")[:MOST_BOXES])]


def pad_boxes(boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return boxes of shape (n, 5) with rows of class -1 after them, shape (1024, 5)."""
    padded = np.zeros((MOST_BOXES, 5), dtype=np.float32)
    padded[:, 0] = NO_BOX
    padded[: len(boxes)] = boxes
    return padded


def _read_size(file: PublishedFile) -> tuple[int, int]:
    with _open_image(file) as image:
        if image.width * image.height > _MOST_PIXELS:
            raise DataUnavailableError(
                f"{file.where}: has {image.width} x {image.height} pixels, more than VisDrone's images; fetch it again"
            )
        return image.width, image.height


def _open_image(file: PublishedFile) -> Image:
    pillow = _import_pillow()
    try:
        image: Image = pillow.open(io.BytesIO(file.data), formats=("JPEG",))
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
        raise DataUnavailableError(f"{file.where}: is not a JPEG image ({error}); fetch it again") from None
    return image


def _read_image(file: PublishedFile) -> NDArray[np.uint8]:
    """Return red, green and blue of a prepared image, shape (3, 640, 640)."""
    pillow = _import_pillow()
    with _open_image(file) as image:
        (width, height), (left, top) = fit_image(image.size)
        try:
            scaled = image.convert("RGB").resize((width, height), pillow.Resampling.BILINEAR)
        except (OSError, SyntaxError, ValueError) as error:
            raise DataUnavailableError(f"{file.where}: cannot be decoded ({error}); fetch it again") from None
    canvas = np.full((3, SIDE, SIDE), GREY, dtype=np.uint8)
    canvas[:, top : top + height, left : left + width] = np.asarray(scaled).transpose(2, 0, 1)
    return canvas


def _import_pillow() -> ModuleType:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataUnavailableError(
            f"the data set '{NAME}' consists of JPEG images, which need Pillow; {how_to_install('images')}"
        ) from error
    return Image
