"""The sensors of power and energy in sysfs, on the recorded files of boards; and which source a board uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.sysfs import write_board

from fedquilt_client import power_choice
from fedquilt_client.power import EnergySample, PowerSample, PowerSensor
from fedquilt_client.power_choice import choose_sensor
from fedquilt_client.power_counters import find_rapl
from fedquilt_client.power_estimate import BOARDS, KINDS, UNKNOWN_ARM, LoadEstimate, PowerModel, power_model
from fedquilt_client.power_programs import CommandMeter
from fedquilt_client.power_rails import find_hwmon, find_ina3221
from fedquilt_common.wire.messages import ESTIMATE, METER, SENSOR

RAPL = "sys/class/powercap/intel-rapl:"


@pytest.fixture(autouse=True)
def no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine may have a ``vcgencmd`` or jetson-stats."""
    monkeypatch.setattr(power_choice, "find_pmic", lambda _: None)
    monkeypatch.setattr(power_choice, "find_jtop", lambda: None)


def choose(root: Path, kind: str = "generic", command: str | None = None) -> PowerSensor:
    return choose_sensor(kind, CommandMeter(command) if command else None, lambda: False, root)


@pytest.mark.parametrize(
    ("board", "watts", "name"),
    [
        ("jetson-orin-nano", 5.072 * 0.952, "INA3221 (VDD_IN)"),
        ("jetson-nano", 2.252, "INA3221 (POM_5V_IN)"),
        ("jetson-tx2", 3.447 + 1.148, "INA3221 (VDD_IN, VDD_MUX)"),  # the module, and the carrier board beside it
        ("jetson-agx-xavier", 0.76 + 1.14 + 1.52 + 0 + 0.57 + 1.5, "INA3221 (GPU, CPU, SOC, CV, VDDRQ, SYS5V)"),
        ("jetson-agx-orin", 11.4384 + 6.10048 + 4.0256, "INA3221 (VDD_GPU_SOC, VDD_CPU_CV, VIN_SYS_5V0)"),
        ("ina219-hat", 4.14, "ina219"),  # the present power, not the average besides
        ("acpi-server", 142.0, "power_meter"),  # it contains the GPU and what the INA219 measures
        ("corsair-supply", 98.0, "corsairpsu (power total)"),  # it contains the other three rails
    ],
)
def test_the_power_of_a_board(board: str, watts: float, name: str, tmp_path: Path) -> None:
    sensor = choose(write_board(board, tmp_path))
    reading = sensor.read()
    assert isinstance(reading, PowerSample)
    assert reading.watts == pytest.approx(watts)
    assert (sensor.name, sensor.source) == (name, SENSOR)


def test_rails_without_a_total_are_summed(tmp_path: Path) -> None:
    root = write_board("ina219-hat", tmp_path)
    second = root / "sys/class/hwmon/hwmon9"
    second.mkdir()
    (second / "name").write_text("ina226\n")
    (second / "power1_average").write_text("1000000\n")
    found = find_hwmon(root)
    assert found is not None
    reading = found.read()
    assert isinstance(reading, PowerSample)
    assert reading.watts == pytest.approx(5.14)
    (second / "power1_average").write_text("rubbish")
    assert found.read() is None  # a part of the sum would be a wrong figure


def test_a_rail_that_is_switched_off_does_not_count(tmp_path: Path) -> None:
    root = write_board("jetson-agx-orin", tmp_path)
    (root / "sys/class/hwmon/hwmon3/in1_enable").write_text("0\n")
    found = find_ina3221(root)
    assert found is not None
    assert found.name == "INA3221 (VDD_CPU_CV, VIN_SYS_5V0)"


@pytest.mark.parametrize("chip", ["amdgpu", "BAT0", "ucsi_source_psy_USBC000:001", "zenpower", "mlx5"])
def test_a_part_of_a_board_is_not_the_board(chip: str, tmp_path: Path) -> None:
    folder = tmp_path / "sys/class/hwmon/hwmon0"
    folder.mkdir(parents=True)
    (folder / "name").write_text(chip)
    (folder / "power1_input").write_text("9000000")
    assert find_hwmon(tmp_path) is None


# Counters


def joules(sensor: PowerSensor) -> float:
    reading = sensor.read()
    assert isinstance(reading, EnergySample)
    return reading.joules


def add(root: Path, zone: str, microjoules: int) -> None:
    file = root / f"{RAPL}{zone}/energy_uj"
    file.write_text(str(int(file.read_text()) + microjoules))


def test_a_processor_counts_packages_and_memory_once(tmp_path: Path) -> None:
    root = write_board("intel-laptop", tmp_path)
    sensor = choose(root)
    assert (sensor.name, sensor.source) == ("RAPL (package-0, dram)", SENSOR)
    assert joules(sensor) == 0
    for zone, microjoules in {
        "0": 5_000_000,
        "0:0": 3_000_000,
        "0:1": 1_000_000,
        "0:2": 250_000,
        "1": 9_000_000,
    }.items():
        add(root, zone, microjoules)
    assert joules(sensor) == pytest.approx(5.25)


def test_a_counter_that_restarts_at_its_range(tmp_path: Path) -> None:
    root = write_board("intel-laptop", tmp_path)
    span = int((root / f"{RAPL}0/max_energy_range_uj").read_text())
    file = root / f"{RAPL}0/energy_uj"
    file.write_text(str(span - 1_000_000))
    sensor = find_rapl(root)
    assert sensor is not None
    file.write_text("2000000")
    assert joules(sensor) == pytest.approx(3.0)
    file.write_text("2500000")
    assert joules(sensor) == pytest.approx(3.5)
    file.unlink()
    assert sensor.read() is None


def test_a_counter_for_root_only_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = write_board("intel-laptop", tmp_path)
    (root / f"{RAPL}0:2/energy_uj").unlink()  # tests may run as root, who can read all files
    caplog.set_level("INFO")
    assert find_rapl(root) is None
    assert "intel-rapl:0/energy_uj" in caplog.text
    assert choose(root).source == ESTIMATE


# Estimates


def test_a_board_without_sensors_is_estimated(tmp_path: Path) -> None:
    sensor = choose(tmp_path, "pi3b")
    assert (sensor.name, sensor.source) == ("an estimate from the processor's load, 1.4 to 3.7 W", ESTIMATE)
    assert joules(sensor) <= joules(sensor)


def test_the_estimate_follows_the_load() -> None:
    class Times:
        def __init__(self, **seconds: float) -> None:
            self._seconds = seconds

        def _asdict(self) -> dict[str, float]:
            return self._seconds

    readings = iter([
        (0.0, Times(user=10.0, guest=4.0, system=1.0, idle=100.0, iowait=1.0)),
        (10.0, Times(user=10.0, guest=4.0, system=1.0, idle=110.0, iowait=1.0)),
        (20.0, Times(user=30.0, guest=24.0, system=1.0, idle=129.0, iowait=2.0)),
        (20.0, Times(user=30.0, guest=24.0, system=1.0, idle=129.0, iowait=2.0)),
        (30.0, Times(user=70.0, guest=24.0, system=1.0, idle=129.0, iowait=2.0)),
    ])  # fmt: skip
    now = [next(readings)]

    def cpu_times() -> Times:
        times = now[0][1]
        now[0] = next(readings, now[0])
        return times

    sensor = LoadEstimate(PowerModel(2.0, 6.0), cpu_times, lambda: now[0][0])
    assert joules(sensor) == pytest.approx(20.0)
    assert joules(sensor) == pytest.approx(20.0 + 40.0)  # half of the time busy
    assert joules(sensor) == pytest.approx(60.0)
    assert joules(sensor) == pytest.approx(60.0 + 60.0)


@pytest.mark.parametrize(
    ("kind", "board", "machine", "model"),
    [
        ("generic", "Raspberry Pi 4 Model B Rev 1.4", "aarch64", KINDS["pi4"]),
        ("pi5", "Raspberry Pi 3 Model B Plus Rev 1.3", "aarch64", KINDS["pi3b-plus"]),
        ("generic", "Raspberry Pi 3 Model B Rev 1.2", "armv7l", KINDS["pi3b"]),
        ("pi5", "", "x86_64", KINDS["pi5"]),
        ("weak", "Some other board", "aarch64", UNKNOWN_ARM),
        ("weak", "", "x86_64", PowerModel(10.0, 42.0)),
    ],
)
def test_the_model_of_a_board(kind: str, board: str, machine: str, model: PowerModel) -> None:
    assert power_model(kind, board, machine, 4) == model


def test_models_are_possible() -> None:
    assert all(0 < model.idle < model.busy for model in (*BOARDS.values(), *KINDS.values()))


def test_the_owners_meter_comes_first(tmp_path: Path) -> None:
    sensor = choose(write_board("jetson-orin-nano", tmp_path), command="echo 7.5")
    assert (sensor.read(), sensor.source) == (PowerSample(7.5), METER)


def test_agents_that_share_a_machine_share_its_power(tmp_path: Path) -> None:
    whole = choose_sensor("generic", None, lambda: False, write_board("acpi-server", tmp_path))
    part = choose_sensor("generic", None, lambda: False, tmp_path, agents=4)
    assert whole.read() == PowerSample(142.0)
    assert part.read() == PowerSample(35.5)
    assert (part.name, part.source) == ("1/4 of power_meter", ESTIMATE)
