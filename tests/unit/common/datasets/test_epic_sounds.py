"""EPIC-SOUNDS: annotations and sound in the published formats, made here, and the real validation annotations."""

from __future__ import annotations

import lzma
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.data import real_data
from tests.support.joined_parts import join_parts
from tests.support.packages import needs

from fedquilt_common.datasets import epic_sounds
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.types import Dataset

h5py = pytest.importorskip("h5py")
soundfile = pytest.importorskip("soundfile")
needs("scipy", "SciPy is not installed: use make test")
HEADER = (
    "annotation_id,participant_id,video_id,start_timestamp,stop_timestamp,start_sample,stop_sample,description,class,"
    "class_id\n"
)


FEWER = (
    "EPIC_Sounds_train.csv has only {} of 60,055 annotations; "
    "EPIC_Sounds_validation.csv has only 1 of 8,035 annotations"
)


def row(video: str, start: int, stop: int, label: int) -> str:
    person = video.split("_")[0]
    return f'{video}_{start},{person},{video},00:00:02.069,00:00:02.993,{start},{stop},"clang, loud",rustle,{label}\n'


def write(folder: Path, train: str, test: str) -> Path:
    place = folder / "epic-sounds"
    place.mkdir(exist_ok=True)
    (place / "EPIC_Sounds_train.csv").write_text(HEADER + train)
    (place / "EPIC_Sounds_validation.csv.xz").write_bytes(lzma.compress((HEADER + test).encode()))
    return place


def noise(length: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(-0.5, 0.5, length).astype(np.float32)


def write_hdf5(place: Path, **sounds: NDArray[np.float32]) -> None:
    with h5py.File(place / "EPIC_audio.hdf5", "w") as file:
        for video, samples in sounds.items():
            file[video] = samples


def read(folder: Path) -> Dataset:
    return join_parts(epic_sounds.load(folder))


def test_the_hdf5_file_of_the_authors(tmp_path: Path) -> None:
    train = row("P02_01", 100, 60_100, 4) + row("P01_105", 0, 24_000, 43) + row("P02_01", 500, 5300, 0)
    place = write(tmp_path, train, row("P03_02", 0, 4800, 7))
    write_hdf5(place, P01_105=noise(24_000), P02_01=noise(90_000, 1), P03_02=noise(4800))
    found = read(tmp_path)
    assert (found.train.x.shape, found.test.x.shape) == ((3, 1, 400, 128), (1, 1, 400, 128))
    assert found.train.x.dtype == np.float32
    assert (found.train.y.tolist(), found.test.y.tolist(), found.classes) == ([43, 4, 0], [7], 44)
    assert found.subjects is not None
    assert found.subjects.tolist() == [1, 2, 2]
    assert found.note == f"epic-sounds: {FEWER.format(3)}; 1 segment cut to the middle 2 s"


def test_files_of_sound_have_the_same_samples(tmp_path: Path) -> None:
    annotations = row("P01_01", 12_345, 99_999, 1), row("P02_01", 7, 4807, 2)
    place = write(tmp_path, *annotations)
    sounds = {"P01_01": noise(100_000), "P02_01": noise(5000, 1)}
    write_hdf5(place, **sounds)
    packed = read(tmp_path)
    (place / "EPIC_audio.hdf5").unlink()
    (place / "P01").mkdir()
    soundfile.write(place / "P01" / "P01_01.wav", sounds["P01_01"], 24_000, "FLOAT")
    soundfile.write(place / "P02_01.flac", sounds["P02_01"], 24_000, "PCM_24")
    found = read(tmp_path)
    assert np.array_equal(found.train.x, packed.train.x)
    assert np.allclose(found.test.x, packed.test.x, atol=1e-2)


def test_only_the_annotated_samples_matter(tmp_path: Path) -> None:
    place = write(tmp_path, row("P01_01", 10_000, 70_000, 1), row("P02_01", 0, 4800, 2))
    sound = noise(80_000)
    write_hdf5(place, P01_01=sound, P02_01=sound)
    before = read(tmp_path)
    middle = 40_000
    sound[: middle - 23_988] = sound[middle + 23_988 :] = 0.9
    write_hdf5(place, P01_01=sound, P02_01=sound)
    after = read(tmp_path)
    assert np.array_equal(before.train.x, after.train.x)
    assert not np.array_equal(before.test.x, after.test.x)


def test_test_sounds_do_not_change_the_training_samples(tmp_path: Path) -> None:
    place = write(tmp_path, row("P01_01", 0, 24_000, 1), row("P01_02", 0, 24_000, 2))
    write_hdf5(place, P01_01=noise(24_000), P01_02=noise(24_000, 1))
    before = read(tmp_path)
    write_hdf5(place, P01_01=noise(24_000), P01_02=1000 * noise(24_000, 1))
    after = read(tmp_path)
    assert np.array_equal(before.train.x, after.train.x)
    assert not np.array_equal(before.test.x, after.test.x)


def test_short_segments_repeat_their_last_time() -> None:
    spectrogram = np.arange(3 * 128, dtype=np.float32).reshape(3, 128)
    filled = epic_sounds.fill_times(spectrogram)
    assert np.array_equal(filled[:3], spectrogram)
    assert (filled[3:] == spectrogram[2]).all()


def test_repairs_are_counted(tmp_path: Path) -> None:
    train = row("P01_01", 0, 30_000, 1) + row("P09_01", 0, 30_000, 1) + row("P09_01", 1, 30_000, 1)
    place = write(tmp_path, train, row("P02_01", 0, 4800, 2))
    write_hdf5(place, P01_01=noise(24_000), P02_01=noise(4800))
    assert epic_sounds.load(tmp_path).note == (
        f"epic-sounds: {FEWER.format(3)}; "
        "1 segment cut at the end of the sound; 2 segments of videos without sound left out"
    )


def test_whole_annotations_have_no_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = write(tmp_path, row("P01_01", 0, 4800, 1) + row("P01_01", 5, 4800, 1), row("P02_01", 0, 4800, 2))
    write_hdf5(place, P01_01=noise(4800), P02_01=noise(4800))
    monkeypatch.setattr(epic_sounds, "ANNOTATIONS", {"train": 2, "test": 1})
    assert epic_sounds.load(tmp_path).note == ""


def test_a_repeated_annotation_counts_once(tmp_path: Path) -> None:
    one, other = row("P01_01", 0, 4800, 1), row("P01_01", 9, 4800, 2)
    place = write(tmp_path, one + other + one, row("P02_01", 0, 4800, 2))
    write_hdf5(place, P01_01=noise(4800), P02_01=noise(4800))
    found = read(tmp_path)
    assert found.train.y.tolist() == [1, 2]
    assert found.note == f"epic-sounds: {FEWER.format(2)}; 1 repeated annotation left out"


def test_two_annotations_of_one_number(tmp_path: Path) -> None:
    write(tmp_path, row("P01_01", 0, 4800, 1) + row("P01_01", 0, 4800, 2), row("P02_01", 0, 4800, 2))
    with pytest.raises(DataUnavailableError, match=r"train\.csv, line 3: is another annotation P01_01_0 than"):
        epic_sounds.load(tmp_path)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_annotations_that_are_cut_in_their_last_number(end: str, tmp_path: Path) -> None:
    place = write(tmp_path, row("P01_01", 0, 4800, 1) + row("P01_01", 9, 4800, 23), row("P02_01", 0, 4800, 2))
    write_hdf5(place, P01_01=noise(4800), P02_01=noise(4800))
    path = place / "EPIC_Sounds_train.csv"
    whole = path.read_bytes().replace(b"\n", end.encode())
    path.write_bytes(whole)
    assert read(tmp_path).train.y.tolist() == [1, 23]
    path.write_bytes(whole[: -len(end) - 1])
    with pytest.raises(DataUnavailableError, match=r"train\.csv, line 3: has no end, so the file is cut"):
        epic_sounds.load(tmp_path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (row("P01_01", 5, 5, 1), "a segment cannot last from sample 5 to sample 5"),
        (row("P01_01", -5, 5, 1), "a segment cannot last from sample -5"),
        (row("P01_01", 0, 5, 44), "class 44 is not from 0 to 43"),
        (row("P01_01", 0, 5, 1).replace(",5,", ",5.5,"), "must be whole numbers"),
        (row("P01_01", 0, 5, 1).replace(",P01,", ",P02,"), "'P02' and 'P01_01' are no participant"),
        ("P01_01_0,P01\n", "'P01' and 'None' are no participant"),
    ],
)
def test_wrong_annotations(line: str, words: str, tmp_path: Path) -> None:
    write(tmp_path, row("P01_01", 0, 4800, 1) + line, row("P01_02", 0, 4800, 2))
    with pytest.raises(DataUnavailableError, match=f"train.csv, line 3: .*{words}"):
        epic_sounds.load(tmp_path)


def test_missing_columns(tmp_path: Path) -> None:
    place = write(tmp_path, "", "")
    (place / "EPIC_Sounds_train.csv").write_text("annotation_id,participant_id,video_id,start_sample\n")
    with pytest.raises(DataUnavailableError, match="line 1: lacks the columns stop_sample, class_id"):
        epic_sounds.load(tmp_path)


def test_a_stray_quotation_mark(tmp_path: Path) -> None:
    lines = row("P01_01", 0, 4800, 1).replace('"', "") * 3000
    write(tmp_path, '"' + lines, row("P01_02", 0, 4800, 2))
    with pytest.raises(DataUnavailableError, match=r"train\.csv: is not a CSV file .*quotation mark"):
        epic_sounds.load(tmp_path)


def test_annotations_without_rows(tmp_path: Path) -> None:
    write(tmp_path, "", "")
    with pytest.raises(DataUnavailableError, match=r"train.csv: has no annotations"):
        epic_sounds.load(tmp_path)


def test_truncated_annotations(tmp_path: Path) -> None:
    place = write(tmp_path, row("P01_01", 0, 4800, 1), row("P01_02", 0, 4800, 2))
    path = place / "EPIC_Sounds_validation.csv.xz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataUnavailableError, match=r"validation.csv.xz: is damaged"):
        epic_sounds.load(tmp_path)


def test_no_sound(tmp_path: Path) -> None:
    place = write(tmp_path, row("P01_01", 0, 4800, 1), row("P01_02", 0, 4800, 2))
    with pytest.raises(DataUnavailableError, match=r"holds no sound; put EPIC_audio.hdf5 there"):
        epic_sounds.load(tmp_path)
    write_hdf5(place, P01_01=noise(4800))
    with pytest.raises(DataUnavailableError, match=r"no sound of a video in EPIC_Sounds_validation.csv"):
        epic_sounds.load(tmp_path)


def test_a_link_to_sound_that_is_not_there(tmp_path: Path) -> None:
    place = write(tmp_path, row("P01_01", 0, 4800, 1), row("P01_02", 0, 4800, 2))
    write_hdf5(place, P01_02=noise(4800))
    with h5py.File(place / "EPIC_audio.hdf5", "a") as file:
        file["P01_01"] = h5py.SoftLink("/nowhere")
    with pytest.raises(DataUnavailableError, match=r"P01_01: is a link to an array that is not there"):
        epic_sounds.load(tmp_path)


def test_annotations_that_begin_with_a_mark_of_their_encoding(tmp_path: Path) -> None:
    place = write(tmp_path, row("P01_01", 0, 4800, 1), row("P01_02", 0, 4800, 2))
    write_hdf5(place, P01_01=noise(4800), P01_02=noise(4800))
    path = place / "EPIC_Sounds_train.csv"
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert read(tmp_path).train.y.tolist() == [1]


def test_sound_that_ends_before_a_segment(tmp_path: Path) -> None:
    place = write(tmp_path, row("P01_01", 4800, 9600, 1), row("P01_02", 0, 4800, 2))
    write_hdf5(place, P01_01=noise(4800), P01_02=noise(4800))
    with pytest.raises(DataUnavailableError, match=r"P01_01: ends at sample 4800, .* in .*train.csv, line 2"):
        epic_sounds.load(tmp_path)


def test_sound_that_is_not_finite(tmp_path: Path) -> None:
    place = write(tmp_path, row("P01_01", 0, 4800, 1), row("P01_02", 0, 4800, 2))
    write_hdf5(place, P01_01=np.full(4800, np.nan, dtype=np.float32), P01_02=noise(4800))
    with pytest.raises(DataUnavailableError, match=r"P01_01: samples 0 to 4800 are missing or not finite"):
        read(tmp_path)


def test_a_truncated_hdf5_file(tmp_path: Path) -> None:
    place = write(tmp_path, row("P01_01", 0, 4800, 1), row("P01_02", 0, 4800, 2))
    write_hdf5(place, P01_01=noise(4800), P01_02=noise(4800))
    path = place / "EPIC_audio.hdf5"
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(DataUnavailableError, match=r"EPIC_audio.hdf5: is not an HDF5 file .*truncated"):
        epic_sounds.load(tmp_path)


@pytest.mark.parametrize(("rate", "channels"), [(48_000, 1), (24_000, 2)])
def test_sound_of_another_rate(rate: int, channels: int, tmp_path: Path) -> None:
    place = write(tmp_path, row("P01_01", 0, 4800, 1), row("P01_02", 0, 4800, 2))
    soundfile.write(place / "P01_01.wav", np.zeros((9000, channels), dtype=np.float32), rate)
    with pytest.raises(
        DataUnavailableError, match=f"{channels} channels at {rate} Hz.*ffmpeg -i VIDEO -ac 1 -ar 24000"
    ):
        epic_sounds.load(tmp_path)


def test_a_file_that_is_no_sound(tmp_path: Path) -> None:
    place = write(tmp_path, row("P01_01", 0, 4800, 1), row("P01_02", 0, 4800, 2))
    (place / "P01_01.wav").write_bytes(b"RIFF")
    with pytest.raises(DataUnavailableError, match=r"P01_01.wav: cannot be read"):
        epic_sounds.load(tmp_path)


def test_a_video_in_two_files(tmp_path: Path) -> None:
    place = write(tmp_path, row("P01_01", 0, 4800, 1), row("P01_02", 0, 4800, 2))
    for suffix in ("wav", "flac"):
        soundfile.write(place / f"P01_01.{suffix}", noise(4800), 24_000)
    with pytest.raises(DataUnavailableError, match=r"P01_01.wav: is also .*P01_01.flac; remove one"):
        epic_sounds.load(tmp_path)


def test_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = write(tmp_path, row("P01_01", 0, 4800, 1), row("P01_02", 0, 4800, 2))
    write_hdf5(place, P01_01=noise(4800))
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataUnavailableError, match=r"needs h5py .*pip install 'fedquilt\[audio\]'"):
        epic_sounds.load(tmp_path)


def test_the_real_annotations() -> None:
    path = real_data("epic-sounds") / "epic-sounds" / "EPIC_Sounds_validation.csv.xz"
    repairs = Counter[str]()
    videos = epic_sounds._read_annotations(path, repairs)
    segments = [segment for own in videos.values() for segment in own]
    assert (len(videos), len({person for person, _ in videos}), len(segments)) == (137, 32, 8035)
    assert not repairs
    assert {segment.label for segment in segments} == set(range(44))
