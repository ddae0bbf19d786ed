"""Power figures from programs: a command of the board's owner, a Raspberry Pi 5's ``vcgencmd``, and jetson-stats."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import math
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import IO, Any, Final

from fedquilt_client.power import MOST_WATTS, PowerReading, PowerSample, is_power
from fedquilt_common.wire.messages import METER, SENSOR

log = logging.getLogger(__name__)

PROGRAM_SECONDS: Final = 5.0
"""How long a program may run."""
MOST_OUTPUT: Final = 4096
"""Bytes that a program may print."""
_STEP_SECONDS: Final = 0.1
_RAIL: Final = re.compile(r"^\s*(\w+)_([AV]) (?:current|volt)\(\d+\)=(\d+\.?\d*)[AV]\s*$", re.MULTILINE)
_WATTS: Final = re.compile(r"\s*([-+.\w]+?)\s*W?\s*")
Stopped = Callable[[], bool]
"""Whether the agent stops, so that a program must end."""


class ProgramError(Exception):
    """A program failed, ran too long, or printed something else than expected."""


def run_program(argv: Sequence[str], stopped: Stopped = lambda: False, seconds: float = PROGRAM_SECONDS) -> str:
    """Run a program without a shell and return what it prints.

    A program that exceeds its limits is killed, with its children.

    Args:
        argv: the program and its arguments.
        stopped: the program is killed when it returns True.
        seconds: how long the program may run.

    Raises:
        ProgramError: it cannot start, fails, runs too long or prints too much.
    """
    try:
        process = subprocess.Popen(  # noqa: S603 - the owner's command, or a fixed one
            list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise ProgramError(f"it cannot start: {error}") from None
    with process, _killed_on_error(process):
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        output = _read_until_exit(process, process.stdout, stopped, time.monotonic() + seconds)
    if process.returncode:
        raise ProgramError(f"it fails with exit code {process.returncode}")
    return output.decode(errors="replace")


@contextlib.contextmanager
def _killed_on_error(process: subprocess.Popen[bytes]) -> Any:
    try:
        yield
    except BaseException:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        raise


def _read_until_exit(process: subprocess.Popen[bytes], out: IO[bytes], stopped: Stopped, end: float) -> bytes:
    """Read the output until the program has closed it and has ended."""
    output, open_ = b"", True
    with selectors.DefaultSelector() as ready:
        ready.register(out, selectors.EVENT_READ)
        while open_ or process.poll() is None:
            if stopped() or time.monotonic() >= end:
                raise ProgramError("it does not end in time")
            if open_ and ready.select(_STEP_SECONDS):
                chunk = os.read(out.fileno(), MOST_OUTPUT)
                output, open_ = output + chunk, bool(chunk)
            elif not open_:
                time.sleep(_STEP_SECONDS / 10)
            if len(output) > MOST_OUTPUT:
                raise ProgramError(f"it prints more than {MOST_OUTPUT} bytes")
    return output


def parse_watts(text: str) -> float:
    """Parse what a meter's command prints: a number such as ``4.2``, with or without ``W``.

    Raises:
        ProgramError: it is no number, or no possible power.
    """
    found = _WATTS.fullmatch(text)
    try:
        watts = float(found[1]) if found else math.nan
    except ValueError:
        watts = math.nan
    if not is_power(watts):
        raise ProgramError(f"it prints {text.strip()[:40]!r}, not a power in watts from 0 to {MOST_WATTS:.0f}")
    return watts


class CommandMeter:
    """A meter of the board's owner, read with a command that prints watts.

    Args:
        command: the program and its arguments, as in a shell; no shell runs it.
        stopped: the command is killed when it returns True.
    """

    source = METER

    def __init__(self, command: str, stopped: Stopped = lambda: False) -> None:
        self._argv = shlex.split(command)
        self._stopped = stopped
        self._works = True
        self.name = f"the command {self._argv[0]}"

    def read(self) -> PowerReading:
        """Run the command; None if it gives no figure. The log names the reason once."""
        try:
            watts = parse_watts(run_program(self._argv, self._stopped))
        except ProgramError as error:
            if self._works and not self._stopped():
                log.warning("no power figure from --power-command %s: %s", shlex.join(self._argv), error)
            self._works = False
            return None
        self._works = True
        return PowerSample(watts)


class PmicSensor:
    """The power management chip of a Raspberry Pi 5: the sum of its rails.

    The sum is less than the board's input: the chip does not measure 5 V consumers, such as USB devices, nor its own
    losses.

    Args:
        program: path of ``vcgencmd``.
    """

    source = SENSOR
    name = "PMIC of a Raspberry Pi 5"

    def __init__(self, program: str, stopped: Stopped = lambda: False) -> None:
        self._argv = (program, "pmic_read_adc")
        self._stopped = stopped

    def read(self) -> PowerReading:
        """Run ``vcgencmd``; None if it does not report the rails."""
        try:
            watts = parse_rails(run_program(self._argv, self._stopped))
        except ProgramError:
            return None
        return None if watts is None else PowerSample(watts)


def parse_rails(text: str) -> float | None:
    """Return the watts of all rails that have a voltage and a current; None if there are none."""
    found = {(name, unit): float(value) for name, unit, value in _RAIL.findall(text)}
    watts = [
        amperes * found[name, "V"] for (name, unit), amperes in found.items() if unit == "A" and (name, "V") in found
    ]
    return sum(watts) if watts else None


def find_pmic(stopped: Stopped = lambda: False) -> PmicSensor | None:
    """Return the sensor of a Raspberry Pi 5; None on other boards."""
    program = shutil.which("vcgencmd")
    sensor = PmicSensor(program, stopped) if program else None
    return sensor if sensor and sensor.read() else None


class JtopSensor:
    """The total power that the service of jetson-stats reports.

    Args:
        client: a started ``jtop.jtop``.
    """

    source = SENSOR
    name = "jetson-stats"

    def __init__(self, client: Any) -> None:
        self._client = client

    def read(self) -> PowerReading:
        """Return the newest report, in milliwatts there; None without one."""
        try:
            return PowerSample(float(self._client.power["tot"]["power"]) / 1e3)
        except (LookupError, TypeError, ValueError):
            return None


def find_jtop() -> JtopSensor | None:
    """Return the sensor of jetson-stats if that is installed and its service runs."""
    try:
        if importlib.util.find_spec("jtop") is None:
            return None
        client = importlib.import_module("jtop").jtop()
        client.start()
        return JtopSensor(client)
    except Exception as error:  # whatever another package does, the agent works without it
        log.info("jetson-stats gives no power figure: %s", error)
        return None
