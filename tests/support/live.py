"""Coordinators and agents in threads of the test's process, with a real broker."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedquilt_common.wire.broker_url import parse_broker_url
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.transport import Deliver, MakeTransport, Transport, Will
from fedquilt_server.simulate.mosquitto import broker_command, free_port, wait_listening


@contextmanager
def running(execute: Callable[[Callable[[], bool]], None]) -> Iterator[threading.Thread]:
    """Run a coordinator or an agent in a thread, and stop it at the end of the block."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            execute(stop.is_set)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join(60)
        assert (thread.is_alive(), errors) == (False, []), errors


@contextmanager
def open_broker(folder: Path) -> Iterator[int]:
    """Run a broker, and yield its port."""
    free = free_port()
    with subprocess.Popen(broker_command(folder, free)) as child:
        try:
            wait_listening("127.0.0.1", free, 60)
            yield free
        finally:
            child.terminate()


def connection(port: int, client_id: str) -> MakeTransport:
    """Return what connects to the broker at ``port`` as ``client_id``."""
    address = parse_broker_url(f"127.0.0.1:{port}")

    def transport(deliver: Deliver, will: Will) -> Transport:
        return MqttTransport(address, client_id, deliver, will=will)

    return transport


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
