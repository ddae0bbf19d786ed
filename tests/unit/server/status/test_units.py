"""Numbers with units: rounding neither leaves the unit nor hides that a share is below 1 or above 0."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedquilt_server.status import units
from fedquilt_server.web.assets import FOLDER

FACTORS = {
    "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
    "J": 1, "kJ": 1e3, "MJ": 1e6, "GJ": 1e9, "s": 1, "min": 60, "h": 3600,
}  # fmt: skip
SIZES = st.floats(0, 9e14) | st.integers(0, 10**15).map(float)
SHARES = st.floats(0, 1) | st.fractions(0, 1, max_denominator=10_000).map(float)
SECONDS = st.floats(0, 1e6) | st.integers(0, 40_000).map(lambda number: number / 100)


def read_back(text: str) -> float:
    words = text.split(" ")
    return sum(float(word) * FACTORS[unit] for word, unit in zip(words[::2], words[1::2], strict=True))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (units.traffic(999.6), "1.0 kB"),
        (units.traffic(999_999), "1.0 MB"),
        (units.traffic(99_960), "100 kB"),
        (units.memory(1024 * 1024 - 1), "1.0 MiB"),
        (units.energy(999.7), "1.0 kJ"),
        (units.duration(9.996), "10.0 s"),
        (units.duration(59.97), "1 min 00 s"),
        (units.duration(3599.7), "1 h 00 min"),
        (units.whole_duration(59.7), "1 min 00 s"),
        (units.whole_duration(59.4), "59 s"),
        (units.whole_duration(-3), "0 s"),
        (units.whole_duration(math.nan), units.DASH),
        (units.number(19881.64361), "19881.644"),
        (units.number(-1.83046e19), "-1.830e+19"),
        (units.number(3e9, 0), "3000000000"),
        (units.number(math.inf), units.DASH),
        (units.percent(511 / 512, 0), "99.8 %"),
        (units.percent(1 / 512, 0), "0.2 %"),
        (units.percent(1.25e-5), "0.001 %"),
        (units.percent(5 / 8, 0), "63 %"),
        (units.percent(0, 0), "0 %"),
        (units.percent(1), "100.0 %"),
        (units.percent(1e-12), "< 0.000001 %"),
        (units.percent(1 - 1e-10), "> 99.999999 %"),
        (units.percent(sum([0.1] * 10)), "100.0 %"),
        (units.percent(-0.25), "-25.0 %"),
    ],
)
def test_rounding_keeps_the_meaning(written: str, expected: str) -> None:
    assert written == expected


@pytest.mark.parametrize(("show", "step"), [(units.traffic, 1000), (units.energy, 1000), (units.memory, 1024)])
@given(size=SIZES)
def test_a_size_stays_in_its_unit(show: Callable[[float], str], step: int, size: float) -> None:
    text = show(size)
    if text == units.DASH:
        assert show is units.memory
        assert size == 0
        return
    number, unit = text.split(" ")
    assert float(number) < step or unit in ("TB", "GJ")
    assert read_back(text) == pytest.approx(size, rel=0.05, abs=0.5 * FACTORS[unit] if "." not in number else 0)


@given(SECONDS)
def test_a_duration_stays_in_its_unit(seconds: float) -> None:
    text = units.duration(seconds)
    numbers, names = text.split(" ")[::2], text.split(" ")[1::2]
    limits = {"s": 60, "min": 60, "h": math.inf}
    assert all(float(number) < limits[name] for number, name in zip(numbers, names, strict=True))
    assert not text.startswith(("10.00", "0 "))
    assert abs(read_back(text) - seconds) <= (60.5 if "h" in text else 0.5 if "min" in text else 0.0501)


@given(SHARES, st.integers(0, 2))
def test_only_all_is_100_percent_and_only_nothing_is_0_percent(share: float, digits: int) -> None:
    share = 1.0 if math.isclose(share, 1, rel_tol=1e-12) else share  # a sum of shares
    text = units.percent(share, digits).removesuffix(" %")
    sign, _, number = text.rpartition(" ")
    assert (float(number) == 0, float(number) == 100) == (share == 0, share == 1)
    assert abs(float(number) - 100 * share) <= 0.5 * 10**-digits + 1e-9
    assert {"": True, "<": 100 * share < float(number), ">": 100 * share > float(number)}[sign]


SCRIPT = """
import fs from "fs";
const units = await import(process.argv[1]);
const found = JSON.parse(fs.readFileSync(0, "utf8")).map(([name, v, digits]) => ({
  percent: () => units.percent(v, digits), duration: () => units.duration(v),
  traffic: () => units.scaled(v, units.BYTES), energy: () => units.scaled(v, units.JOULES),
})[name]());
console.log(JSON.stringify(found));
"""
NUMBERS = [*(i / 16 for i in range(17)), 511 / 512, 1e-12, 1 - 1e-10, 1 - 1e-16, -0.25, 9.995, 9.996, 10, 59.94, 59.97,
           60.5, 3599.6, 99.95, 999.5, 999.6, 1250, 1750, 99_950, 99_960, 999_499, 999_999, 1e12, 9.9996e14,
           1e18]  # fmt: skip


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_page_writes_numbers_as_the_server_does() -> None:
    shares = [number for number in NUMBERS if number <= 1]
    cases = [("percent", share, digits) for share in shares for digits in (0, 1, 2)]
    cases += [(name, number, 0) for name in ("duration", "traffic", "energy") for number in NUMBERS]
    command = ["node", "--input-type=module", "-e", SCRIPT, (FOLDER / "units.js").as_uri()]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, check=True, timeout=60)
    show = {"duration": units.duration, "traffic": units.traffic, "energy": units.energy}
    wanted = [units.percent(v, digits) if name == "percent" else show[name](v) for name, v, digits in cases]
    assert json.loads(done.stdout) == wanted


CURVES = """
const { axisNote, specs } = await import(process.argv[1]);
const { loss } = specs();
const note = (min, max, spec) => axisNote({ scales: { y: { min, max } } }, spec);
console.log(JSON.stringify([
  note(2.265, 2.305, loss), note(0, 1, loss), note(1.5e7, 1.9e7, loss),
  ...[19881.6, 12.3456, 1.23456, 0.5, 1.83046e19].map(loss.show),
]));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_curves_show_no_more_digits_than_they_have_and_notes_as_many_as_the_axis() -> None:
    command = ["node", "--input-type=module", "-e", CURVES, (FOLDER / "curve_data.js").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == [
        "axis begins at 2.265", "", "axis begins at 1.5e+7",
        "19881.6", "12.3456", "1.2346", "0.5000", "1.830e+19",
    ]  # fmt: skip
