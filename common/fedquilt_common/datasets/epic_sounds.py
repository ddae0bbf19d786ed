"""EPIC-SOUNDS: 44 classes of sounds in kitchens, as log-mel spectrograms of 400 times and 128 bands.

Huh, Chalk, Kazakos, Damen and Zisserman, "EPIC-SOUNDS: A Large-Scale Dataset of Actions that Sound", ICASSP 2023. Reads
``EPIC_Sounds_train.csv`` and ``EPIC_Sounds_validation.csv`` in ``<FEDQUILT_DATA>/epic-sounds``, and the sound of the
videos of EPIC-KITCHENS-100 with one channel at 24 kHz: ``EPIC_audio.hdf5``, as the authors offer it, with an array for
each video, or files such as ``P01_01.wav`` anywhere in the folder. Needs h5py or soundfile, and SciPy.

The preparation is FedAIoT's (Alam et al., journal paper, section 3.2.2) with the numbers of its code: Hann windows of
10 ms every 5 ms, 128 bands on HTK's mel scale, the natural logarithm, 400 times, which are 2 s. A shorter segment ends
with repetitions of its last time. Of a longer one the middle is used; FedAIoT's code cuts at random in each epoch, and
tests five cuts of each segment. Nothing is fitted to the data. The participants are the natural clients.
"""

from __future__ import annotations

import csv
import functools
import importlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.files import (
    dataset_folder,
    find_file,
    find_files,
    note_file,
    open_packed,
    report_csv_errors,
)
from fedquilt_common.datasets.log_mel import log_mel, mel_filters
from fedquilt_common.datasets.parts import DatasetPart, PartedDataset, Split
from fedquilt_common.datasets.repairs import describe_repairs
from fedquilt_common.errors import DataUnavailableError, how_to_install
from fedquilt_common.types import Examples

NAME = "epic-sounds"
CLASSES = 44
RATE = 24_000
WINDOW, STEP = 240, 120
"""Samples of sound of a frame, and from a frame to the next one: 10 ms and 5 ms."""
TRANSFORM = 2048
BANDS, TIMES = 128, 400
CLIP = 47_976
"""Samples of sound of 400 frames: 1.999 s."""
HDF5 = "EPIC_audio.hdf5"
SOUND_FILES = (".wav", ".flac")
FILES: Mapping[Split, str] = {"train": "EPIC_Sounds_train.csv", "test": "EPIC_Sounds_validation.csv"}
ANNOTATIONS: Mapping[Split, int] = {"train": 60_055, "test": 8_035}
"""Number of annotations in each published file."""
_COLUMNS = ("annotation_id", "participant_id", "video_id", "start_sample", "stop_sample", "class_id")
_PARTICIPANT = re.compile(r"P(\d+)")


@dataclass(frozen=True)
class SoundSegment:
    """An annotated sound.

    Attributes:
        start: its first sample of sound.
        stop: the one after its last.
        label: its class.
        where: file and line, for errors.
    """

    start: int
    stop: int
    label: int
    where: str


@dataclass(frozen=True)
class Sound:
    """Where the sound of a video lies.

    Attributes:
        path: a sound file, or the HDF5 file.
        video: the name of its array in the HDF5 file; empty in a sound file.
    """

    path: Path
    video: str = ""

    @property
    def where(self) -> str:
        """Return its path for errors."""
        return f"{self.path}, {self.video}" if self.video else str(self.path)


_Videos = dict[tuple[int, str], list[SoundSegment]]
"""Segments by participant and video."""
_AnnotationRow = Mapping[str, Any]


def load(folder: Path | None = None) -> PartedDataset:
    """Read the annotations, and return a reader for each video.

    ``x`` is float32 of shape (n, 1, 400 times, 128 bands), ``y`` int64 of shape (n,) from 0 to 43. The subjects are the
    participants' numbers.

    Raises:
        DataUnavailableError: files are missing or damaged, the error names file and line; or a package is missing.
    """
    place, repairs = dataset_folder(folder, NAME), Counter[str]()
    videos = {split: _read_annotations(find_file(place, name), repairs) for split, name in FILES.items()}
    sounds = _find_sounds(place)
    readers = [
        functools.partial(
            read_video, split, sounds[video], participant, tuple(_check(segments, sounds[video], repairs))
        )
        for split in FILES
        for (participant, video), segments in _choose_videos(videos[split], sounds, repairs)
    ]
    _check_splits(readers, place)
    notes = [*_describe_missing(videos), *describe_repairs(repairs)]
    return PartedDataset(NAME, CLASSES, readers, f"{NAME}: {'; '.join(notes)}" if notes else "")


def read_video(split: Split, sound: Sound, participant: int, segments: Sequence[SoundSegment]) -> DatasetPart:
    """Read the segments of one video; only their samples of sound are read.

    Raises:
        DataUnavailableError: the sound is damaged.
    """
    with _open_sound(sound) as read:
        x = np.stack([_read_segment(segment, sound, read) for segment in segments])[:, None]
    y = np.array([segment.label for segment in segments], dtype=np.int64)
    return DatasetPart(split, Examples(x, y), np.full(len(y), participant, dtype=np.int64))


def _describe_missing(videos: Mapping[Split, _Videos]) -> Iterator[str]:
    for split, name in FILES.items():
        count = sum(map(len, videos[split].values()))
        if count < ANNOTATIONS[split]:
            yield f"{name} has only {count:,} of {ANNOTATIONS[split]:,} annotations"


def _read_annotations(path: Path, repairs: Counter[str]) -> _Videos:
    """Read the segments of a file; those of a repeated row count once."""
    videos, found = _Videos(), dict[str, _AnnotationRow]()
    for where, row in _read_rows(path):
        participant, segment = _parse_row(row, where)
        if found.setdefault(row["annotation_id"], row) is row:
            videos.setdefault((participant, row["video_id"]), []).append(segment)
        elif found[row["annotation_id"]] == row:
            repairs["repeated annotations left out"] += 1
        else:
            raise DataUnavailableError(
                f"{where}: is another annotation {row['annotation_id']} than a line above it; fetch the file again"
            )
    if not videos:
        raise DataUnavailableError(f"{path}: has no annotations; fetch the file again")
    return dict(sorted(videos.items()))


def _read_rows(path: Path) -> Iterator[tuple[str, _AnnotationRow]]:
    """Read the rows below the header, each with its file and line for errors."""
    with open_packed(path) as stream, report_csv_errors(path):
        text = io.TextIOWrapper(stream, "utf-8-sig", errors="replace", newline="")
        rows = csv.DictReader(_read_whole_lines(text, path))
        if missing := [column for column in _COLUMNS if column not in (rows.fieldnames or ())]:
            raise DataUnavailableError(f"{path}, line 1: lacks the columns {', '.join(missing)}; fetch the file again")
        for row in rows:
            yield f"{path}, line {rows.line_num}", row


def _read_whole_lines(text: Iterable[str], path: Path) -> Iterator[str]:
    """Read the lines of a file that ends a line last: without its end, the class of the last row may be cut."""
    for number, line in enumerate(text, 1):
        if not line.endswith(("\n", "\r")):
            raise DataUnavailableError(f"{path}, line {number}: has no end, so the file is cut; fetch the file again")
        yield line


def _parse_row(row: _AnnotationRow, where: str) -> tuple[int, SoundSegment]:
    participant = _PARTICIPANT.fullmatch(row["participant_id"] or "")
    if not participant or not re.fullmatch(rf"{participant[0]}_\d+", row["video_id"] or ""):
        raise DataUnavailableError(
            f"{where}: '{row['participant_id']}' and '{row['video_id']}' are no participant such as P01 and a video of "
            "theirs such as P01_01; fetch the file again"
        )
    try:
        start, stop, label = (int(row[column]) for column in _COLUMNS[3:])
    except (ValueError, TypeError):
        raise DataUnavailableError(
            f"{where}: start_sample, stop_sample and class_id must be whole numbers; fetch the file again"
        ) from None
    if not 0 <= start < stop:
        raise DataUnavailableError(
            f"{where}: a segment cannot last from sample {start} to sample {stop}; fetch the file again"
        )
    if label not in range(CLASSES):
        raise DataUnavailableError(f"{where}: class {label} is not from 0 to {CLASSES - 1}; fetch the file again")
    return int(participant[1]), SoundSegment(start, stop, label, where)


def _find_sounds(place: Path) -> dict[str, Sound]:
    """Return the sound of each video: the arrays of the HDF5 file if there is one, else the sound files."""
    if (place / HDF5).is_file():
        with _open_hdf5(place / HDF5) as file:
            return {video: Sound(place / HDF5, video) for video in file}
    sounds, found = dict[str, Sound](), dict[str, str]()
    for path in (path for path in find_files(place, "P*_*.*") if path.suffix.lower() in SOUND_FILES):
        note_file(found, path.stem, str(path))
        sounds[path.stem] = Sound(path)
    if not sounds:
        raise DataUnavailableError(
            f"{place}: holds no sound; put {HDF5} there, which the authors of EPIC-SOUNDS give on request, or the "
            "sound of the videos as P01_01.wav and so on, with one channel at 24 kHz"
        )
    return sounds


def _choose_videos(
    videos: _Videos, sounds: Mapping[str, Sound], repairs: Counter[str]
) -> Iterator[tuple[tuple[int, str], list[SoundSegment]]]:
    for (participant, video), segments in videos.items():
        if video in sounds:
            yield (participant, video), segments
        else:
            repairs["segments of videos without sound left out"] += len(segments)


def _check_splits(readers: Sequence[functools.partial[DatasetPart]], place: Path) -> None:
    for split, name in FILES.items():
        if not any(reader.args[0] == split for reader in readers):
            raise DataUnavailableError(f"{place}: has no sound of a video in {name}; put it there")


def _check(segments: Sequence[SoundSegment], sound: Sound, repairs: Counter[str]) -> Iterator[SoundSegment]:
    """Return the part of each segment that becomes a sample: at most its middle 2 s.

    Raises:
        DataUnavailableError: a segment begins after the end of the sound.
    """
    with _open_sound(sound) as read:
        length = read.length
    for segment in segments:
        if segment.start >= length:
            raise DataUnavailableError(
                f"{sound.where}: ends at sample {length}, before the segment in {segment.where}; fetch the sound again"
            )
        repairs["segments cut at the end of the sound"] += segment.stop > length
        repairs["segments cut to the middle 2 s"] += min(segment.stop, length) - segment.start > CLIP
        yield _cut_middle(replace(segment, stop=min(segment.stop, length)))


def _cut_middle(segment: SoundSegment) -> SoundSegment:
    rest = max(0, segment.stop - segment.start - CLIP)
    return replace(segment, start=segment.start + rest // 2, stop=segment.stop - (rest - rest // 2))


@dataclass(frozen=True)
class _OpenSound:
    """An open sound.

    Attributes:
        length: of the sound in samples.
        take: returns the samples from a first one to the one before another.
    """

    length: int
    take: Any


def _read_segment(segment: SoundSegment, sound: Sound, read: _OpenSound) -> NDArray[np.float32]:
    samples = np.asarray(read.take(segment.start, segment.stop), dtype=np.float32)
    if len(samples) != segment.stop - segment.start or not np.isfinite(samples).all():
        raise DataUnavailableError(
            f"{sound.where}: samples {segment.start} to {segment.stop} are missing or not finite; fetch the sound again"
        )
    return fill_times(log_mel(samples, mel_filters(RATE, TRANSFORM, BANDS), WINDOW, STEP))


def fill_times(spectrogram: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a spectrogram of 1 to 400 times as one of 400: the last time is repeated.

    Args:
        spectrogram: shape (times, bands).
    """
    return np.pad(spectrogram, ((0, TIMES - len(spectrogram)), (0, 0)), "edge")


@contextmanager
def _open_sound(sound: Sound) -> Iterator[_OpenSound]:
    try:
        with _open_array(sound) if sound.video else _open_file(sound) as reader:
            yield reader
    except (OSError, RuntimeError) as error:  # of h5py and soundfile
        raise DataUnavailableError(f"{sound.where}: cannot be read ({error}); fetch the sound again") from None


@contextmanager
def _open_array(sound: Sound) -> Iterator[_OpenSound]:
    with _open_hdf5(sound.path) as file:
        try:
            array = file[sound.video]
        except KeyError as error:
            raise DataUnavailableError(
                f"{sound.where}: is a link to an array that is not there ({error}); put the file there that it links to"
            ) from None
        if getattr(array, "ndim", 0) != 1 or array.dtype.kind != "f":
            raise DataUnavailableError(
                f"{sound.where}: is not an array of floating-point numbers with one dimension; convert it to numbers "
                "from -1 to 1, or fetch the file again"
            )
        yield _OpenSound(len(array), lambda start, stop: array[start:stop])


@contextmanager
def _open_file(sound: Sound) -> Iterator[_OpenSound]:
    with _import("soundfile").SoundFile(sound.path) as file:
        if (file.samplerate, file.channels) != (RATE, 1):
            raise DataUnavailableError(
                f"{sound.where}: has {file.channels} channels at {file.samplerate} Hz instead of 1 at {RATE} Hz; "
                f"extract it again with ffmpeg -i VIDEO -ac 1 -ar {RATE} {sound.path.name}"
            )

        def take(start: int, stop: int) -> NDArray[np.float32]:
            file.seek(start)
            samples: NDArray[np.float32] = file.read(stop - start, dtype="float32")
            return samples

        yield _OpenSound(file.frames, take)


@contextmanager
def _open_hdf5(path: Path) -> Iterator[Any]:
    try:
        with _import("h5py").File(path, "r") as file:
            yield file
    except (OSError, RuntimeError) as error:
        raise DataUnavailableError(f"{path}: is not an HDF5 file that can be read ({error}); fetch it again") from None


def _import(package: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except (ImportError, OSError) as error:  # soundfile raises OSError if its library is missing
        raise DataUnavailableError(
            f"the data set '{NAME}' needs {package} ({error}); {how_to_install('audio')}"
        ) from error
