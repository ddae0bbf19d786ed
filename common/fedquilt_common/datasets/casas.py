"""CASAS: twelve activities of daily life from the motion, door and temperature sensors of five smart homes.

Cook and Schmitter-Edgecombe, "Assessing the Quality of Activities in a Smart Environment", Methods of Information in
Medicine 48(5), 2009; the data sets milan, cairo, twor.2009 (Kyoto2), twor.summer.2009 (Kyoto3) and twor.2010 (Kyoto4)
of https://casas.wsu.edu. Reads the file ``data``, or ``annotated``, of each home in ``<FEDQUILT_DATA>/casas``: in
folders or archives whose names are those of the data sets. A line has a date, a time, a sensor and a value, and the
name of an activity and ``begin`` or ``end`` where one begins or ends.

The preparation is FedAIoT's (Alam et al., journal paper, section 3.2.2; thesis, section 2.2.3), after Liciotti et al.,
"A Sequential Deep Learning Application for Recognising Human Activities in Smart Homes", Neurocomputing, 2020. A sample
is a stretch of events with one activity: their last 2,000, with zeros before shorter ones. The paper also describes it
as the 2,000 events before an event; its number of samples is that of stretches. docs/datasets.md describes the numbers
of the events and the repairs, which the note counts.
"""

from __future__ import annotations

import functools
import io
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.archives import PublishedFile, read_files
from fedquilt_common.datasets.files import dataset_folder
from fedquilt_common.datasets.repairs import describe_repairs
from fedquilt_common.datasets.windows import hold_out
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.types import Dataset, Examples

NAME = "casas"
CLASSES = (
    "other", "work", "take medicine", "sleep", "leave home", "eat", "bed to toilet", "bathing", "enter home",
    "personal hygiene", "relax", "cook",
)  # fmt: skip
LENGTH = 2000
HELD_OUT = 0.2
STATES = {"M": ("OFF", "ON"), "D": ("CLOSE", "OPEN")}
SENSORS = {"M": 60, "D": 20, "T": 5}
"""Numbers from 1 to this one have ids of their own; the events of other sensors share an id."""
HOTTEST = 50.0
"""Temperatures from 0 to this one, in steps of half a degree Celsius, have ids of their own."""
_STEPS = int(HOTTEST * 2) + 1
_MOTION, _DOOR, _HEAT = 1, 1 + 2 * SENSORS["M"], 1 + 2 * (SENSORS["M"] + SENSORS["D"])
_OTHER_SENSOR = _HEAT + _STEPS * SENSORS["T"]
APARTMENT_SIZE = _OTHER_SENSOR
"""Ids of one apartment."""


@dataclass(frozen=True)
class _Home:
    """A data set of CASAS.

    Attributes:
        apartment: from 0; the data sets from Kyoto share one, hence the sensors.
        classes: class of each activity, in lower case and without the resident.
    """

    apartment: int
    classes: Mapping[str, str]


HOMES: Mapping[str, _Home] = {
    "milan": _Home(0, {
        "master_bedroom_activity": "other", "meditate": "other", "chores": "work", "desk_activity": "work",
        "morning_meds": "take medicine", "eve_meds": "take medicine", "sleep": "sleep", "read": "relax",
        "watch_tv": "relax", "leave_home": "leave home", "dining_rm_activity": "eat", "kitchen_activity": "cook",
        "bed_to_toilet": "bed to toilet", "master_bathroom": "bathing", "guest_bathroom": "bathing",
    }),
    "cairo": _Home(1, {
        "wake": "other", "night_wandering": "other", "work_in_office": "work", "laundry": "work",
        "take_medicine": "take medicine", "sleep": "sleep", "leave_home": "leave home", "breakfast": "eat",
        "lunch": "eat", "dinner": "eat", "bed_to_toilet": "bed to toilet",
    }),
    "twor.2009": _Home(2, {
        "bed_to_toilet": "bed to toilet", "meal_preparation": "cook", "personal_hygiene": "personal hygiene",
        "watch_tv": "relax", "sleep": "sleep", "clean": "work", "work": "work", "study": "other",
        "wash_bathtub": "other",
    }),
    "twor.summer.2009": _Home(2, {
        "shower": "bathing", "bed_toilet_transition": "other", "cooking": "cook", "sleep": "sleep",
        "cleaning": "work", "work": "work", "grooming": "other", "wakeup": "other",
    }),
    "twor.2010": _Home(2, {
        "wandering_in_room": "other", "work": "work", "housekeeping": "work", "sleeping_not_in_bed": "sleep",
        "sleep": "sleep", "watch_tv": "relax", "personal_hygiene": "personal hygiene", "leave_home": "leave home",
        "enter_home": "enter home", "eating": "eat", "meal_preparation": "cook",
        "bed_toilet_transition": "bed to toilet", "bathing": "bathing",
    }),
}  # fmt: skip
"""The homes in the order of their client numbers, with FedAIoT's classes of their activities."""
_FILE = re.compile(r"(data|annotated?)(\.txt)?")
_MARK = re.compile(r"(.+?)[\s=]*\"?(begin|end)\"?", re.IGNORECASE)
_Marks = dict[int, tuple[str, str]]
"""Where an activity begins or ends: its name, and ``begin`` or ``end``, by the position of the event."""


@dataclass(frozen=True)
class _Events:
    """A home's events, by time: their ids, int64 of shape (n,), and where activities begin or end."""

    ids: NDArray[np.int64]
    marks: _Marks


def load(folder: Path | None = None) -> Dataset:
    """Load the sequences: ``x`` int64 of shape (n, 2000) from 0 to 1998, ``y`` int64 of shape (n,) from 0 to 11.

    In ``x``, 0 fills the places before a sequence's first event. The subjects are the homes.

    Raises:
        DataUnavailableError: files are missing or damaged; the error names file and line.
    """
    place, repairs = dataset_folder(folder, NAME), Counter[str]()
    homes = _read_homes(place, repairs)
    if not homes:
        raise DataUnavailableError(
            f"{place}: holds no home; put the folders or archives {', '.join(HOMES)} there, each with its file 'data'"
        )
    is_test = np.concatenate([_choose_test_samples(name, len(homes[name])) for name in homes])
    if is_test.all():
        raise DataUnavailableError(f"{place}: has samples for testing, but none for training; fetch the files again")
    x, y = (np.concatenate([getattr(part, kind) for part in homes.values()]) for kind in ("x", "y"))
    numbers = np.repeat([list(HOMES).index(name) for name in homes], [len(part) for part in homes.values()])
    train, test = (Examples(x[chosen], y[chosen]) for chosen in (~is_test, is_test))
    return Dataset(NAME, train, test, len(CLASSES), numbers[~is_test], _describe(set(homes), repairs))


def _describe(found: set[str], repairs: Counter[str]) -> str:
    missing = [name for name in HOMES if name not in found]
    notes = [f"without the homes {', '.join(missing)}"] if missing else []
    notes += describe_repairs(repairs)
    return f"{NAME}: {'; '.join(notes)}" if notes else ""


def _choose_test_samples(home: str, count: int) -> NDArray[np.bool_]:
    """Choose a fifth of a home's samples; other homes have no part in it."""
    chosen = hold_out([f"{home} {number}" for number in range(count)], HELD_OUT)
    return np.array([f"{home} {number}" in chosen for number in range(count)])


def _read_homes(place: Path, repairs: Counter[str]) -> dict[str, Examples]:
    """Read the homes one file at a time; they are in the order of ``HOMES``."""
    found = dict[str, PublishedFile]()
    samples = dict[str, Examples]()
    for file in read_files(place, _FILE.fullmatch):
        name = _find_home(file, place)
        if name in found and "annot" in found[name].name and file.name.startswith("data"):
            repairs["files beside an annotated one left out"] += 1
            continue
        if name in found:
            raise DataUnavailableError(f"{file.where}: {name} is also in {found[name].where}; remove one of the two")
        found[name] = replace(file, data=b"")
        events = _read_events(file, HOMES[name], repairs)
        samples[name] = _cut_stretches(events, HOMES[name], repairs)
    return {name: samples[name] for name in HOMES if name in samples}


def _find_home(file: PublishedFile, place: Path) -> str:
    """Return the home that the file's path names, the last one if it names several."""
    inside = file.where.removeprefix(str(place))
    named = [name for part in reversed(re.split(r"[/\\]|, ", inside)) for name in HOMES if part.startswith(name)]
    if not named:
        raise DataUnavailableError(
            f"{file.where}: its path names none of the homes {', '.join(HOMES)}, so the meaning of its activities is "
            "unknown; keep the names of folders and archives as they are published"
        )
    return named[0]


def _read_events(file: PublishedFile, home: _Home, repairs: Counter[str]) -> _Events:
    """Read a home's events.

    Raises:
        DataUnavailableError: there are none, or a line has a wrong time, value or activity.
    """
    times, ids, marks = list[str](), list[int](), _Marks()
    lines = list[int]()
    for line, words in enumerate(io.BytesIO(file.data), 1):
        fields = words.decode("utf-8", errors="replace").split()
        if len(fields) < 4:
            repairs["lines with fewer than 4 fields skipped"] += bool(fields)
        elif fields[2][0] in "MDT":
            if len(fields) > 4 and (mark := _read_mark(" ".join(fields[4:]), file, line, home, repairs)):
                marks[len(ids)] = mark
            times.append(f"{fields[0]}T{fields[1]}")
            ids.append(home.apartment * APARTMENT_SIZE + _number_event(fields, file, line, repairs))
            lines.append(line)
    if not ids:
        raise DataUnavailableError(f"{file.where}: has no line of a motion, door or temperature sensor; fetch it again")
    return _put_in_order(_parse_times(times, lines, file), np.array(ids, dtype=np.int64), marks, repairs)


def _read_mark(
    words: str, file: PublishedFile, line: int, home: _Home, repairs: Counter[str]
) -> tuple[str, str] | None:
    """Return the activity, with its resident, and ``begin`` or ``end``; None if the words are neither."""
    found = _MARK.fullmatch(words)
    if not found:
        repairs["annotations without begin or end skipped"] += 1
        return None
    activity = re.sub(r"\s+", "_", found[1].strip().lower())
    if _drop_resident(activity) not in home.classes:
        raise DataUnavailableError(
            f"{file.where}, line {line}: '{found[1][:40]}' is none of this home's activities "
            f"{', '.join(home.classes)}; fetch the file again"
        )
    return activity, found[2].lower()


def _drop_resident(activity: str) -> str:
    return re.sub(r"^r\d_", "", activity)


def _number_event(fields: list[str], file: PublishedFile, line: int, repairs: Counter[str]) -> int:
    number, repair = number_event(fields[2], fields[3])
    if number is None:
        raise DataUnavailableError(
            f"{file.where}, line {line}: '{fields[3][:40]}' is not a value of sensor {fields[2][:40]}; motion sensors "
            "have ON and OFF, doors OPEN and CLOSE, and temperature sensors numbers; fetch the file again"
        )
    if repair:
        repairs[repair] += 1
    return number


@functools.lru_cache(maxsize=4096)
def number_event(sensor: str, value: str) -> tuple[int | None, str]:
    """Return an event's id within its apartment, from 1 to 666, and the repair that it needs, or "".

    Args:
        sensor: begins with M, D or T, such as ``M017``.
        value: such as ``ON``.

    Returns:
        None instead of an id if such a sensor cannot have this value.
    """
    kind, digits = sensor[0], re.fullmatch(r".(\d+)", sensor)
    step, repair = _read_temperature(value) if kind == "T" else _read_state(kind, value)
    if step is None:
        return None, ""
    number = int(digits[1]) if digits else 0
    if not 1 <= number <= SENSORS[kind]:
        return _OTHER_SENSOR, "events of sensors without an id of their own"
    start, width = {"M": (_MOTION, 2), "D": (_DOOR, 2), "T": (_HEAT, _STEPS)}[kind]
    return start + (number - 1) * width + step, repair


def _read_state(kind: str, value: str) -> tuple[int | None, str]:
    """Return 0 or 1; characters after a state's name are noise, and a door may be OFF (closed) or ON."""
    for names in (STATES[kind], STATES["M"]):
        for step, name in enumerate(names):
            if value.upper().startswith(name):
                return step, "values with stray characters read" if value.upper() != name else ""
    return None, ""


def _read_temperature(value: str) -> tuple[int | None, str]:
    try:
        degrees = float(value)
    except ValueError:
        return None, ""
    if not np.isfinite(degrees):
        return None, ""
    step = round(degrees * 2)
    return min(max(step, 0), _STEPS - 1), "temperatures outside 0 to 50 degrees" if not 0 <= step < _STEPS else ""


def _parse_times(times: list[str], lines: list[int], file: PublishedFile) -> NDArray[np.datetime64]:
    if (wrong := _find_wrong_time(times)) is not None:
        raise DataUnavailableError(
            f"{file.where}, line {lines[wrong]}: does not begin with a date and a time such as 2009-10-16 "
            f"00:01:04.000059, but with {times[wrong][:40].replace('T', ' ', 1)}; fetch the file again"
        )
    return np.array(times, dtype="datetime64[ns]")


def _find_wrong_time(times: list[str]) -> int | None:
    """Return the position of the first time that cannot be read; None if all can."""
    if _are_times(times):
        return None
    return next(i for i, time in enumerate(times) if not _are_times([time]))


def _are_times(times: list[str]) -> bool:
    try:
        return not np.isnat(np.array(times, dtype="datetime64[ns]")).any()
    except ValueError:
        return False


def _put_in_order(
    times: NDArray[np.datetime64], ids: NDArray[np.int64], marks: _Marks, repairs: Counter[str]
) -> _Events:
    """Sort events by time, those of equal times as in the file, and drop repeated ones.

    An event repeats the one before it if time, sensor, value and mark are equal.
    """
    repairs["lines out of order sorted"] += int((np.diff(times) < np.timedelta64(0)).sum())
    order = np.argsort(times, kind="stable")
    same = (np.diff(times[order]) == np.timedelta64(0)) & (np.diff(ids[order]) == 0)
    repeats = {int(i) + 1 for i in np.flatnonzero(same) if marks.get(int(order[i])) == marks.get(int(order[i + 1]))}
    repairs["repeated lines left out"] += len(repeats)
    kept = order[[i for i in range(len(order)) if i not in repeats]]
    return _Events(ids[kept], {new: marks[int(old)] for new, old in enumerate(kept) if int(old) in marks})


def _cut_stretches(events: _Events, home: _Home, repairs: Counter[str]) -> Examples:
    """Return a sample for each stretch of events with the same activity."""
    spans = _pair_marks(events.marks, repairs)
    owner = np.zeros(len(events.ids), dtype=np.int64)
    for number, (start, stop, _) in enumerate(spans, 1):  # an event belongs to the activity that began last
        owner[start : stop + 1] = number
    starts = np.concatenate([[0], np.flatnonzero(np.diff(owner)) + 1])
    classes = ["other", *(home.classes[_drop_resident(activity)] for _, _, activity in spans)]
    y = np.array([CLASSES.index(classes[number]) for number in owner[starts]], dtype=np.int64)
    parts = np.split(events.ids, starts[1:])
    repairs["sequences cut to the last 2000 events"] += sum(len(part) > LENGTH for part in parts)
    x = np.zeros((len(parts), LENGTH), dtype=np.int64)
    for row, part in zip(x, parts, strict=True):
        row[-min(len(part), LENGTH) :] = part[-LENGTH:]
    return Examples(x, y)


def _pair_marks(marks: _Marks, repairs: Counter[str]) -> list[tuple[int, int, str]]:
    """Return first event, last event and name of each activity that begins and ends, by their first events."""
    spans, begun = list[tuple[int, int, str]](), dict[str, int]()
    for position, (activity, kind) in sorted(marks.items()):
        if kind == "begin":
            repairs["activities without an end left out"] += activity in begun
            begun[activity] = position
        elif activity in begun:
            spans.append((begun.pop(activity), position, activity))
        else:
            repairs["activities without a begin left out"] += 1
    repairs["activities without an end left out"] += len(begun)
    return sorted(spans)
