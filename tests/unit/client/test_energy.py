"""Energy from readings: the area below power samples, counters, gaps and resets; the shares of tasks; the meter."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedquilt_client import energy as module
from fedquilt_client.energy import LONGEST_GAP, EnergyCount, EnergyMeter, EnergyReading, TaskShares
from fedquilt_client.power import EnergySample, PowerReading, PowerSample
from fedquilt_common.wire.messages import SENSOR

Wait = Callable[..., Any]


def count(*readings: tuple[float, PowerReading]) -> EnergyCount:
    found = EnergyCount()
    for now, reading in readings:
        found.add(reading, now)
    return found


def test_nothing_is_known_at_first() -> None:
    assert (count().joules, count().watts, count().at(5.0)) == (None, None, None)
    assert count((1.0, None)).joules is None


def test_the_area_below_the_samples() -> None:
    found = count((10.0, PowerSample(4.0)), (12.0, PowerSample(6.0)), (13.0, PowerSample(6.0)))
    assert found.joules == pytest.approx(10.0 + 6.0)
    assert found.watts == 6.0
    assert found.at(14.5) == pytest.approx(16.0 + 9.0)
    assert found.at(12.9) == pytest.approx(16.0)


def test_a_failed_reading_leaves_no_hole() -> None:
    found = count((0.0, PowerSample(4.0)), (1.0, None))
    assert (found.watts, found.joules) == (None, 0.0)
    assert found.at(2.0) == 0.0  # nothing is known about the power now
    found.add(PowerSample(4.0), 3.0)
    assert found.joules == pytest.approx(12.0)


def test_a_long_gap_is_not_invented() -> None:
    found = count((0.0, PowerSample(4.0)), (LONGEST_GAP + 1, PowerSample(4.0)))
    assert found.joules == 0.0
    assert found.at(10_000.0) == pytest.approx(4.0 * LONGEST_GAP)


@pytest.mark.parametrize("watts", [-0.1, 5001.0, float("nan"), float("inf")])
def test_an_impossible_power_is_no_reading(watts: float) -> None:
    found = count((0.0, PowerSample(4.0)), (1.0, PowerSample(watts)), (2.0, PowerSample(4.0)))
    assert found.joules == pytest.approx(8.0)


def test_a_counter_is_exact_over_any_gap() -> None:
    found = count((0.0, EnergySample(100.0)), (1.0, EnergySample(104.0)), (1001.0, EnergySample(1104.0)))
    assert found.joules == pytest.approx(1004.0)
    assert found.watts == pytest.approx(1.0)


def test_a_counter_that_is_reset_adds_nothing() -> None:
    readings = (0.0, EnergySample(100.0)), (1.0, EnergySample(3.0)), (2.0, EnergySample(8.0)), (3.0, EnergySample(1e6))
    assert count(*readings).joules == pytest.approx(5.0)


@given(st.lists(st.tuples(st.floats(0.01, 30.0), st.one_of(st.none(), st.floats(0.0, 5000.0))), max_size=30))
def test_energy_never_decreases(steps: list[tuple[float, float | None]]) -> None:
    found, now, before = EnergyCount(), 0.0, 0.0
    for seconds, watts in steps:
        now += seconds
        found.add(None if watts is None else PowerSample(watts), now)
        assert (found.joules or 0.0) >= before
        before = found.joules or 0.0


# Tasks


def test_tasks_at_the_same_time_share_the_energy() -> None:
    shares = TaskShares()
    shares.begin(1, 100.0)
    shares.begin(2, 110.0)
    assert shares.share(1, 130.0) == pytest.approx(20.0)
    assert shares.share(2, 130.0) == pytest.approx(10.0)
    shares.end(1, 130.0)
    assert shares.share(2, 140.0) == pytest.approx(20.0)
    shares.end(2, 140.0)
    shares.end(2, 141.0)
    assert not shares
    shares.begin(3, 900.0)  # what is used between tasks is nobody's
    assert shares.share(3, 901.0) == pytest.approx(1.0)
    assert shares.share(1, 901.0) is None


def test_shares_without_a_figure() -> None:
    shares = TaskShares()
    shares.begin(1, None)
    assert shares.share(1, None) is None
    shares.share(1, 5.0)
    assert shares.share(1, 7.0) == pytest.approx(2.0)


def test_a_total_that_was_estimated_too_high_is_not_taken_back_from_tasks() -> None:
    shares = TaskShares()
    shares.begin(1, 0.0)
    assert shares.share(1, 10.0) == pytest.approx(10.0)
    assert shares.share(1, 8.0) == pytest.approx(10.0)
    assert shares.share(1, 12.0) == pytest.approx(12.0)


# The meter


class Steady:
    """A sensor that always reads 5 W, and counts how often."""

    name, source = "a steady sensor", SENSOR

    def __init__(self) -> None:
        self.readings = 0

    def read(self) -> PowerReading:
        self.readings += 1
        return PowerSample(5.0)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.01)


@pytest.fixture
def steady(quick: None) -> Iterator[tuple[EnergyMeter, Steady]]:
    sensor = Steady()
    meter = EnergyMeter(lambda _: sensor)
    meter.start()
    yield meter, sensor
    meter.stop()
    assert "energy" not in [thread.name for thread in threading.enumerate()]


def test_a_meter_counts_the_board_and_its_tasks(steady: tuple[EnergyMeter, Steady], wait_for: Wait) -> None:
    meter, sensor = steady
    wait_for(lambda: meter.reading.joules is not None)
    assert meter.begin(7) == 5.0
    assert meter.begin(8) == 2.5
    meter.end(8)
    seen = sensor.readings
    wait_for(lambda: sensor.readings > seen + 3)  # a task ends the longer pause of an idle board
    assert meter.may_know
    share, reading = meter.share(7), meter.reading
    assert share is not None
    assert share > 0
    assert (reading.watts, reading.source) == (5.0, SENSOR)
    meter.end(7)
    assert meter.share(7) is None


def test_a_report_has_the_energy_up_to_now_and_it_never_decreases() -> None:
    clock = iter((0.0, 6.0, 6.0, 20.0))
    meter = EnergyMeter(lambda _: Steady(), lambda: next(clock))
    meter._add(PowerSample(5.0), 0.0, SENSOR)
    assert [meter.reading.joules for _ in range(2)] == [0.0, 30.0]
    meter._add(PowerSample(1.0), 6.0, SENSOR)  # so it was 3 W on the way
    assert [meter.reading.joules for _ in range(2)] == [30.0, 32.0]


@pytest.mark.parametrize(
    ("busy", "pauses"), [(False, [(1.0, False), (5.0, False)]), (True, [(1.0, False), (5.0, True)])]
)
def test_an_idle_board_is_read_less_often(
    busy: bool, pauses: list[tuple[float, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = EnergyMeter(lambda _: Steady())
    if busy:
        meter.begin(1)
    seen: list[tuple[float, bool]] = []

    def wait_for(is_over: Callable[[], bool], seconds: float) -> None:
        seen.append((seconds, is_over()))

    monkeypatch.setattr(meter._changed, "wait_for", wait_for)
    meter._rest(1.0)
    assert seen == pauses


def test_a_slow_sensor_is_read_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    clock = iter(float(n) for n in range(100))
    meter = EnergyMeter(lambda _: Steady(), lambda: next(clock))

    def rest(seconds: float) -> None:
        rests.append(seconds)
        meter._stopped = len(rests) == 2

    monkeypatch.setattr(meter, "_rest", rest)
    meter._work()
    assert rests == [20.0, 20.0]  # each reading takes a second


def test_a_sensor_without_figures(quick: None, wait_for: Wait) -> None:
    sensor = Steady()
    asked = threading.Event()

    def read() -> PowerReading:
        asked.set()
        return None

    sensor.read = read  # type: ignore[method-assign]
    meter = EnergyMeter(lambda _: sensor)
    assert meter.may_know
    meter.start()
    assert asked.wait(60)
    wait_for(lambda: not meter.may_know)
    assert meter.begin(1) is None
    assert (meter.reading, meter.share(1)) == (EnergyReading(), None)
    meter.stop()


def test_a_sensor_that_raises_has_no_figure_until_it_reads_again(
    steady: tuple[EnergyMeter, Steady], wait_for: Wait, caplog: pytest.LogCaptureFixture
) -> None:
    """A foreign package may raise anything."""
    meter, sensor = steady
    meter.begin(1)
    wait_for(lambda: meter.reading.watts == 5.0)
    read, tries = sensor.read, list[None]()

    def fail() -> PowerReading:
        tries.append(None)
        raise KeyError("rail 3")

    sensor.read = fail  # type: ignore[method-assign]
    wait_for(lambda: len(tries) > 3 and meter.reading.watts is None)
    sensor.read = read  # type: ignore[method-assign]
    wait_for(lambda: meter.reading.watts == 5.0)
    (warning,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert warning == "a steady sensor cannot be read: KeyError: 'rail 3'. Its power is unknown until it can"


def test_a_meter_that_never_started_can_stop() -> None:
    EnergyMeter(lambda _: Steady()).stop()
