"""A process is asked to stop: by a person, by systemd, by its terminal."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from fedquilt_common import cli
from fedquilt_common.errors import EXIT_CODES
from fedquilt_common.process.signals import STOP_SIGNALS, STOPPED_CODES, StopSignal, is_interrupted, remember_interrupts


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    """Restore the handlers of the test's process."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_each_of_them_is_recorded(number: int) -> None:
    stop = StopSignal()
    assert (stop(), stop.exit_code) == (False, 0)
    send(number)
    assert (stop(), stop.exit_code) == (True, 128 + number)
    assert stop.exit_code in EXIT_CODES
    assert stop.exit_code in STOPPED_CODES


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("first", STOP_SIGNALS)
def test_the_second_one_interrupts(first: int, second: int) -> None:
    stop = StopSignal()
    send(first)
    with pytest.raises(KeyboardInterrupt):
        send(second)
    assert stop.exit_code == 128 + first


@pytest.mark.parametrize("first", STOP_SIGNALS)
def test_a_terminal_that_closes_sends_two(first: int) -> None:
    stop = StopSignal()
    send(first, signal.SIGHUP, signal.SIGHUP)
    assert stop.exit_code == 128 + first


def test_under_nohup_a_closed_terminal_is_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop = StopSignal()
    send(signal.SIGHUP)
    assert not stop()
    send(signal.SIGTERM)
    assert stop()


def test_an_interrupt_that_an_import_swallows_stops_the_command() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    remember_interrupts()
    assert not StopSignal()()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    remember_interrupts()
    with contextlib.suppress(KeyboardInterrupt):  # as code in Rust does
        send(signal.SIGINT)
    stop = StopSignal()
    assert (stop(), stop.exit_code) == (True, 130)


def test_an_interrupt_that_an_import_turns_into_another_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(_name: str) -> None:
        try:
            send(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("no schema") from None

    signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr("importlib.import_module", load)
    with pytest.raises(RuntimeError):
        cli.run(["demo"])
    remember_interrupts()
    assert cli.run(["demo"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_process_that_ignores_interrupts_goes_on_ignoring_them() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    remember_interrupts()
    send(signal.SIGINT)
    assert not is_interrupted()
