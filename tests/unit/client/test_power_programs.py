"""Power figures from programs: the owner's command whatever it does, a Raspberry Pi 5's vcgencmd, jetson-stats."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from tests.support.ended import is_gone
from tests.support.sysfs import RECORDED

from fedquilt_client import power_programs as programs
from fedquilt_client.power import PowerSample
from fedquilt_client.power_programs import (
    CommandMeter,
    JtopSensor,
    ProgramError,
    find_jtop,
    find_pmic,
    parse_rails,
    parse_watts,
    run_program,
)

Wait = Callable[..., Any]
PMIC = (RECORDED / "raspberry-pi-5-pmic.txt").read_text(encoding="utf-8")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes an executable shell script with the given lines, and returns its path; no program runs out of time."""
    monkeypatch.setattr(programs, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=time.sleep))

    def write(lines: str, name: str = "meter") -> str:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o755)
        return str(path)

    return write


def children() -> list[psutil.Process]:
    """Child processes of this one, but for those that other tests share."""
    alive = (child for child in psutil.Process().children(recursive=True) if not is_gone(child.pid))
    return [child for child in alive if child not in _SHARED]


@pytest.fixture(autouse=True)
def _leave_out_shared_processes() -> None:
    _SHARED[:] = psutil.Process().children(recursive=True)


_SHARED: list[psutil.Process] = []


@pytest.mark.parametrize(("text", "watts"), [("4.2", 4.2), (" 4.2 W\n", 4.2), ("4.2W", 4.2), ("0", 0.0), ("1e1", 10.0)])
def test_watts(text: str, watts: float) -> None:
    assert parse_watts(text) == watts


@pytest.mark.parametrize("text", ["", "W", "-1", "nan", "inf", "5001", "4,2", "4.2 mW", "4.2 5.1", "about 4", "\ufffd"])
def test_what_is_no_power(text: str) -> None:
    with pytest.raises(ProgramError, match="not a power in watts"):
        parse_watts(text)


def test_a_command_with_arguments_and_without_a_shell(program: Callable[[str], str]) -> None:
    meter = CommandMeter(f"{program('echo $#; exit 0')} 'a b' '$HOME'")
    assert meter.read() == PowerSample(2.0)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("echo -3", "it prints '-3', not a power in watts"),
        ("echo nan", "it prints 'nan', not a power in watts"),
        ("echo no meter found", "it prints 'no meter found', not"),
        ("true", "it prints '', not a power in watts"),
        ("echo 4.2; exit 3", "it fails with exit code 3"),
        ("yes", "it prints more than 4096 bytes"),
        ("head -c 5000 /dev/urandom", "it prints more than 4096 bytes"),
    ],
)
def test_a_command_without_a_figure(
    lines: str, reason: str, program: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    meter = CommandMeter(program(lines))
    assert [meter.read(), meter.read()] == [None, None]
    assert [reason in message for message in caplog.messages] == [True]  # once, not at each reading
    assert children() == []


def test_a_command_that_does_not_exist(caplog: pytest.LogCaptureFixture) -> None:
    assert CommandMeter("/nowhere/meter --watts").read() is None
    assert "no power figure from --power-command /nowhere/meter --watts: it cannot start" in caplog.text


def test_a_command_that_works_again_may_be_logged_again(
    program: Callable[[str], str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "watts"
    meter = CommandMeter(f"{program('cat $1')} {file}")
    found = []
    for text in ("", "5.5", "broken"):
        file.write_text(text)
        found.append(meter.read())
    assert found == [None, PowerSample(5.5), None]
    assert len(caplog.messages) == 2


@pytest.mark.parametrize("lines", ["wait", "echo 4.2", "exec >&-; wait"])
def test_a_command_that_hangs_is_killed_with_its_children(
    lines: str, program: Callable[[str], str], tmp_path: Path, wait_for: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child holds the output open, or the command itself waits for it. Its time begins when the child is there."""
    file, begun = tmp_path / "child", list[float]()

    def clock() -> float:
        if not begun and file.exists() and file.read_text():
            begun.append(time.monotonic())
        return time.monotonic() - begun[0] if begun else 0.0

    command = program(f"sleep 600 & echo $! >{file}; {lines}")
    monkeypatch.setattr(programs, "time", SimpleNamespace(monotonic=clock, sleep=time.sleep))
    with pytest.raises(ProgramError, match="does not end in time"):
        run_program([command], seconds=0.5)
    child = int(file.read_text())
    wait_for(lambda: is_gone(child))
    assert children() == []


def test_a_command_ends_when_the_agent_stops(program: Callable[[str], str], wait_for: Wait, tmp_path: Path) -> None:
    stopped, errors = threading.Event(), list[ProgramError]()
    hanging = program(f": >{tmp_path}/runs; sleep 600")

    def run() -> None:
        try:
            run_program([hanging], stopped.is_set, seconds=600)
        except ProgramError as error:
            errors.append(error)

    reader = threading.Thread(target=run, daemon=True)
    reader.start()
    wait_for((tmp_path / "runs").exists)
    stopped.set()
    reader.join(60)
    assert not reader.is_alive()
    assert len(errors) == 1


def test_the_end_of_the_agent_is_no_failure_of_the_command(
    program: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    assert CommandMeter(program("sleep 600"), lambda: True).read() is None
    assert caplog.messages == []


# A Raspberry Pi 5


def test_the_rails_of_a_raspberry_pi_5() -> None:
    rails = {
        3.79999600: 0.0, 3.30632200: 0.06245952, 1.79828900: 0.16102850, 1.10292900: 0.00780744, 0.60476130: 0.0,
        1.10439400: 0.17566740, 0.80256330: 0.32791250, 0.89745940: 10.87674, 3.30494200: 0.0003663,
        3.30219400: 0.00042735, 0.79736190: 0.00579975, 5.07056000: 0.01367520,
    }  # fmt: skip
    assert parse_rails(PMIC) == pytest.approx(sum(volts * amperes for volts, amperes in rails.items()))


@pytest.mark.parametrize("text", ["", 'error=1 error_msg="Command not registered"', "EXT5V_V volt(24)=5.06788000V"])
def test_other_boards_have_no_rails(text: str) -> None:
    assert parse_rails(text) is None


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (f"cat <<'END'\n{PMIC}END", True),
        ("echo 'error=1 error_msg=\"Command not registered\"'", False),
        ("exit 255", False),
    ],
)
def test_vcgencmd_is_asked(
    answer: str, found: bool, program: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(f'[ "$*" = pmic_read_adc ] || exit 9\n{answer}', "vcgencmd")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert (find_pmic() is not None) == found


def test_a_machine_without_vcgencmd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_pmic() is None


# jetson-stats


def test_jetson_stats(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(programs.importlib.util, "find_spec", lambda _: object())  # type: ignore[attr-defined]
    client = SimpleNamespace(start=lambda: None, power={"rail": {}, "tot": {"power": 5340, "avg": 5000}})
    monkeypatch.setitem(sys.modules, "jtop", SimpleNamespace(jtop=lambda: client))
    sensor = find_jtop()
    assert sensor is not None
    assert sensor.read() == PowerSample(5.34)

    def refuse() -> Any:
        raise RuntimeError("the jtop.service is not active")

    caplog.set_level(logging.INFO)
    monkeypatch.setitem(sys.modules, "jtop", SimpleNamespace(jtop=refuse))
    assert find_jtop() is None
    assert "the jtop.service is not active" in caplog.text


@pytest.mark.parametrize("power", [{}, {"tot": {}}, {"tot": {"power": None}}, None])
def test_jetson_stats_without_a_figure(power: Any) -> None:
    assert JtopSensor(SimpleNamespace(power=power)).read() is None
