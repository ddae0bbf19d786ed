"""CASAS: homes in the published format, made here: stretches, overlaps, repairs and damage."""

from __future__ import annotations

import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fedquilt_common.datasets import casas
from fedquilt_common.errors import DataUnavailableError

FIRST_LINES = """\
2009-10-16 00:01:04.000059\tM017\tON
2009-10-16 00:01:06\tM009\tON\tSleep begin
2009-10-16 00:01:07.000064\tM017\tOFF
2009-10-16 00:01:08.000081\tM019\tON\tSleep end
2009-10-16 00:01:09.000025\tD001\tOPEN
2009-10-16 00:01:10.00001\tT001\t21.5
"""


def write(folder: Path, home: str, text: str, name: str = "data") -> Path:
    path = folder / "casas" / home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def events(count: int, sensor: str = "M001", minute: int = 0, mark: str = "") -> str:
    return "".join(
        f"2009-06-10 {minute // 60:02}:{minute % 60:02}:{i // 100:02}.{i % 100:02}0000 {sensor} "
        f"{'ON' if i % 2 else 'OFF'}{mark * (i in (0, count - 1))}\n".replace("MARK", "begin" if i == 0 else "end")
        for i in range(count)
    )


def stretches(folder: Path, home: str, text: str) -> list[tuple[str, list[int]]]:
    """Class and ids of each stretch of a home, in order."""
    write(folder, home, text)
    samples = casas._read_homes(folder / "casas", Counter())[home]
    return [(casas.CLASSES[y], x[x > 0].tolist()) for x, y in zip(samples.x, samples.y, strict=True)]


def test_a_home_as_it_is_published(tmp_path: Path) -> None:
    def number(sensor: str, value: str) -> int:
        return casas.number_event(sensor, value)[0] or 0

    assert stretches(tmp_path, "milan", FIRST_LINES) == [
        ("other", [number("M017", "ON")]),
        ("sleep", [number("M009", "ON"), number("M017", "OFF"), number("M019", "ON")]),
        ("other", [number("D001", "OPEN"), number("T001", "21.5")]),
    ]


def test_shapes_and_clients(tmp_path: Path) -> None:
    for home, activity in (("milan", "Read"), ("cairo", "R1 sleep"), ("twor.2010", "R2_Enter_Home")):
        write(tmp_path, home, "".join(events(3, minute=i, mark=f" {activity} MARK") for i in range(10)))
    found = casas.load(tmp_path)
    assert (found.train.x.shape, found.test.x.shape, found.classes) == ((24, 2000), (6, 2000), 12)
    assert found.train.x.dtype == found.train.y.dtype == np.int64
    assert found.subjects is not None
    assert [casas.CLASSES[y] for y in found.train.y[::8]] == ["relax", "sleep", "enter home"]
    assert np.bincount(found.subjects).tolist() == [8, 8, 0, 0, 8]
    assert found.note == "casas: without the homes twor.2009, twor.summer.2009"
    assert found.train.x[:, -3:].all()  # zeros come before the events
    assert not found.train.x[:, :-3].any()


def test_homes_in_archives_and_files_of_other_names(tmp_path: Path) -> None:
    text = events(3, mark=" R1_sleep MARK") + events(3, minute=2)
    write(tmp_path, "twor.summer.2009", text, "annotated")
    with zipfile.ZipFile(tmp_path / "casas" / "milan.zip", "w") as archive:
        archive.writestr("milan/data", FIRST_LINES)
        archive.writestr("milan/README", "not data")
    assert list(casas._read_homes(tmp_path / "casas", Counter())) == ["milan", "twor.summer.2009"]


def test_an_annotated_file_is_preferred(tmp_path: Path) -> None:
    write(tmp_path, "twor.summer.2009", events(3, mark=" R1_sleep MARK") + events(3, minute=2), "annotated")
    write(tmp_path, "twor.summer.2009", events(6))
    found = casas.load(tmp_path)
    assert sorted([*found.train.y, *found.test.y]) == [0, 3]
    assert "1 file beside an annotated one left out" in found.note


@pytest.mark.parametrize("mark", ['R1_Sleep="begin"', "R1_sleepbegin", "R1 sleep  begin"])
def test_forms_of_annotations(mark: str, tmp_path: Path) -> None:
    lines = f"2009-06-10 00:00:01.1 M001 ON {mark}\n2009-06-10 00:00:02.1 M002 ON {mark.replace('begin', 'end')}\n"
    assert [name for name, _ in stretches(tmp_path, "cairo", lines)] == ["sleep"]


def test_ids_do_not_depend_on_the_homes_at_hand(tmp_path: Path) -> None:
    write(tmp_path, "twor.2009", events(3))
    alone = casas._read_homes(tmp_path / "casas", Counter())["twor.2009"]
    write(tmp_path, "milan", FIRST_LINES)
    beside = casas._read_homes(tmp_path / "casas", Counter())
    assert np.array_equal(alone.x, beside["twor.2009"].x)
    assert not set(np.unique(beside["milan"].x)) & set(np.unique(alone.x)) - {0}


def test_every_event_has_an_id_of_its_own() -> None:
    found = [casas.number_event(f"M{n:03}", state)[0] for n in range(1, 61) for state in ("OFF", "ON")]
    found += [casas.number_event(f"D{n:03}", state)[0] for n in range(1, 21) for state in ("CLOSE", "OPEN")]
    found += [casas.number_event(f"T{n:03}", str(half / 2))[0] for n in range(1, 6) for half in range(101)]
    found += [casas.number_event("M061", "ON")[0]]
    assert found == list(range(1, casas.APARTMENT_SIZE + 1))
    assert 3 * casas.APARTMENT_SIZE < 2000  # FedAIoT's model has 2,000 embeddings


def test_the_activity_that_began_last_has_the_event(tmp_path: Path) -> None:
    text = """\
2009-06-10 00:00:01.1 M001 ON R1_Sleep begin
2009-06-10 00:00:02.1 M002 ON R2_Bed_to_Toilet begin
2009-06-10 00:00:03.1 M003 ON R2_Bed_to_Toilet end
2009-06-10 00:00:04.1 M004 ON R1_Sleep end
"""
    found = stretches(tmp_path, "twor.2009", text)
    assert [(activity, len(ids)) for activity, ids in found] == [("sleep", 1), ("bed to toilet", 2), ("sleep", 1)]


def test_unpaired_marks_are_counted(tmp_path: Path) -> None:
    text = """\
2009-06-10 00:00:01.1 M001 ON R1_Sleep begin
2009-06-10 00:00:02.1 M002 ON R1_Sleep begin
2009-06-10 00:00:03.1 M003 ON R1_Sleep end
2009-06-10 00:00:04.1 M004 ON Watch_TV end
2009-06-10 00:00:05.1 M005 ON Watch_TV begin
2009-06-10 00:00:06.1 M006 ON Watch_TV
"""
    assert [(name, len(ids)) for name, ids in stretches(tmp_path, "twor.2009", text)] == [
        ("other", 1), ("sleep", 2), ("other", 3),
    ]  # fmt: skip
    note = casas.load(tmp_path).note
    assert "2 activities without an end left out" in note
    assert "1 activity without a begin left out" in note
    assert "1 annotation without begin or end skipped" in note


def test_repairs_are_counted(tmp_path: Path) -> None:
    text = """\
2009-06-10 00:00:05.1 M005 ON
2009-06-10 00:00:01.1 M001 ON R1_Sleep begin
2009-06-10 00:00:02.1 M002 OFFcc
2009-06-10 00:00:02.1 M002 OFFcc
2009-06-10 00:00:03.1 M003
2009-06-10 00:00:03.1 T001 -3.5
2009-06-10 00:00:03.1 AD1-A 2.82231
2009-06-10 00:00:04.1 M104 ON R1_Sleep end
"""
    found = stretches(tmp_path, "twor.2009", text)
    assert [(name, len(ids)) for name, ids in found] == [("sleep", 4), ("other", 1)]
    note = casas.load(tmp_path).note
    for words in (
        "1 line out of order sorted", "1 repeated line left out", "1 line with fewer than 4 fields skipped",
        "2 values with stray characters read", "1 temperature outside 0 to 50 degrees",
        "1 event of sensors without an id of their own",
    ):  # fmt: skip
        assert words in note


def test_long_stretches_keep_their_last_events(tmp_path: Path) -> None:
    write(tmp_path, "milan", events(1, "M002") + events(2000, minute=1))
    found = casas._read_homes(tmp_path / "casas", Counter())["milan"]
    assert (found.x == casas.number_event("M002", "OFF")[0]).sum() == 0
    write(tmp_path, "milan", events(1, "M002") + events(1999, minute=1))
    again = casas._read_homes(tmp_path / "casas", Counter())["milan"]
    assert again.x[0, 0] == casas.number_event("M002", "OFF")[0]


def test_test_samples_do_not_change_the_training_samples(tmp_path: Path) -> None:
    def write_with(values: list[str]) -> None:
        marks = (f"2009-06-10 00:00:{i:02}.1 T001 {value} Read {{}}\n" for i, value in enumerate(values))
        write(tmp_path, "milan", "".join(line.format("begin" if i % 2 == 0 else "end") for i, line in enumerate(marks)))

    write_with(["20"] * 20)
    before = casas.load(tmp_path)
    tested = casas._choose_test_samples("milan", 10)
    write_with([str(49 * tested[i // 2] or 20) for i in range(20)])
    after = casas.load(tmp_path)
    assert np.array_equal(before.train.x, after.train.x)
    assert not np.array_equal(before.test.x, after.test.x)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("2009-10-16 00:61:08.0 M019 ON", "does not begin with a date and a time.*00:61"),
        ("NaT x M019 ON", "does not begin with a date"),
        ("2009-10-16 00:01:08.0 M019 BLUE", "'BLUE' is not a value of sensor M019"),
        ("2009-10-16 00:01:08.0 T001 nan", "'nan' is not a value of sensor T001"),
        ("2009-10-16 00:01:08.0 T001 ON", "'ON' is not a value of sensor T001"),
        ("2009-10-16 00:01:08.0 M019 ON Juggle begin", "'Juggle' is none of this home's activities"),
    ],
)
def test_wrong_lines(line: str, words: str, tmp_path: Path) -> None:
    write(tmp_path, "milan", FIRST_LINES + line + "\n")
    with pytest.raises(DataUnavailableError, match=f"milan.data, line 7: {words}"):
        casas.load(tmp_path)


def test_an_empty_home(tmp_path: Path) -> None:
    write(tmp_path, "cairo", "\n")
    with pytest.raises(DataUnavailableError, match=r"cairo.data: has no line"):
        casas.load(tmp_path)


def test_a_home_with_a_single_stretch(tmp_path: Path) -> None:
    write(tmp_path, "cairo", events(3))
    with pytest.raises(DataUnavailableError, match="none for training"):
        casas.load(tmp_path)


def test_a_home_of_unknown_name(tmp_path: Path) -> None:
    write(tmp_path, "aruba", FIRST_LINES)
    with pytest.raises(DataUnavailableError, match=r"aruba.data: its path names none of the homes milan"):
        casas.load(tmp_path)


def test_a_home_that_is_there_twice(tmp_path: Path) -> None:
    write(tmp_path, "milan", FIRST_LINES)
    write(tmp_path, "milan", FIRST_LINES, "data.txt")
    with pytest.raises(DataUnavailableError, match=r"data.txt: milan is also in .*milan.data; remove one"):
        casas.load(tmp_path)


def test_a_folder_without_homes(tmp_path: Path) -> None:
    (tmp_path / "casas").mkdir()
    with pytest.raises(DataUnavailableError, match="holds no home"):
        casas.load(tmp_path)


def test_a_truncated_archive(tmp_path: Path) -> None:
    path = tmp_path / "casas" / "milan.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("milan/data", FIRST_LINES)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataUnavailableError, match=r"milan.zip: is damaged"):
        casas.load(tmp_path)
