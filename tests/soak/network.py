"""The network of a scenario: a broker of its own behind a proxy, and the faults of both."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.soak.federation import FIND_SECONDS, POLL
from tests.soak.scenario import Fault
from tests.support.mqtt_proxy import HOST, Direction, MqttProxy, Weather, Whose

from fedquilt_server.simulate.mosquitto import broker_command, free_port, wait_listening

WEATHERS: Final[Mapping[str, Weather]] = {
    "calm": Weather(),
    "delays": Weather(delay=0.02),
    "duplicates": Weather(duplicates=0.2),
    "swaps": Weather(swaps=0.3),
    "storm": Weather(0.01, 0.2, 0.3),
}
WILL_DELAY: Final = 1
"""Seconds that replace the delay of 20 s of an agent's will: one second of a cut does what twenty do elsewhere."""
BYTES: Final = 997
"""A connection is cut after a fault's number times this many bytes."""
START_SECONDS: Final = 10.0


class Network:
    """A broker without persistence, which can be killed and started again on its port, and the proxy in front of it."""

    def __init__(self, folder: Path, weather: str, seed: int) -> None:
        self._port = free_port()
        self._command = broker_command(folder, self._port)
        self._log = folder / "broker.log"
        self._lock = threading.Lock()
        self.start_broker()
        self.proxy = MqttProxy(self._port, WEATHERS[weather], WILL_DELAY, seed)
        self.proxy.start()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"mqtt://{HOST}:{self.proxy.port}"

    @property
    def broker(self) -> int:
        """The broker's process id."""
        return self._process.pid

    def start_broker(self) -> None:
        """Start the broker and wait until it listens."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        wait_listening(HOST, self._port, START_SECONDS)

    def restart_broker(self, seconds: float) -> None:
        """Kill the broker; everything that it holds is lost. Start it again after some seconds."""
        with self._lock:
            self._process.kill()
            self._process.wait()
            time.sleep(seconds)
            self.start_broker()

    def close(self) -> None:
        """Stop both."""
        self.proxy.close()
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def network(folder: Path, weather: str, seed: int) -> Iterator[Network]:
    """Start a network that is gone after the block."""
    made = Network(folder, weather, seed)
    try:
        yield made
    finally:
        made.close()


def choose(proxy: MqttProxy, fault: Fault) -> Whose:
    """Return whose connections a fault cuts or delays. It waits some seconds for the first one."""
    end = time.monotonic() + FIND_SECONDS
    while not (names := [name for name in proxy.names if _is_target(name, fault.target)]) and time.monotonic() < end:
        time.sleep(POLL)
    if fault.target == "agent" and names:
        chosen = names[fault.number % len(names)]
        return lambda name: name == chosen
    return lambda name: _is_target(name, fault.target)


def _is_target(name: str, target: str) -> bool:
    return target == "everyone" or (target == "coordinator") == ("-coordinator" in name)


def cut(net: Network, fault: Fault) -> int:
    """Reset connections, and refuse new ones for some seconds."""
    with net.proxy.refusing(choose(net.proxy, fault)) as count:
        time.sleep(fault.seconds)
    return count


def stall(net: Network, fault: Fault) -> int:
    """Let nothing pass for some seconds."""
    with net.proxy.stalled(choose(net.proxy, fault)) as count:
        time.sleep(fault.seconds)
    return count


def blackhole(net: Network, fault: Fault) -> int:
    """Let nothing pass for some seconds. The broker takes the client for dead, the client gets no sign."""
    with net.proxy.swallowing(choose(net.proxy, fault)) as count:
        time.sleep(fault.seconds)
    return count


def half_close(net: Network, fault: Fault) -> int:
    """End one direction of a connection."""
    return net.proxy.half_close(choose(net.proxy, fault), _direction(fault))


def drop(net: Network, fault: Fault) -> int:
    """Cut a connection after some more bytes, also in the middle of a packet."""
    return net.proxy.cut_after(choose(net.proxy, fault), _direction(fault), fault.number * BYTES)


def restart(net: Network, fault: Fault) -> int:
    """Kill the broker, and start it again after some seconds."""
    net.restart_broker(fault.seconds)
    return 1


def _direction(fault: Fault) -> Direction:
    return "up" if fault.detail == "up" else "down"


INJECTORS: Final[Mapping[str, Callable[[Network, Fault], int]]] = {
    "cut": cut,
    "stall": stall,
    "blackhole": blackhole,
    "half-close": half_close,
    "drop": drop,
    "restart": restart,
}
"""How each fault of the network is done; each function returns how many connections or processes it done."""
